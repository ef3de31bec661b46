/** Rendered scripts as real jobs: signals, exit codes, preemption, hostile values. */
import { chmodSync, chownSync, existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { SlurmCommandClient } from '../../slurm/client.ts';
import { launchOfComment } from '../../slurm/directives.ts';
import {
  buildJobScript,
  directivesOf,
  type JobScriptInput,
  renderJobScript,
} from '../../slurm/job-script.ts';
import type { JobInfo } from '../../spec/slurm-types.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { waitUntil } from '../cluster/processes.ts';
import { ClusterCommandRunner } from '../cluster/runner.ts';
import { acquireCluster, type ClusterLease } from '../cluster/shared.ts';
import { shippedSite } from './script-cases.ts';

let lease: ClusterLease;
let cluster: Cluster;
let client: SlurmCommandClient;
let folder: string;
beforeAll(async () => {
  lease = await acquireCluster();
  cluster = lease.cluster;
  client = new SlurmCommandClient(new ClusterCommandRunner(cluster));
  folder = mkdtempSync('/tmp/hpcserve-script-');
  chmodSync(folder, 0o755);
  chownSync(folder, cluster.user.uid, cluster.user.gid);
});
afterEach(async () => {
  await cluster?.cancelAllJobs();
});
afterAll(async () => {
  await lease?.release();
  if (folder !== undefined) rmSync(folder, { recursive: true, force: true });
});

const launch_id = '00112233445566aa';

/** A job whose task is a bash program; it must print for itself what happens to it. */
async function submit(
  program: string,
  options: {
    kind?: string;
    nodes?: number;
    gpus?: number;
    log?: string;
    args?: string[];
    change?: (input: JobScriptInput) => void;
  } = {},
): Promise<{ job_id: string; log: string }> {
  const site = shippedSite('test-cluster');
  const node_kind = site.node_kinds.find((kind) => kind.name === (options.kind ?? 'gh200'))!;
  const log = join(folder, options.log ?? `${Math.random().toString(36).slice(2)}.log`);
  const input: JobScriptInput = {
    role: 'agent',
    site,
    node_kind,
    deployment: 'chat',
    version: '0.1.0',
    command: ['/bin/bash', '-c', program, 'task', ...(options.args ?? [])],
    request: {
      job_name: 'hpcserve-chat',
      nodes: options.nodes ?? 1,
      gpus_per_node: options.gpus ?? 0,
      cpus_per_node: 1,
      memory_mb_per_node: 512,
      time_limit_s: 120,
      log_file: log,
      working_folder: folder,
      launch_id,
      tier: node_kind.tier,
    },
  };
  options.change?.(input);
  const script = buildJobScript(input);
  const { job_id } = await client.submit({ text: renderJobScript(script) }, directivesOf(script));
  return { job_id, log };
}

const text = (file: string): string => (existsSync(file) ? readFileSync(file, 'utf8') : '');

async function until(
  what: string,
  holds: () => boolean | Promise<boolean>,
  log: string,
  timeout_ms = 25_000,
): Promise<void> {
  if (await waitUntil(holds, timeout_ms)) return;
  const jobs = (await client.myJobs()).filter(({ name }) => name === 'hpcserve-chat');
  throw new Error(`not in time: ${what}\n${text(log)}\n${JSON.stringify(jobs.slice(-3), null, 1)}`);
}

async function job(job_id: string): Promise<JobInfo> {
  const [found] = await client.jobs([job_id]);
  if (found === undefined) throw new Error(`job ${job_id} is unknown`);
  return found;
}

async function isBackInQueue(job_id: string): Promise<boolean> {
  const { restart_count, phase } = await job(job_id);
  return restart_count === 1 && phase === 'waiting';
}

/** Handles signals as a node agent does; \$1 is the exit code after TERM. */
const agentLike = `
trap 'echo "$SLURMD_NODENAME USR1"' USR1
trap 'echo "$SLURMD_NODENAME TERM"; exit "$1"' TERM
echo "$SLURMD_NODENAME up gpus=$CUDA_VISIBLE_DEVICES restart=$SLURM_RESTART_COUNT"
while :; do sleep 0.1 & wait $!; done`;

test('one task per node with its GPUs; the warning reaches every task; TERM stops them and their exit code is the job’s', async () => {
  const { job_id, log } = await submit(agentLike, { nodes: 2, gpus: 2, args: ['5'] });
  await until('both up', () => /gh1 up gpus=0,1/.test(text(log)) && /gh2 up gpus=0,1/.test(text(log)), log);
  expect(launchOfComment((await job(job_id)).comment)).toBe(launch_id);
  // What Slurm does for --signal=B:USR1@N.
  await client.cancel([job_id], { signal: 'USR1', batch: true });
  await until('warned', () => /gh1 USR1/.test(text(log)) && /gh2 USR1/.test(text(log)), log);
  expect((await job(job_id)).state).toBe('RUNNING');
  await client.cancel([job_id], { signal: 'TERM', batch: true });
  await until('stopped', () => /gh1 TERM/.test(text(log)) && /gh2 TERM/.test(text(log)), log);
  await until('ended', async () => (await job(job_id)).phase === 'ended', log);
  expect(await job(job_id)).toMatchObject({ state: 'FAILED', exit_code: 5 });
});

test('scancel lets tasks stop in order and leaves no process', async () => {
  const { job_id, log } = await submit(agentLike, { args: ['0'] });
  await until('up', () => / up /.test(text(log)), log);
  expect(cluster.jobProcesses().length).toBeGreaterThan(0);
  await client.cancel([job_id]);
  await until('TERM', () => / TERM/.test(text(log)), log);
  await until('ended', async () => (await job(job_id)).phase === 'ended', log);
  expect((await job(job_id)).state).toBe('CANCELLED');
  await until('no process', () => cluster.jobProcesses().length === 0, log);
});

test('the exit code of a task that ends by itself is the job’s', async () => {
  const { job_id, log } = await submit('exit 3');
  await until('ended', async () => (await job(job_id)).phase === 'ended', log);
  expect(await job(job_id)).toMatchObject({ state: 'FAILED', exit_code: 3 });
});

test('a preempted job that stops within the grace time goes back into the queue', async () => {
  const { job_id, log } = await submit(agentLike, { kind: 'scavenge-gh200', nodes: 2, gpus: 4, args: ['0'] });
  await until('up', () => /gh1 up/.test(text(log)) && /gh2 up/.test(text(log)), log);
  const urgent = await submit('sleep 30', { kind: 'gh200', nodes: 1, gpus: 4 });
  await until('TERM', () => / TERM/.test(text(log)), log);
  await until('requeued', () => isBackInQueue(job_id), log);
  expect(text(log)).toContain('preempted; back into the queue');
  await until('urgent runs', async () => (await job(urgent.job_id)).state === 'RUNNING', urgent.log);
});

test('a job that was preempted as often as the site allows does not go back', async () => {
  const { job_id, log } = await submit(agentLike, {
    kind: 'scavenge-gh200',
    nodes: 2,
    gpus: 4,
    args: ['0'],
    change: ({ site }) => {
      site.scavenging.requeues_max = 0;
    },
  });
  await until('up', () => /gh1 up/.test(text(log)) && /gh2 up/.test(text(log)), log);
  await submit('sleep 10', { kind: 'gh200', nodes: 1, gpus: 4 });
  await until('ended', async () => (await job(job_id)).phase === 'ended', log);
  expect(text(log)).toContain('preempted too often');
  // 24.11 and later say that it was preempted, also where it ended by itself within the grace time.
  const { stdout } = await lease.cluster.runAs('user', ['scontrol', '--version']);
  const state = Number(/ (\d+)\./.exec(stdout)![1]) >= 24 ? 'PREEMPTED' : 'COMPLETED';
  expect(await job(job_id)).toMatchObject({ state, restart_count: 0 });
});

test('a preempted job that does not stop is requeued by Slurm after the grace time', async () => {
  const { job_id, log } = await submit('trap "" TERM; echo up; while :; do sleep 0.2; done', {
    kind: 'scavenge-gh200',
    nodes: 2,
    gpus: 4,
  });
  await until('up', () => (text(log).match(/up/g) ?? []).length === 2, log);
  await submit('sleep 30', { kind: 'gh200', gpus: 4 });
  await until('requeued', () => isBackInQueue(job_id), log, 40_000);
});

test('hostile values arrive as they are and start nothing', async () => {
  const marks = join(folder, 'touched');
  const hostile = [
    `a'; touch ${marks}-1; '`,
    `$(touch ${marks}-2)`,
    `\`touch ${marks}-3\``,
    `line\ntouch ${marks}-4\n`,
    `" ; touch ${marks}-5 #`,
    'ünïcode 模型 🚀',
    '%j \\ * ~ !x',
    '',
  ];
  const { job_id, log } = await submit('printf "%s\\0" "$@" "$HOSTILE"', {
    args: hostile,
    log: 'log \'with\' #odd %j "name" é.log',
    change: (input) => {
      input.environment_of_job = { HOSTILE: hostile.join('|') };
      input.deployment = `x\n#SBATCH --nodes=9\ntouch ${marks}-6`;
      input.request.job_name = `a'; touch ${marks}-7 "b" # c \\`;
    },
  });
  await until('ended', async () => (await job(job_id)).phase === 'ended', log);
  expect((await job(job_id)).name).toBe(`a'; touch ${marks}-7 "b" # c \\`);
  expect(text(log).split('\0').slice(0, -1)).toEqual([...hostile, hostile.join('|')]);
  for (let number = 1; number <= 7; number++) expect(existsSync(`${marks}-${number}`)).toBe(false);
});
