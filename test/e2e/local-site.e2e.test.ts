/** The whole way on a machine without Slurm: real gateway, real node agents, real engine, typed commands. */
import { mkdirSync, readFileSync, renameSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { processesWithArgument } from '../../host/process-identity.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import { type Home, temporaryHome } from '../cli/support.ts';

let home: Home;
const deployed = (stdout: string): { url: string; key: string; models: string[]; serving: boolean } =>
  JSON.parse(stdout.trim().split('\n').at(-1)!);
/** Our processes that belong to this home. */
const left = (): number[] =>
  processesWithArgument((argument) => argument.includes(`${home.folder}/.hpcserve/`));

beforeAll(async () => {
  home = temporaryHome();
  const { code, stderr } = await home.run([
    'model',
    'synth',
    'toy.gguf',
    '--preset',
    'tiny-llama',
    '--seed',
    '1',
  ]);
  expect(code, stderr).toBe(0);
  write(2);
});
afterAll(async () => {
  await home.run(['stop', '--all', '--yes']);
  home.dispose();
});

function write(replicas: number, source = './toy.gguf', extra = ''): void {
  writeFileSync(
    join(home.folder, 'model.yaml'),
    `name: demo\nmodels:\n  - name: tiny\n    source: ${source}\n    replicas: ${replicas}\n    cpu_threads: 1\n    context_tokens: 512\n    max_sequences: 4\n${extra}`,
  );
}

const jobs = async (): Promise<string[]> => {
  const { deployments } = JSON.parse((await home.run(['status', '--json'])).stdout);
  return deployments[0].launches.map((launch: { job_id: string }) => launch.job_id);
};

describe('the local site', () => {
  let url: string;
  let key: string;

  it('deploys, tells its progress on stderr, and prints URL and key on stdout', async () => {
    const { code, stdout, stderr } = await home.run(['deploy', '--yes', 'model.yaml', '--timeout', '60s']);
    expect(code, stderr).toBe(0);
    expect(stdout).toMatch(/^URL +http:\/\/127\.0\.0\.1:\d+\/v1\nkey +hsk-\w+\nmodels +tiny\n$/);
    expect(stderr).toMatch(
      /planned: 2 replicas in 2 jobs[\s\S]*agent up[\s\S]*tiny serves on[\s\S]*serving tiny at/,
    );
    [, url] = /URL +(\S+)/.exec(stdout) as unknown as [string, string];
    [, key] = /key +(\S+)/.exec(stdout) as unknown as [string, string];
    expect(stderr).not.toContain(key);
  });

  it('answers the official client, streaming', async () => {
    const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
    const stream = await client.chat.completions.create({
      model: 'tiny',
      stream: true,
      max_tokens: 8,
      messages: [{ role: 'user', content: 'Hello' }],
    });
    let finish: string | null | undefined;
    let chunks = 0;
    for await (const chunk of stream) {
      chunks++;
      finish = chunk.choices[0]?.finish_reason ?? finish;
    }
    expect(chunks).toBeGreaterThan(1);
    expect(finish).toMatch(/length|stop/);
  });

  it('shows, asks, lists and sums up', async () => {
    const status = JSON.parse((await home.run(['status', 'demo', '--json'])).stdout);
    expect(status.deployments[0]).toMatchObject({
      phase: 'serving',
      replicas_serving: 2,
      replicas_wanted: 2,
    });
    expect((await home.run(['chat', 'tiny', 'Hi', '--max-tokens', '4'])).code).toBe(0);
    expect((await home.run(['models', '--json'])).stdout).toContain('"tiny"');
    expect((await home.run(['endpoint'])).stdout).toBe(`${url}\n`);
    expect((await home.run(['usage', '--by', 'model', '--since', '1h', '--csv'])).stdout).toMatch(
      /\ntiny,[2-9],0,/,
    );
    expect((await home.run(['logs', 'demo', '--tail', '3'])).stdout).toMatch(/^agent /m);
    expect((await home.run(['chat', 'absent', 'Hi'])).stderr).toMatch(/404[\s\S]*there is tiny/);
  });

  it('keeps the key for its owner alone, and makes and revokes others', async () => {
    const file = join(home.folder, '.config/hpcserve/credentials.json');
    expect(statSync(file).mode & 0o777).toBe(0o600);
    expect(readFileSync(file, 'utf8')).toContain(key);
    const copy = join(home.folder, '.hpcserve/local/deployments/demo/model.yaml');
    expect(statSync(copy).mode & 0o777).toBe(0o600);
    const made = JSON.parse((await home.run(['keys', 'create', 'alice', '--json'])).stdout);
    const env = { HPCSERVE_API_KEY: made.key };
    expect((await home.run(['models'], { env })).code).toBe(0);
    expect((await home.run(['keys', 'revoke', made.id])).code).toBe(0);
    const refused = await home.run(['models'], { env });
    expect(refused.code).toBe(12);
    expect(refused.stderr).toMatch(/401/);
  });

  it('does nothing when deployed again unchanged', async () => {
    const before = await jobs();
    const { code, stdout } = await home.run(['deploy', '--yes', 'model.yaml', '--json']);
    expect(code).toBe(0);
    expect(deployed(stdout)).toMatchObject({ url, key, models: ['tiny'], serving: true });
    expect(await jobs()).toEqual(before);
  });

  it('keeps the replicas that stay when their number changes', async () => {
    const before = await jobs();
    write(1);
    expect((await home.run(['deploy', '--yes', 'model.yaml', '--yes'])).code).toBe(0);
    expect(await jobs()).toEqual(before.slice(0, 1));
  });

  it('a change that fails is taken back, and the version before goes on', async () => {
    const before = await jobs();
    write(1, './toy.gguf', '    engine: command\n    command: [/bin/false, "{port}"]\n');
    const failed = await home.run(['deploy', '--yes', 'model.yaml', '--yes']);
    expect(failed.code, failed.stderr).not.toBe(0);
    expect(await jobs()).toEqual(before);
    expect((await home.run(['chat', 'tiny', 'Hi', '--max-tokens', '2'])).code).toBe(0);
    write(1);
    expect((await home.run(['deploy', '--yes', 'model.yaml'])).stderr).toMatch(/unchanged/);
  });

  it('replaces an agent that is killed without being asked, under the same URL, and says so in its log', async () => {
    const report = async (): Promise<{
      phase: string;
      launches: { launch_id: string; job_id: string; nodes: { node: string }[] }[];
    }> => JSON.parse((await home.run(['status', '--json'])).stdout).deployments[0];
    const [first] = (await report()).launches;
    const { launch_id, job_id: before } = first!;
    const launch = join(home.folder, '.hpcserve/local/deployments/demo/launches', launch_id);
    const said = readFileSync(join(launch, launchFiles.agentState(first!.nodes[0]!.node)), 'utf8');
    process.kill((JSON.parse(said) as AgentState).pid, 'SIGKILL');
    await expect
      .poll(
        async () => {
          const { phase, launches } = await report();
          return phase === 'serving' && launches.every(({ job_id }) => job_id !== before);
        },
        { timeout: 20_000 },
      )
      .toBe(true);
    const log = readFileSync(join(home.folder, '.hpcserve/local/keeper/keeper.log'), 'utf8');
    expect(log).toMatch(/"kind":"kept".*its job ended: .*killed/);
    // That it serves is written down a moment before the gateway has found it.
    await expect
      .poll(async () => (await home.run(['models', '--json'])).stdout, { timeout: 20_000 })
      .toContain('"tiny"');
    expect((await home.run(['chat', 'tiny', 'Hi', '--max-tokens', '2'])).code).toBe(0);
    const again = await home.run(['deploy', '--yes', 'model.yaml', '--json']);
    expect(again.code, again.stderr).toBe(0);
    expect(deployed(again.stdout)).toMatchObject({ url, key });
  });

  it('says so when the rendezvous folder is gone', async () => {
    const mesh = join(home.folder, '.hpcserve/local/mesh');
    renameSync(mesh, `${mesh}.away`);
    const { deployments } = JSON.parse((await home.run(['status', '--json'])).stdout);
    expect(deployments[0].reasons.join()).toMatch(/rendezvous folder .* is gone/);
    rmSync(mesh, { recursive: true, force: true });
    renameSync(`${mesh}.away`, mesh);
  });

  it('refuses a plan that went stale', async () => {
    expect((await home.run(['plan', 'model.yaml', '--out', 'plan.json'])).code).toBe(0);
    expect((await home.run(['deploy', '--yes', 'model.yaml', '--plan', 'plan.json'])).code).toBe(0);
    write(
      1,
      './toy.gguf',
      '    max_sequences: 2\n'.replace('max_sequences', 'prefill_chunk_tokens').replace(' 2', ' 64'),
    );
    const stale = await home.run(['deploy', '--yes', 'model.yaml', '--plan', 'plan.json']);
    expect(stale.code).toBe(10);
    expect(stale.stderr).toMatch(/E_PLAN_STALE/);
    write(1);
  });

  it('renders what it runs', async () => {
    const { launches } = JSON.parse((await home.run(['status', '--json'])).stdout).deployments[0];
    const { stdout } = await home.run(['render', 'model.yaml']);
    expect(stdout).toBe(
      readFileSync(
        join(home.folder, '.hpcserve/local/deployments/demo/launches', launches[0].launch_id, 'job.sh'),
        'utf8',
      ),
    );
  });

  it('leaves no process after stop, and stopping again is no error', async () => {
    expect(left().length).toBeGreaterThan(0);
    expect((await home.run(['stop', 'demo'])).code).toBe(0);
    expect(left()).toEqual([]);
    expect((await home.run(['stop', 'demo'])).code).toBe(0);
    const { deployments, gateway } = JSON.parse((await home.run(['status', '--json'])).stdout);
    expect(deployments[0].phase).toBe('stopped');
    expect(gateway.state).toBe('not_running');
  });

  it('refuses damaged and too large models before anything starts', async () => {
    const cut = join(home.folder, 'cut.gguf');
    writeFileSync(cut, readFileSync(join(home.folder, 'toy.gguf')));
    truncateSync(cut, 50_000);
    write(1, './cut.gguf');
    const damaged = await home.run(['deploy', '--yes', 'model.yaml']);
    expect(damaged.code).toBe(4);
    expect(damaged.stderr).toMatch(/E_MODEL_CUT_OFF/);
    mkdirSync(join(home.folder, 'sites'));
    writeFileSync(
      join(home.folder, 'sites', 'small.yaml'),
      'name: small\nkind: local\nnode_kinds:\n  - {name: tiny-node, memory_gb: 0.05, devices: [{kind: cpu, model: Tiny, count: 1, memory_gb: 0.05}]}\n',
    );
    write(1);
    const large = await home.run(['deploy', '--yes', 'model.yaml', '--site', './sites/small.yaml']);
    expect(large.code).toBe(5);
    expect(large.stderr).toMatch(/needs \d+ MiB on each of 1 device.*Tiny has 48 MiB/);
    expect(left()).toEqual([]);
  });
});
