/** The client against a real Slurm; jobs are an ordinary user's. */
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type Script, SlurmCommandClient } from '../../slurm/client.ts';
import { LocalCommandRunner } from '../../slurm/command-runner.ts';
import { explainReason } from '../../slurm/reasons.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Directive, JobInfo } from '../../spec/slurm-types.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { kill_wait_s, scavenge_grace_s } from '../cluster/layout.ts';
import { waitUntil } from '../cluster/processes.ts';
import { ClusterCommandRunner, UnknownUserRunner } from '../cluster/runner.ts';
import { acquireCluster, type ClusterLease } from '../cluster/shared.ts';

let lease: ClusterLease;
let cluster: Cluster;
let client: SlurmCommandClient;
beforeAll(async () => {
  lease = await acquireCluster();
  cluster = lease.cluster;
  client = new SlurmCommandClient(new ClusterCommandRunner(cluster));
});
afterEach(async () => {
  await cluster?.cancelAllJobs();
});
afterAll(async () => {
  await lease?.release();
});

function script(options: readonly string[], body = 'sleep 60'): Script {
  const lines = ['--output=/dev/null', '--time=2', ...options].map((option) => `#SBATCH ${option}`);
  return { text: ['#!/bin/bash', ...lines, body, ''].join('\n') };
}

async function jobWhen(
  job_id: string,
  holds: (job: JobInfo) => boolean,
  timeout_ms = 20_000,
): Promise<JobInfo> {
  let last: JobInfo | undefined;
  const seen = await waitUntil(async () => {
    [last] = await client.jobs([job_id]);
    return last !== undefined && holds(last);
  }, timeout_ms);
  if (!seen || last === undefined) throw new Error(`job ${job_id} is ${JSON.stringify(last)}`);
  return last;
}

async function refusal(options: readonly string[], directives: readonly Directive[]): Promise<HpcserveError> {
  const error = await client.submit(script(options), directives).then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof HpcserveError)) throw new Error(`submitted, or not our error: ${String(error)}`);
  return error;
}

describe('facts', () => {
  test('version, controller settings, partitions and nodes are read', async () => {
    const version = await client.version();
    expect(version.year).toBeGreaterThanOrEqual(20);
    const config = await client.config();
    expect(config).toMatchObject({
      cluster_name: `hpcserve-${cluster.state.name}`,
      preempt_type: 'preempt/partition_prio',
      kill_wait_s,
      min_job_age_s: 3600,
      has_accounting: false,
      gres_types: ['gpu'],
    });
    const partitions = await client.partitions();
    expect(partitions.find(({ name }) => name === 'scavenge')).toMatchObject({
      preempt_mode: 'REQUEUE',
      grace_time_s: scavenge_grace_s,
      max_time_s: 14_400,
      state: 'UP',
    });
    expect(partitions.find(({ is_default }) => is_default)?.name).toBe('gh200');
    expect(partitions.find(({ name }) => name === 'staff')?.allow_groups).toEqual(['adm']);
    const groups = await client.nodeGroups();
    const [gh200] = groups.filter((group) => group.partition === 'gh200');
    expect(gh200).toMatchObject({
      features: ['gh200', 'nvlink'],
      gres: [{ name: 'gpu', type: 'gh200', count: 4 }],
      cpus: 8,
      sockets: 4,
      memory_mb: 65_536,
    });
  });

  test('a program that is not there is a message', async () => {
    const bare = new SlurmCommandClient(new LocalCommandRunner({ environment: { PATH: '/nonexistent' } }));
    await expect(bare.version()).rejects.toMatchObject({ code: 'E_SLURM_COMMAND_MISSING' });
  });

  test('a controller that is not there is unreachable', async () => {
    const lost = new SlurmCommandClient(runnerWith({ SlurmctldPort: 1, MessageTimeout: 1, TCPTimeout: 1 }));
    await expect(lost.submit(script([]), [])).rejects.toMatchObject({
      code: 'E_SLURM_UNREACHABLE',
      details: { retryable: true, may_have_been_submitted: true },
    });
  });

  test('so is one that listens and does not answer', async () => {
    const connections = new Set<Socket>();
    const silent = createServer((socket) => connections.add(socket)).listen(0);
    try {
      await once(silent, 'listening');
      const { port } = silent.address() as AddressInfo;
      const timed = new SlurmCommandClient(runnerWith({ SlurmctldPort: port, MessageTimeout: 30 }), {
        command_timeout_ms: 1000,
      });
      await expect(timed.config()).rejects.toMatchObject({ code: 'E_SLURM_UNREACHABLE' });
      expect(connections.size).toBeGreaterThan(0);
    } finally {
      for (const socket of connections) socket.destroy();
      silent.close();
    }
  });
});

