/** A state folder whose owner's quota is full (real EDQUOT), on a real Slurm cluster. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { QuotaFolder } from '../cluster/quota-folder.ts';
import { ensureClusterUser } from '../cluster/user.ts';
import { UserHome } from '../cluster/user-home.ts';

const made = await QuotaFolder.make(12 * 1024 ** 2, ensureClusterUser());
const lacking = typeof made === 'string' ? ` [skipped: ${made}]` : '';

describe.skipIf(typeof made === 'string')(`a home whose quota is full${lacking}`, () => {
  const quota = made as QuotaFolder;
  let home: UserHome;
  let job_id: string;
  const hpcserve = (...argv: string[]) => home.hpcserve(...argv);
  const ask = () => hpcserve('chat', 'tiny', 'Hello', '--max-tokens', '4');
  const jobs = async (): Promise<string[]> => {
    const { stdout } = await home.run(['squeue', '--noheader', '--states=PD,R', '--format=%i']);
    return stdout.split('\n').filter((line) => line !== '');
  };
  const status = async () => JSON.parse((await hpcserve('status', 'demo', '--json')).stdout).deployments[0];
  const log = (process: string): string =>
    readFileSync(join(quota.path, `tight/${process}/${process}.log`), 'utf8');

  beforeAll(async () => {
    home = await UserHome.open({
      site: (shipped) =>
        shipped
          .replace('name: test-cluster', 'name: tight')
          .replace('state_dir: ~/.hpcserve', `state_dir: ${quota.path}`),
    });
    const model = { name: 'tiny', source: './toy.gguf', cpu_threads: 1, context_tokens: 512 };
    home.write('model.yaml', { name: 'demo', models: [{ ...model, devices: { kind: 'gpu' } }] });
  });
  afterEach(() => quota.free());
  afterAll(async () => {
    await home?.close();
    quota.dispose();
  }, 120_000);

  it('takes no deployment: it says that it is the quota, and leaves nothing behind', async () => {
    quota.fill();
    const { code, stderr } = await hpcserve('deploy', '--yes', 'model.yaml');
    expect(code).toBe(12);
    expect(stderr).toMatch(/because: EDQUOT: disk quota exceeded/);
    expect(stderr).toMatch(/try: see your quota with: quota -s .*lfs quota/);
    expect(stderr).toMatch(/try: put what grows onto another filesystem: state_dir/);
    expect(await jobs()).toEqual([]);
    const checked = await hpcserve('doctor');
    expect(checked.stdout).toMatch(/FAILED +state folder: .*disk quota exceeded.*\n +try: see your quota/);
    quota.free();
    expect(readdirSync(quota.path)).toEqual([]);
  }, 120_000);

  it('goes on with what runs and answers; what the ledger could not take is in it once there is room', async () => {
    const deployed = await hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '60s');
    expect(deployed.code, deployed.stderr).toBe(0);
    expect((await ask()).code).toBe(0);
    ({ job_id } = (await status()).launches[0]);
    const keeper = /keeper: process (\d+)/.exec((await hpcserve('status')).stdout)?.[1];
    quota.fill();
    // The first one finds out while it is answered, the second waits with it.
    for (let asked = 0; asked < 2; asked++) expect((await ask()).code).toBe(0);
    const now = await hpcserve('status');
    expect(now.stdout).toMatch(/gateway of tight: running/);
    expect(now.stdout).toContain(`keeper: process ${keeper} `);
    expect(now.stdout).toMatch(/1 of 1 replicas serve/);
    expect((await hpcserve('nodes')).stdout).toMatch(/ tiny /);
    const stopped = await hpcserve('stop', 'demo');
    expect(stopped.code).toBe(12);
    expect(stopped.stderr).toMatch(/quota.*\[E_FILESYSTEM\][\s\S]*scancel/);
    expect(await jobs()).toEqual([job_id]);
    quota.free();
    await expect.poll(async () => (await ask()).code, { timeout: 30_000 }).toBe(0);
    // What could not be written meanwhile is, once: that it was so is in the log, which tries again each second.
    await expect.poll(() => log('gateway'), { timeout: 5000 }).toMatch(/"ledger cannot be written"/);
    await expect.poll(() => log('gateway'), { timeout: 5000 }).toMatch(/"ledger can be written again"/);
    const gaps = await hpcserve('usage', 'sql', 'SELECT sum(requests) >= 1, max(reason) FROM gaps', '--csv');
    expect(gaps.stdout).toMatch(/\n1,.*cannot be written/);
  }, 120_000);

  it('submits nothing that cannot be written down; the job that ended is replaced when it can be', async () => {
    quota.fill();
    await home.run(['scancel', job_id]);
    await expect.poll(async () => (await status()).phase, { timeout: 30_000 }).not.toBe('serving');
    // Two rounds of the keeper.
    await new Promise((resolve) => setTimeout(resolve, 2500));
    expect(await jobs()).toEqual([]);
    quota.free();
    await expect.poll(jobs, { timeout: 30_000 }).toHaveLength(1);
    await expect.poll(async () => (await ask()).code, { timeout: 30_000 }).toBe(0);
    expect(log('keeper')).toMatch(/quota/);
    expect((await hpcserve('stop', 'demo')).code).toBe(0);
    expect(await jobs()).toEqual([]);
  }, 120_000);

  it('says what a job lacks that Slurm could not start, for its log could not be made', async () => {
    const partitions = async (state: string): Promise<void> => {
      for (const name of ['gh200', 'a100'])
        await home.cluster.runAs('root', ['scontrol', 'update', `partitionname=${name}`, `state=${state}`]);
    };
    await partitions('DOWN');
    let full: NodeJS.Timeout | undefined;
    try {
      const deploying = hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '30s');
      await expect.poll(jobs, { timeout: 30_000 }).toHaveLength(1);
      // Then it has written what it writes before its job starts.
      const [job] = await jobs();
      const state = (): string =>
        readFileSync(join(quota.path, 'tight/deployments/demo/deployment.json'), 'utf8');
      await expect.poll(() => JSON.parse(state()).launches[0].job_id, { timeout: 20_000 }).toBe(job);
      quota.fill();
      // What `deploy` gives back when it ends, its lock, is room enough for a log.
      full = setInterval(() => quota.fill(), 200);
      await partitions('UP');
      const { code, stderr } = await deploying;
      expect(code).toBe(12);
      expect(stderr).toMatch(/disk quota exceeded/);
      expect((await hpcserve('status')).stdout).toMatch(/ended: FAILED.*log.*quota/);
    } finally {
      clearInterval(full);
      await partitions('UP');
    }
    quota.free();
    const again = await hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '60s');
    expect(again.code, again.stderr).toBe(0);
    expect(existsSync(join(quota.path, 'tight/deployments/demo/deployment.json'))).toBe(true);
  }, 120_000);
});
