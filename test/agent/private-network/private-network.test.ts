/**
 * Engines that answer some of their paths without a key: behind a real agent, on a network of their own, where nobody
 * else on the node reaches them. By stand-ins that listen and check keys as vLLM and TGI do.
 */
import { spawnSync } from 'node:child_process';
import { chmod, mkdir, readFile, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { withPrivateNetwork } from '../../../agent/private-network/plan.ts';
import { type RunningAgent, Site, unitOf } from '../support.ts';

const rules = fileURLToPath(new URL('../adapters/vllm-rules.mjs', import.meta.url));
const permitted = spawnSync('unshare', ['--map-root-user', '--net', '--', 'true']).status === 0;
const root = process.getuid?.() === 0;

/** vLLM before --uds, and TGI. */
async function installed(site: Site): Promise<Record<string, string>> {
  const folder = join(site.folder, 'installed');
  const bin = join(folder, 'bin');
  await mkdir(join(folder, 'vllm/entrypoints/openai'), { recursive: true });
  await mkdir(join(folder, 'vllm-0.8.0.dist-info'));
  await writeFile(join(folder, 'vllm-0.8.0.dist-info/METADATA'), 'Name: vllm\nVersion: 0.8.0\n');
  await writeFile(join(folder, 'vllm/__init__.py'), '');
  await mkdir(bin);
  const launcher = `case $1 in
--version) echo text-generation-launcher 3.0.0;;
--help) grep -o '"--[a-z-]*"' "$0" | tr -d '"'; : "--model-id" "--hostname" "--port" "--num-shard" "--max-total-tokens" "--max-input-tokens" "--dtype" "--shard-uds-path" "--usage-stats" "--max-batch-prefill-tokens";;
*) VLLM_API_KEY=$API_KEY exec '${process.execPath}' '${rules}' "$@";;
esac`;
  const programs = {
    vllm: `exec '${process.execPath}' '${rules}' "$@"`,
    'text-generation-launcher': launcher,
  };
  for (const [name, script] of Object.entries(programs)) {
    await writeFile(join(bin, name), `#!/bin/sh\n${script}\n`);
    await chmod(join(bin, name), 0o755);
  }
  return { PATH: `${bin}${delimiter}${process.env.PATH}`, PYTHONPATH: folder };
}

/** What anybody on the node is told at a port of its loopback: as another user, where the tests may become one. */
function askAsAnybody(port: number): string {
  const script = `
    const http = require('node:http');
    http.request({ port: Number(process.argv[1]), host: '127.0.0.1', path: '/invocations', method: 'POST' }, (answer) => {
      console.log(answer.statusCode); answer.resume();
    }).on('error', (error) => console.log(error.code)).end('{}');`;
  const as = root ? { uid: 65_534, gid: 65_534 } : {};
  const { stdout } = spawnSync(process.execPath, ['-e', script, String(port)], {
    ...as,
    cwd: '/',
    encoding: 'utf8',
  });
  return stdout.trim();
}

const portIn = (line: string): number => Number(/\0--port\0(\d+)\0/.exec(line)![1]);

async function childOf(agent: RunningAgent, pid: number): Promise<string> {
  const children = (await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8')).trim().split(' ');
  expect(agent.process.exitCode).toBeNull();
  return readFile(`/proc/${children[0]}/cmdline`, 'utf8');
}

const needed = permitted ? '' : ' [skipped: needs user namespaces]';
describe.skipIf(!permitted)(`in a network of its own${needed}`, () => {
  test.each(['vllm', 'tgi'] as const)(
    '%s serves, and nobody else on the node reaches its port',
    async (engine) => {
      await using site = await Site.open();
      const agent = await site.start([unitOf({ name: 'm' }, { engine })], {}, await installed(site));
      const record = await site.serving('m', 30_000);
      const answer = await site.ask(record, 'x');
      expect(await answer.body.json()).toMatchObject({ choices: [{ message: { content: 'awake' } }] });
      const pid = await agent.pidOf(record);
      expect(askAsAnybody(portIn(await childOf(agent, pid)))).toBe('ECONNREFUSED');
      // Its key is in no argument, of the plan neither.
      expect(await readFile(`/proc/${pid}/cmdline`, 'utf8')).toContain('plan.json');
      agent.process.kill('SIGTERM');
      expect(await agent.ended).toEqual({ code: 0, signal: null });
    },
  );
});

test('where the node permits none, it serves on a port with its key, and the agent says what is open', async () => {
  await using site = await Site.open();
  const environment = await installed(site);
  const bin = join(site.folder, 'installed/bin');
  await writeFile(join(bin, 'unshare'), '#!/bin/sh\necho "unshare: Operation not permitted" >&2; exit 1\n');
  await chmod(join(bin, 'unshare'), 0o755);
  const agent = await site.start([unitOf({ name: 'm' }, { engine: 'vllm' })], {}, environment);
  const record = await site.serving('m', 30_000);
  expect((await site.ask(record, 'x')).statusCode).toBe(200);
  const line = await readFile(`/proc/${await agent.pidOf(record)}/cmdline`, 'utf8');
  expect(askAsAnybody(portIn(line))).toBe('200');
  const log = await readFile(join(agent.launch.launch_folder, 'n0.agent.log'), 'utf8');
  expect(log).toMatch(/vllm listens on a port of the node, where anybody on it may ask for \/invocations/);
});

test('the command line as a plan; one that listens on a socket stays as it is', () => {
  const line = {
    argv: ['text-generation-launcher', '--port', '40123'],
    env: { API_KEY: 'k' },
    listen: { kind: 'loopback' as const, port: 40_123 },
    files: [{ path: '/run/u0-0/other', content: 'x' }],
    links: [],
    cwd: '/run/u0-0/models',
  };
  expect(withPrivateNetwork(line, '/run/u0-0')).toEqual({
    ...line,
    argv: [
      ...['unshare', '--map-root-user', '--net', '--', process.execPath],
      expect.stringMatching(/\/dist\/agent\/private-network\/main\.js$/),
      '/run/u0-0/plan.json',
    ],
    listen: { kind: 'socket', path: '/run/u0-0/engine.sock' },
    files: [
      ...line.files,
      {
        path: '/run/u0-0/plan.json',
        content: JSON.stringify({
          socket: '/run/u0-0/engine.sock',
          port: 40_123,
          serve: line.argv,
          first: [],
        }),
      },
    ],
  });
  const socket = { ...line, listen: { kind: 'socket' as const, path: '/run/u0-0/s' } };
  expect(withPrivateNetwork(socket, '/run/u0-0')).toBe(socket);
});
