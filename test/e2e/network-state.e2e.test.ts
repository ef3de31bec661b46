/** A state folder on a network filesystem whose server is away for some seconds, on a real Slurm cluster. */
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { filesystemOf } from '../../host/filesystem.ts';
import { NetworkFolder, sshfsLacking } from '../cluster/network-folder.ts';
import { ensureClusterUser } from '../cluster/user.ts';
import { UserHome } from '../cluster/user-home.ts';

const missing = await sshfsLacking();
const lacking = missing === '' ? '' : ` [skipped: ${missing}]`;
/** Longer than heartbeats are apart, shorter than anybody is given up for. */
const away_ms = 8000;

describe.skipIf(missing !== '')(`a state folder on sshfs${lacking}`, () => {
  let network: NetworkFolder;
  let home: UserHome;
  const hpcserve = (...argv: string[]) => home.hpcserve(...argv);
  const ask = (tokens = '4') => hpcserve('chat', 'tiny', 'Hello', '--max-tokens', tokens);
  const look = async (): Promise<{ gateway: string; keeper: string; jobs: string }> => {
    const { stdout } = await hpcserve('status');
    const [, gateway = ''] = /gateway of \S+: running at (\S+)/.exec(stdout) ?? [];
    const [, keeper = ''] = /keeper: process (\d+)/.exec(stdout) ?? [];
    const jobs = (await home.run(['squeue', '--noheader', '--states=R', '--format=%i'])).stdout;
    return { gateway, keeper, jobs };
  };

  beforeAll(async () => {
    network = await NetworkFolder.make(ensureClusterUser());
    home = await UserHome.open({
      site: (shipped) =>
        shipped
          .replace('name: test-cluster', 'name: shared')
          .replace('state_dir: ~/.hpcserve', `state_dir: ${network.path}`),
    });
    const model = { name: 'tiny', source: './toy.gguf', cpu_threads: 1, context_tokens: 512, replicas: 2 };
    home.write('model.yaml', { name: 'demo', models: [{ ...model, devices: { kind: 'gpu' } }] });
  });
  afterAll(async () => {
    network?.resume();
    await home?.close();
    await network?.dispose();
  }, 120_000);

  it('serves, goes on where it was after the server was away, and stops', async () => {
    expect(filesystemOf(network.path)).toMatchObject({ network: true });
    const deployed = await hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '90s');
    if (deployed.code !== 0) throw new Error(deployed.stderr + (await home.explain()));
    expect((await ask()).code).toBe(0);
    const before = await look();
    expect(before).toEqual({
      gateway: expect.stringMatching(/^http/),
      keeper: expect.stringMatching(/./),
      jobs: expect.stringMatching(/^\d+\n/),
    });

    const streaming = ask('200');
    network.interrupt();
    const asked = ask();
    await delay(away_ms);
    network.resume();
    for (const answer of await Promise.all([streaming, asked])) expect(answer.code, answer.stderr).toBe(0);
    // Nobody took the silence for an end: not the keeper, not the gateway, not who holds the locks.
    await expect.poll(async () => (await ask()).code, { timeout: 30_000 }).toBe(0);
    await delay(3000);
    expect(await look()).toEqual(before);
    expect((await hpcserve('usage')).stdout).toMatch(/tiny +[4-9] +0 /);

    const stopped = await hpcserve('stop', 'demo');
    expect(stopped.code, stopped.stderr).toBe(0);
    expect((await home.run(['squeue', '--noheader'])).stdout).toBe('');
  }, 240_000);
});