/** For a client that finds the cluster's settings, but for these. */
function runnerWith(settings: Record<string, number>): LocalCommandRunner {
  const conf = readFileSync(cluster.env.SLURM_CONF!, 'utf8').split('\n');
  const kept = conf.filter((line) => !(line.split('=')[0]! in settings));
  const path = join(cluster.state.folder, 'changed.conf');
  const changed = Object.entries(settings).map(([key, value]) => `${key}=${value}`);
  writeFileSync(path, [...kept, ...changed, ''].join('\n'));
  return new LocalCommandRunner({ environment: { ...cluster.env, SLURM_CONF: path } });
}

describe('the life of a job', () => {
  test('runs on the GPUs asked for, and ends by cancel', async () => {
    const { job_id, warnings } = await client.submit(
      script(['--partition=a100', '--gres=gpu:a100:2', '--comment=hpcserve:e2e-1', '--job-name="a b|c"']),
      [],
    );
    expect(warnings).toEqual([]);
    const running = await jobWhen(job_id, (job) => job.state === 'RUNNING');
    expect(running).toMatchObject({
      job_id,
      base_job_id: job_id,
      phase: 'running',
      partition: 'a100',
      comment: 'hpcserve:e2e-1',
      name: 'a b|c',
      user: cluster.user.name,
      time_limit_s: 120,
      start_is_estimate: false,
    });
    expect(running.nodes).toHaveLength(1);
    expect(Math.abs((running.start_time_ms ?? 0) - Date.now())).toBeLessThan(60_000);
    expect((await client.myJobs()).map((job) => job.comment)).toContain('hpcserve:e2e-1');
    await client.cancel([job_id]);
    const ended = await jobWhen(job_id, (job) => job.phase === 'ended');
    expect(ended.state).toBe('CANCELLED');
    await client.cancel([job_id]);
  });

  test.skipIf(process.getuid?.() !== 0)(
    'of a user whom the machine that asks does not know: jobs are found by uid, names are left to Slurm',
    async () => {
      const { job_id } = await client.submit(script(['--hold', '--comment=hpcserve:e2e-uid']), []);
      const unknown = new UnknownUserRunner(cluster);
      expect((await unknown.run(['id', '-un'], { timeout_ms: 10_000 })).code).toBe(1);
      const there = new SlurmCommandClient(unknown);
      const seen = await there.myJobs();
      expect(seen.map((job) => job.comment)).toContain('hpcserve:e2e-uid');
      // Slurm's commands have other names for it: nobody, or the number.
      const nameless = (jobs: JobInfo[]) => jobs.map((job) => ({ ...job, user: '' }));
      expect(nameless(seen)).toEqual(nameless(await client.myJobs()));
      expect((await there.permissions()).associations).toBeUndefined();
      const own = await there.submit(script(['--hold']), []);
      expect((await client.myJobs()).map((job) => job.job_id)).toEqual(
        expect.arrayContaining([job_id, own.job_id]),
      );
      await there.cancel([job_id, own.job_id]);
    },
  );

  test('exit code of the script, and a log folder that is not there', async () => {
    const failing = await client.submit(script(['--partition=cpu'], 'exit 7'), []);
    expect(await jobWhen(failing.job_id, (job) => job.phase === 'ended')).toMatchObject({
      state: 'FAILED',
      exit_code: 7,
    });
    const homeless = await client.submit(script(['--partition=cpu', '--output=/nonexistent/log']), []);
    const ended = await jobWhen(homeless.job_id, (job) => job.phase === 'ended');
    expect(ended.state).toBe('FAILED');
    expect(explainReason(ended.reason ?? '').meaning).toContain('log folder');
  });

  test('waits with a reason, and an estimated start', async () => {
    const first = await client.submit(script(['--partition=gh200', '--nodes=2', '--gres=gpu:gh200:4']), []);
    await jobWhen(first.job_id, (job) => job.state === 'RUNNING');
    const wanting = script(['--partition=gh200', '--gres=gpu:gh200:1']);
    const estimate = await client.estimateStart(wanting, []);
    expect(estimate.partition).toBe('gh200');
    expect(estimate.start_time_ms).toBeGreaterThan(Date.now() + 30_000);
    const second = await client.submit(wanting, []);
    const waiting = await jobWhen(second.job_id, (job) => job.reason === 'Resources');
    expect(waiting.phase).toBe('waiting');
    expect(explainReason('Resources').stuck).toBe(false);
    const expected = await jobWhen(second.job_id, (job) => job.start_time_ms !== undefined);
    expect(expected.start_is_estimate).toBe(true);
    const closed = await client.submit(script(['--partition=closed']), []);
    const held = await jobWhen(closed.job_id, (job) => job.reason !== undefined);
    expect(explainReason(held.reason ?? '')).toMatchObject({ reason: 'PartitionDown' });
  });

  test('arrays and heterogeneous jobs come back under the number sbatch gave', async () => {
    const array = await client.submit(script(['--partition=cpu', '--array=1-3%1']), []);
    const het = await client.submit(
      {
        text: '#!/bin/bash\n#SBATCH -p a100 -o /dev/null -t 2\n#SBATCH hetjob\n#SBATCH -p a100 -t 2\nsleep 60\n',
      },
      [],
    );
    const both = (await client.jobs([array.job_id, het.job_id])).map((job) => job.base_job_id);
    expect(both.filter((id) => id === array.job_id).length).toBeGreaterThanOrEqual(1);
    expect(both.filter((id) => id === het.job_id)).toHaveLength(2);
    await waitUntil(async () => (await client.jobs([array.job_id])).length === 2, 10_000);
    const tasks = await client.jobs([array.job_id]);
    expect(tasks.map((job) => job.array_task).sort()).toEqual(['1', '[2-3%1]']);
  });

  test('one task of an array is followed and ended without the others; too large an array is refused', async () => {
    // Every second one, so that Slurm would cut the range off.
    const { job_id } = await client.submit(script(['--partition=cpu', '--array=0-99:2%1']), []);
    expect((await client.jobs([`${job_id}_98`])).map((job) => job.phase)).toEqual(['waiting']);
    expect(await client.jobs([`${job_id}_97`])).toEqual([]);
    await jobWhen(`${job_id}_0`, (job) => job.state === 'RUNNING');
    await client.cancel([`${job_id}_98`, `${job_id}_0`]);
    await jobWhen(`${job_id}_0`, (job) => job.state === 'CANCELLED');
    // Unlike a job of its own, a task that never ran leaves nothing behind.
    expect(await waitUntil(async () => (await client.jobs([`${job_id}_98`])).length === 0, 10_000)).toBe(
      true,
    );
    expect((await client.jobs([`${job_id}_96`])).map((job) => job.phase)).toEqual(['waiting']);
    expect(await refusal(['--partition=cpu', '--array=0-100000'], [])).toMatchObject({
      code: 'E_SLURM_ARRAY',
    });
  });

  test('numbers nobody knows are left out, alone and among others', async () => {
    expect(await client.jobs(['67000001'])).toEqual([]);
    const { job_id } = await client.submit(script(['--partition=cpu'], 'true'), []);
    expect((await client.jobs([job_id, '67000001'])).map((job) => job.job_id)).toEqual([job_id]);
    await client.cancel(['67000001']);
    await expect(client.jobs(['1;reboot'])).rejects.toMatchObject({ code: 'E_SLURM_JOB_UNKNOWN' });
  });

  test('another user’s job cannot be ended', async () => {
    const root = await cluster.runAs(
      'root',
      ['sbatch', '--parsable', '--partition=cpu', '--output=/dev/null'],
      {
        input: '#!/bin/bash\nsleep 30\n',
      },
    );
    try {
      await expect(client.cancel([root.stdout.trim()])).rejects.toMatchObject({
        code: 'E_SLURM_NOT_ALLOWED',
      });
    } finally {
      await cluster.runAs('root', ['scancel', root.stdout.trim()]);
    }
  });
});

