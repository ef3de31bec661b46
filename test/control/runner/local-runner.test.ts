import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { PreparedLaunch } from '../../../control/runner/job-runner.ts';
import { JoinedNodeRunner } from '../../../control/runner/joined-runner.ts';
import { LocalRunner } from '../../../control/runner/local-runner.ts';
import type { JobSnapshot } from '../../../control/state/job-snapshot.ts';
import { childrenOf, processesOfSession } from '../../../host/process-identity.ts';
import { readProcessors } from '../../../host/processors.ts';
import { waitUntil } from '../../../host/wait-until.ts';
import { cacheEnvironment } from '../../../spec/cache-environment.ts';
import type { LaunchSpec } from '../../../spec/launch.ts';
import { stateLayout } from '../../../spec/state-layout.ts';
import { plannedLaunch } from '../support.ts';

let folder: string;
const launch_id = '0123456789abcdef';
beforeEach(() => {
  folder = join(mkdtempSync(join(tmpdir(), "hpcserve-run'$(x) ")), launch_id);
  mkdirSync(folder);
});
afterEach(() => rmSync(dirname(folder), { recursive: true, force: true }));

/** A stand-in for the agent: a script of Node with a life of its own. */
function runnerOf(script: string): { runner: LocalRunner; prepared: PreparedLaunch } {
  const program = join(folder, 'program.cjs');
  writeFileSync(program, script);
  const launch_file = join(folder, 'launch.json');
  writeFileSync(launch_file, '{}');
  return {
    runner: new LocalRunner([process.execPath, program]),
    prepared: {
      launch: { launch_id } as LaunchSpec,
      planned: plannedLaunch('m-0'),
      launch_folder: folder,
      launch_file,
    },
  };
}

async function ended(runner: LocalRunner, job_id: string): Promise<JobSnapshot> {
  const snapshot = await waitUntil(
    async () => {
      const now = (await runner.poll([{ job_id, launch_folder: folder }])).get(job_id)!;
      return now.phase === 'ended' ? now : undefined;
    },
    { timeout_ms: 10_000, interval_ms: 20 },
  );
  if (!snapshot) throw new Error('the job did not end');
  return snapshot;
}

const sleeper = `process.on('SIGTERM', () => { console.log('bye'); process.exit(0); }); setInterval(() => {}, 1000); console.log('up');`;

async function up(): Promise<void> {
  const log = join(folder, 'job.log');
  await waitUntil(() => (readFileSync(log, 'utf8').includes('up') ? true : undefined), {
    timeout_ms: 10_000,
    interval_ms: 20,
  });
}

it('reports the exit code of an agent that ended by itself', async () => {
  const { runner, prepared } = runnerOf('console.error("no model"); process.exit(4);');
  const { job_id } = await runner.submit(prepared);
  expect(await ended(runner, job_id)).toMatchObject({ state: 'FAILED', exit_code: 4 });
  expect(readFileSync(join(folder, 'job.log'), 'utf8')).toContain('no model');
});

it('gives agents the caches of the site, where the person has not set them', async () => {
  const { prepared } = runnerOf('console.log(process.env.TRITON_CACHE_DIR, process.env.HF_HOME);');
  vi.stubEnv('HF_HOME', '/mine');
  vi.stubEnv('TRITON_CACHE_DIR', undefined);
  const program = [process.execPath, join(folder, 'program.cjs')];
  const runner = new LocalRunner(program, cacheEnvironment('/scratch/cache/'));
  const { job_id } = await runner.submit(prepared);
  await ended(runner, job_id);
  vi.unstubAllEnvs();
  expect(readFileSync(join(folder, 'job.log'), 'utf8')).toBe('/scratch/cache/triton /mine\n');
});

it('is found by its launch id from the first moment, followed by another runner, and ends in order', async () => {
  const { runner, prepared } = runnerOf(sleeper);
  const { job_id } = await runner.submit(prepared);
  await up();
  const other = new LocalRunner();
  expect(await other.find(launch_id)).toEqual([job_id]);
  rmSync(join(folder, 'process.json'));
  const job = { job_id, launch_folder: folder };
  expect((await other.poll([job])).get(job_id)).toMatchObject({ phase: 'running' });
  await other.cancel(job);
  expect(await ended(other, job_id)).toMatchObject({ state: 'COMPLETED', exit_code: 0 });
  expect(readFileSync(join(folder, 'job.log'), 'utf8')).toContain('bye');
  expect(processesOfSession(Number(job_id.slice(1)))).toEqual([]);
});

it('tells a killed agent, and kills what does not listen', async () => {
  const { runner, prepared } = runnerOf(
    `process.on('SIGTERM', () => {}); setInterval(() => {}, 1000); console.log('up');`,
  );
  const { job_id } = await runner.submit(prepared);
  await up();
  const job = { job_id, launch_folder: folder };
  await runner.cancel(job);
  expect((await runner.poll([job])).get(job_id)).toMatchObject({ phase: 'running' });
  const [agent] = childrenOf(Number(job_id.slice(1)));
  process.kill(agent!, 'SIGKILL');
  expect(await ended(runner, job_id)).toMatchObject({
    state: 'FAILED',
    signal: 9,
    reason: expect.stringMatching(/killed/),
  });
  await runner.cancel(job, { force: true });
});

it('does not take another process with the same pid for its own', async () => {
  const { runner } = runnerOf(sleeper);
  writeFileSync(
    join(folder, 'process.json'),
    JSON.stringify({
      pid: process.pid,
      start_ticks: 1,
      boot_id: 'other',
      host: (await import('node:os')).hostname(),
      started_at_ms: 0,
    }),
  );
  const job_id = `p${process.pid}`;
  const snapshot = (await runner.poll([{ job_id, launch_folder: folder }])).get(job_id);
  expect(snapshot).toMatchObject({ phase: 'ended', state: 'LOST' });
  await runner.cancel({ job_id, launch_folder: folder });
});

it('gives launches cores that no other has, and none where too few are left', async () => {
  const { runner, prepared } = runnerOf(sleeper);
  const all = readProcessors().allowed_cores;
  const cpus = (cpus_per_node: number) => ({ ...prepared.planned, cpus_per_node });
  // Agents of other suites have cores of this machine, too, and come and go: on two cores all may be taken for minutes.
  const before = await vi.waitFor(
    () => {
      const free = runner.freeCores(cpus(1));
      if (free === undefined) throw new Error('every core is given to an agent that runs here');
      return free;
    },
    { timeout: 120_000 },
  );
  writeFileSync(prepared.launch_file, JSON.stringify({ cores: before }));
  const { job_id } = await runner.submit(prepared);
  await up();
  // Another runner sees them too: those of the agent are taken as long as it runs.
  expect(new LocalRunner().freeCores(cpus(1))?.[0]).not.toBe(before[0]);
  expect(new LocalRunner().freeCores(cpus(all.length))).toBeUndefined();
  await runner.cancel({ job_id, launch_folder: folder });
  await ended(runner, job_id);
  await expect.poll(() => new LocalRunner().freeCores(cpus(1)), { timeout: 30_000 }).toEqual(before);
  // Behind the runner that knows of joined nodes, whose cores are on another machine.
  const wrapped = new JoinedNodeRunner(runner, stateLayout(folder, 'local'));
  await expect.poll(() => wrapped.freeCores(cpus(1)), { timeout: 30_000 }).toEqual(before);
  expect(wrapped.freeCores({ ...cpus(1), node_kind: 'joined-n1' })).toBeUndefined();
}, 600_000);
