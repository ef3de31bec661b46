/**
 * Several gateways, keys with limits, and questions to the mesh, as people type them; real processes on this machine.
 */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import type { GatewayEndpoint } from '../../spec/state-layout.ts';
import { type Home, temporaryHome } from '../cli/support.ts';
import { hpcserveProgram } from '../cluster/user-home.ts';

let home: Home;
let key: string;

beforeAll(async () => {
  home = temporaryHome();
  const made = await home.run(['model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1']);
  expect(made.code, made.stderr).toBe(0);
  const model = (name: string): string =>
    `  - name: ${name}\n    aliases: [assistant]\n    source: ./toy.gguf\n    cpu_threads: 1\n    context_tokens: 512\n    max_sequences: 4\n    slo:\n      tpot_ms: 5000\n`;
  writeFileSync(join(home.folder, 'model.yaml'), `name: demo\nmodels:\n${model('one')}${model('two')}`);
  const deployed = await home.run(['deploy', '--yes', 'model.yaml', '--timeout', '60s']);
  expect(deployed.code, deployed.stderr).toBe(0);
  key = /key +(\S+)/.exec(deployed.stdout)![1]!;
}, 120_000);
afterAll(async () => {
  await home.run(['stop', '--all', '--yes']);
  home.dispose();
});

interface ListedGateway {
  number: number;
  state: string;
  url?: string;
}

async function gateways(): Promise<ListedGateway[]> {
  return JSON.parse((await home.run(['gateway', 'list', '--json'])).stdout).gateways;
}

async function ask(
  url: string,
  as: string,
  model = 'one',
  headers: Record<string, string> = {},
): Promise<Response> {
  const answer = await fetch(`${url}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${as}`, 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ model, max_tokens: 4, messages: [{ role: 'user', content: 'Hello' }] }),
  });
  await answer.text();
  return answer;
}

it('a second gateway serves the same keys, and goes on when the first is killed', async () => {
  const started = await home.run(['gateway', 'start', '--json']);
  expect(started.code, started.stderr).toBe(0);
  const second = JSON.parse(started.stdout) as { number: number; url: string; started: boolean };
  expect(second).toMatchObject({ number: 2, started: true });
  const [first] = await gateways();
  expect(first!.url).not.toBe(second.url);
  await expect.poll(async () => (await ask(second.url, key)).status, { timeout: 20_000 }).toBe(200);
  expect((await ask(first!.url!, key)).status).toBe(200);
  const again = JSON.parse((await home.run(['gateway', 'start', '--number', '2', '--json'])).stdout);
  expect(again).toEqual({ ...second, started: false });

  // The keeper would start it again, and does in the end; the second serves meanwhile.
  const file = join(home.folder, '.hpcserve/local/gateway/endpoint.json');
  process.kill((JSON.parse(readFileSync(file, 'utf8')) as GatewayEndpoint).pid, 'SIGKILL');
  expect((await ask(second.url, key)).status).toBe(200);
  await expect
    .poll(async () => (await gateways()).map(({ state }) => state), { timeout: 30_000 })
    .toEqual(['running', 'running']);
  const usage = JSON.parse((await home.run(['usage', '--by', 'key', '--json'])).stdout).usage;
  expect(usage).toHaveLength(1);
  expect(usage[0].requests).toBeGreaterThanOrEqual(3);
  expect(usage[0].key_name).toBeTruthy();
});

it('doctor shows what did not belong to the mesh and was refused; the mesh goes on', async () => {
  const sessions = join(home.folder, '.hpcserve/local/mesh/sessions');
  const [file] = readdirSync(sessions).filter((name) => name.endsWith('.rec'));
  const record = readFileSync(join(sessions, file!));
  const of = (digit: string): string => join(sessions, file!.replace(/^[0-9a-f]{32}/, digit.repeat(32)));
  // A record under the name of another session, and bytes that are none.
  writeFileSync(of('0'), record, { mode: 0o600 });
  writeFileSync(of('1'), randomBytes(600), { mode: 0o600 });
  const refused = async (): Promise<string[]> => {
    const { stdout } = await home.run(['doctor', '--json']);
    const { checks } = JSON.parse(stdout) as { checks: { check: string; found: string }[] };
    return checks.filter(({ check }) => /^mesh.*: refused$/.test(check)).map(({ found }) => found);
  };
  await expect
    .poll(refused, { timeout: 20_000 })
    .toContainEqual(expect.stringMatching(/folder: wrong_name \d/));
  expect((await refused()).join()).toMatch(/folder: malformed \d/);
  expect((await ask((await gateways())[0]!.url!, key)).status).toBe(200);
  rmSync(of('0'));
  rmSync(of('1'));
});

