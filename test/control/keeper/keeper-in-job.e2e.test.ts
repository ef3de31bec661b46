/** Where login nodes forbid processes that stay: keeper and gateway in one small job, which renews itself. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { holderOf } from '../../../host/lock-state.ts';
import type { CommandResult } from '../../../slurm/command-runner.ts';
import type { Cluster } from '../../cluster/cluster.ts';
import { UserHome } from '../../cluster/user-home.ts';

let home: UserHome;
let cluster: Cluster;
let folder: string;

beforeAll(async () => {
  home = await UserHome.open({
    site: (shipped) =>
      `${shipped
        .replace(/^name: .*/m, 'name: kept')
        .replace(
          /place: login/,
          'place: job\n  partition: cpu\n  cpus: 1\n  memory_gb: 1\n  time_limit: 00:20:00',
        )}\nkeeper: { place: job }\n`,
  });
  ({ cluster, folder } = home);
});
afterAll(() => home?.close());

const hpcserve = (...argv: string[]): Promise<CommandResult> => home.hpcserve(...argv);

const state = (path: string): Record<string, unknown> =>
  JSON.parse(readFileSync(join(folder, '.hpcserve/kept', path), 'utf8'));
/** The job a process runs in; undefined on the login node, and where it is gone. */
function jobOf(pid: unknown): string | undefined {
  try {
    return /(?:^|\0)SLURM_JOB_ID=(\d+)/.exec(readFileSync(`/proc/${pid}/environ`, 'utf8'))?.[1];
  } catch (error) {
    if (['ENOENT', 'ESRCH'].includes((error as NodeJS.ErrnoException).code ?? '')) return undefined;
    throw error;
  }
}
/** As far as they are there; files come and go while jobs change. */
function tried<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT' || error instanceof SyntaxError) return undefined;
    throw error;
  }
}
const keeperJob = (): string | undefined => jobOf(holderOf(join(folder, '.hpcserve/kept/keeper/lock'))?.pid);
const gatewayPid = (): unknown => tried(() => state('gateway/endpoint.json').pid);
const gatewayJob = (): string | undefined =>
  tried(() => state('gateway/gateway-job.json').job_id as string | undefined);

const replicas = async (): Promise<{ phase: string; jobs: string[] }> => {
  const { stdout } = await hpcserve('status', 'kept-demo', '--json');
  const { phase, launches } = JSON.parse(stdout).deployments[0];
  return { phase, jobs: launches.map((launch: { job_id: string }) => launch.job_id) };
};
const answers = async (): Promise<boolean> =>
  (await hpcserve('chat', 'tiny', 'Hello', '--max-tokens', '2')).code === 0;

describe('a keeper in the gateway’s job', () => {
  it('is there once something is deployed, and nothing stays on the login node', async () => {
    home.write('model.yaml', {
      name: 'kept-demo',
      models: [
        {
          name: 'tiny',
          source: './toy.gguf',
          cpu_threads: 1,
          context_tokens: 512,
          max_sequences: 4,
          devices: { kind: 'gpu' },
        },
      ],
    });
    const deployed = await hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '100s');
    expect(deployed.code, deployed.stdout + deployed.stderr).toBe(0);
    await expect.poll(keeperJob, { timeout: 30_000 }).toBe(gatewayJob());
    expect(jobOf(gatewayPid())).toBe(gatewayJob());
    const { stdout } = await cluster.runAs('user', ['ps', '-u', cluster.user.name, '-o', 'pid=,args=']);
    const ours = stdout.split('\n').filter((line) => line.includes(folder));
    // Keeper and gateway at least.
    expect(ours.length).toBeGreaterThan(1);
    for (const line of ours) {
      const [pid] = line.trim().split(' ');
      // What one of them starts has its command line for a moment, and may be gone by now.
      expect(jobOf(pid) !== undefined || !existsSync(`/proc/${pid}`), line).toBe(true);
    }
  }, 150_000);

  it('replaces a job that ends', async () => {
    const [first] = (await replicas()).jobs;
    await cluster.runAs('user', ['scancel', first!]);
    await expect
      .poll(
        async () => {
          const { phase, jobs } = await replicas();
          return phase === 'serving' && !jobs.includes(first!);
        },
        { timeout: 90_000, interval: 1000 },
      )
      .toBe(true);
  }, 150_000);

  it('starts a gateway that dies again', async () => {
    const pid = gatewayPid();
    process.kill(Number(pid), 'SIGKILL');
    await expect
      .poll(() => ![undefined, pid].includes(gatewayPid() as number), { timeout: 60_000 })
      .toBe(true);
    await expect.poll(answers, { timeout: 60_000, interval: 1000 }).toBe(true);
    expect(jobOf(gatewayPid())).toBe(gatewayJob());
  }, 150_000);

  it('renews its own job when Slurm warns of the time limit', async () => {
    const job = gatewayJob();
    await cluster.runAs('user', ['scancel', '--batch', '--signal=USR1', String(job)]);
    await expect.poll(() => ![undefined, job].includes(gatewayJob()), { timeout: 60_000 }).toBe(true);
    const successor = gatewayJob();
    await expect.poll(() => jobOf(gatewayPid()), { timeout: 90_000 }).toBe(successor);
    await expect.poll(keeperJob, { timeout: 90_000 }).toBe(successor);
    await expect.poll(answers, { timeout: 60_000, interval: 1000 }).toBe(true);
    const { stdout } = await cluster.runAs('user', ['squeue', '--noheader', '--format=%i', '--states=R,PD']);
    expect(stdout.split('\n')).not.toContain(job);
    // The warning reaches every process of the job: none opens a debugger for it.
    expect(readFileSync(join(folder, '.hpcserve/kept/gateway/gateway.log'), 'utf8')).not.toContain(
      'Debugger',
    );
  }, 300_000);

  it('comes back with the next deploy when its job is cancelled by hand', async () => {
    const job = gatewayJob();
    const { jobs } = await replicas();
    await cluster.runAs('user', ['scancel', String(job)]);
    await expect
      .poll(async () => (await cluster.runAs('user', ['squeue', '--noheader', '--format=%i'])).stdout, {
        timeout: 60_000,
      })
      .not.toMatch(new RegExp(`^${job}$`, 'm'));
    expect(await answers()).toBe(false);
    const deployed = await hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '100s');
    expect(deployed.code, deployed.stdout + deployed.stderr).toBe(0);
    expect(gatewayJob()).not.toBe(job);
    await expect.poll(keeperJob, { timeout: 90_000 }).toBe(gatewayJob());
    expect(jobOf(gatewayPid())).toBe(gatewayJob());
    expect(await answers()).toBe(true);
    // What it looks after went on meanwhile.
    expect((await replicas()).jobs).toEqual(jobs);
  }, 300_000);

  it('goes with the last deployment', async () => {
    const stopped = await hpcserve('stop', 'kept-demo');
    expect(stopped.code, stopped.stderr).toBe(0);
    const { stdout } = await cluster.runAs('user', [
      'squeue',
      '--noheader',
      '--states=R,PD,CG',
      '--format=%j %Z',
    ]);
    // The cluster may be shared with another run of tests.
    expect(stdout.split('\n').filter((line) => line.includes(folder))).toEqual([]);
  }, 150_000);
});