describe('refusals name the place that asked', () => {
  const cases: readonly [code: string, options: readonly string[], Directive][] = [
    [
      'E_SLURM_PARTITION',
      ['--partition=nope'],
      { name: 'partition', value: 'nope', source: 'site.yaml:9:5' },
    ],
    [
      'E_SLURM_PARTITION',
      ['--partition=gh200,nope'],
      { name: 'partition', value: 'gh200,nope', source: 's:1:1' },
    ],
    ['E_SLURM_GRES', ['--gres=fpga:1'], { name: 'gres', value: 'fpga:1', source: 's:2:1' }],
    ['E_SLURM_NODE_CONFIG', ['--gres=gpu:h100:1'], { name: 'gres', value: 'gpu:h100:1', source: 's:2:1' }],
    ['E_SLURM_NODE_CONFIG', ['--mem=999G'], { name: 'mem', value: '999G', source: 's:3:1' }],
    ['E_SLURM_NODE_CONFIG', ['--nodes=5'], { name: 'nodes', value: '5', source: 's:3:1' }],
    ['E_SLURM_TIME_LIMIT', ['--time=5-00:00:00'], { name: 'time', value: '5-00:00:00', source: 's:4:1' }],
    ['E_SLURM_TIME_LIMIT', ['--time=soon'], { name: 'time', value: 'soon', source: 's:4:1' }],
    ['E_SLURM_FEATURE', ['--constraint=nosuch'], { name: 'constraint', value: 'nosuch', source: 's:5:1' }],
    ['E_SLURM_NODE_CONFIG', ['--constraint=a100'], { name: 'constraint', value: 'a100', source: 's:5:1' }],
    ['E_SLURM_NODE_NAME', ['--nodelist=nosuch'], { name: 'nodelist', value: 'nosuch', source: 's:6:1' }],
    ['E_SLURM_RESERVATION', ['--reservation=x'], { name: 'reservation', value: 'x', source: 's:7:1' }],
    ['E_SLURM_NOT_ALLOWED', ['--partition=staff'], { name: 'partition', value: 'staff', source: 's:8:1' }],
    ['E_SLURM_OPTION', ['--nosuchoption=1'], { name: 'nosuchoption', value: '1', source: 's:9:1' }],
    ['E_SLURM_OPTION', ['--mem=lots'], { name: 'mem', value: 'lots', source: 's:3:1' }],
  ];
  test.each(cases)('%s for %j', async (code, options, directive) => {
    const before = (await client.myJobs()).filter((job) => job.phase !== 'ended').length;
    const error = await refusal(options, [directive]);
    expect(error.code).toBe(code);
    expect(error.because[0]).not.toMatch(/^sbatch:/);
    expect(error.because.join('\n')).toContain(`was set by ${directive.source}`);
    expect(error.try.length).toBeGreaterThan(0);
    const after = (await client.myJobs()).filter((job) => job.phase !== 'ended').length;
    expect(after).toBe(before);
  });

  test('--test-only gives the same error without submitting', async () => {
    const directive = { name: 'partition', value: 'nope', source: 'site.yaml:9:5' };
    await expect(client.estimateStart(script(['--partition=nope']), [directive])).rejects.toMatchObject({
      code: 'E_SLURM_PARTITION',
    });
  });
});