it('keys are made with limits, changed, and refused in their words', async () => {
  const [first] = await gateways();
  const made = JSON.parse(
    (
      await home.run([
        'keys',
        'create',
        'course',
        '--models',
        'one,assistant',
        '--requests-per-minute',
        '3',
        '--json',
      ])
    ).stdout,
  );
  expect(made.settings).toEqual({ models: ['one', 'assistant'], requests_per_minute: 3 });
  // It counts: what a key may ask a minute is asked before a body is read.
  expect((await ask(first!.url!, made.key, 'two')).status).toBe(403);
  expect(
    [await ask(first!.url!, made.key), await ask(first!.url!, made.key)].map(({ status }) => status),
  ).toEqual([200, 200]);
  const refused = await ask(first!.url!, made.key);
  expect([refused.status, refused.headers.get('x-hpcserve-error')]).toEqual([429, 'E_KEY_RATE']);
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
  const metrics = await fetch(new URL('/metrics', first!.url!), {
    headers: { authorization: `Bearer ${key}` },
  });
  expect(await metrics.text()).toMatch(/hpcserve_refused_total\{code="E_KEY_RATE"\} 1/);
  const set = await home.run([
    'keys',
    'set',
    made.id,
    '--requests-per-minute',
    'none',
    '--budget',
    '1/total',
  ]);
  expect(set.code, set.stderr).toBe(0);
  const over = await ask(first!.url!, made.key);
  expect([over.status, over.headers.get('x-hpcserve-error')]).toEqual([429, 'E_KEY_BUDGET']);
  const { stdout } = await home.run(['keys', 'list']);
  expect(stdout).toMatch(/course .* valid +models one,assistant, 1 tokens\/total +\d+ tokens/);
  const bad = await home.run(['keys', 'set', made.id, '--ask', 'colour=blue']);
  expect(bad.code).not.toBe(0);
  expect(bad.stderr).toMatch(/terms are quantization, devices, tier, region/);
});

it('nodes and models are asked by what they have', async () => {
  const nodes = JSON.parse((await home.run(['nodes', '--json'])).stdout);
  expect(nodes.node_kinds).toHaveLength(1);
  expect(nodes.nodes.length).toBeGreaterThan(0);
  expect(
    nodes.nodes
      .flatMap(({ models }: { models: { name: string }[] }) => models.map(({ name }) => name))
      .sort(),
  ).toEqual(['one', 'two']);
  expect(JSON.parse((await home.run(['nodes', '--gpu', 'any', '--json'])).stdout)).toMatchObject({
    node_kinds: [],
    nodes: [],
  });
  const ofTwo = JSON.parse((await home.run(['nodes', '--model', 'two', '--json'])).stdout);
  expect(ofTwo.node_kinds).toBeUndefined();
  expect(ofTwo.nodes).toHaveLength(1);
  expect((await home.run(['nodes'])).stdout).toMatch(
    /NODE KIND[\s\S]*this-machine[\s\S]*NODE +SITE[\s\S]*one/,
  );
  const models = (await home.run(['models'])).stdout;
  expect(models).toMatch(/^assistant +alias of one, two +2 /m);
  expect(models).toMatch(/^one +1 /m);
  expect(JSON.parse((await home.run(['models', '--tier', 'scavenger', '--json'])).stdout).models).toEqual([]);
});

it('an alias of two models that share a device worker is answered by either, and says which', async () => {
  const [first] = await gateways();
  const answer = await ask(first!.url!, key, 'assistant');
  expect(answer.status).toBe(200);
  expect(['one', 'two']).toContain(answer.headers.get('x-hpcserve-model'));
  expect(answer.headers.get('x-hpcserve-provider')).toMatch(/@local$/);
  expect((await ask(first!.url!, key, 'one', { 'x-hpcserve-qos': 'devices=gpu' })).status).toBe(404);
  const measured = join(home.folder, '.hpcserve/local/gateway-2/workload.json');
  await expect.poll(() => existsSync(measured), { timeout: 15_000 }).toBe(true);
});

it('a server that somebody runs by hand joins, answers, and leaves with Ctrl-C', async () => {
  const engine = join(packageRoot, 'test/agent/fixture-engine.mjs');
  const [gateway] = (await gateways()).filter(({ state }) => state === 'running');
  const [program = '', ...args] = hpcserveProgram;
  const running = spawn(
    program,
    [...args, 'run', '--model', 'by-hand', '--', process.execPath, engine, '{socket}'],
    { cwd: home.folder, env: { PATH: '/nowhere', HOME: home.folder }, stdio: ['ignore', 'ignore', 'pipe'] },
  );
  let said = '';
  running.stderr.on('data', (text: Buffer) => {
    said += text;
  });
  const ended = new Promise((resolve) => running.once('exit', (code) => resolve(code)));
  await expect.poll(() => said, { timeout: 20_000 }).toMatch(/by-hand serves on /);
  const answers = async (): Promise<string> => {
    const answer = await fetch(`${gateway!.url}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({
        model: 'by-hand',
        stream: true,
        messages: [{ role: 'user', content: 'count 3' }],
      }),
    });
    return answer.text();
  };
  await expect.poll(answers, { timeout: 10_000 }).toContain('[DONE]');
  running.kill('SIGINT');
  expect(await ended, said).toBe(0);
  await expect
    .poll(async () => (await ask(gateway!.url!, key, 'by-hand')).status, { timeout: 10_000 })
    .toBe(404);
  const wrong = await home.run(['run', '--model', 'by-hand', '--', 'true']);
  expect(wrong.code).not.toBe(0);
  expect(wrong.stderr).toMatch(/neither \{socket\} nor \{port\}/);
});

it('stop ends all of them', async () => {
  expect((await home.run(['gateway', 'stop', '2'])).code).toBe(0);
  expect((await gateways()).map(({ state }) => state)).toEqual(['running', 'not_running']);
  expect((await home.run(['gateway', 'start', '--number', '2'])).code).toBe(0);
  expect((await home.run(['gateway', 'stop', '7'])).code).toBe(2);
  expect((await home.run(['stop', '--all', '--yes'])).code).toBe(0);
  expect((await gateways()).map(({ state }) => state)).toEqual(['not_running', 'not_running']);
});
