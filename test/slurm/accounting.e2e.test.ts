/** Against a real Slurm with slurmdbd: accounts, QoS and limits that refuse, reasons of limits, and sacct. */
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { SlurmCommandClient } from '../../slurm/client.ts';
import { checkPermissions } from '../../slurm/permissions.ts';
import { explainReason } from '../../slurm/reasons.ts';
import type { Directive, JobInfo } from '../../spec/slurm-types.ts';
import { ensureAccountingInstalled } from '../cluster/accounting.ts';
import { waitUntil } from '../cluster/processes.ts';
import { ClusterCommandRunner } from '../cluster/runner.ts';
import { acquireCluster, type ClusterLease, testClusterName } from '../cluster/shared.ts';

let lease: ClusterLease;
let client: SlurmCommandClient;
beforeAll(async () => {
  const installation = await ensureAccountingInstalled();
  if (!installation.ready) throw new Error(installation.missing);
  lease = await acquireCluster(testClusterName('accounting'), { accounting: true });
  client = new SlurmCommandClient(new ClusterCommandRunner(lease.cluster));
});
afterEach(async () => {
  await lease?.cluster.cancelAllJobs();
});
afterAll(async () => {
  await lease?.release();
});

const script = (options: readonly string[], body = 'sleep 60'): { text: string } => ({
  text: [
    '#!/bin/bash',
    ...['--output=/dev/null', '--time=2', '--partition=cpu', ...options].map((line) => `#SBATCH ${line}`),
    body,
    '',
  ].join('\n'),
});

test('the controller says that it has accounting', async () => {
  expect((await client.config()).has_accounting).toBe(true);
});

const cases: readonly [code: string, Directive][] = [
  ['E_SLURM_ACCOUNT', { name: 'account', value: 'nobody', source: 'site.yaml:4:14' }],
  ['E_SLURM_ACCOUNT', { name: 'account', value: 'others', source: 'site.yaml:4:14' }],
  ['E_SLURM_QOS', { name: 'qos', value: 'nosuch', source: 'site.yaml:5:10' }],
];
test.each(cases)('%s for %o', async (code, directive) => {
  await expect(
    client.submit(script([`--${directive.name}=${directive.value}`]), [directive]),
  ).rejects.toMatchObject({
    code,
    because: expect.arrayContaining([
      `--${directive.name}=${directive.value} was set by ${directive.source}`,
    ]),
  });
});

test('what the user may name is known before anything is submitted, and near names are offered', async () => {
  const permissions = await client.permissions();
  expect(permissions.enforced).toEqual({ associations: true, qos: true });
  expect(permissions.associations).toEqual([
    {
      cluster: (await client.config()).cluster_name,
      account: 'chat',
      qos: expect.arrayContaining(['normal', 'crowded', 'brief']),
      default_qos: 'normal',
      is_default: true,
    },
  ]);
  for (const [code, { value = '', ...directive }] of cases)
    expect(() => checkPermissions([{ ...directive, value }], permissions)).toThrow(
      expect.objectContaining({ code, because: expect.arrayContaining([expect.stringContaining(value)]) }),
    );
  const typo = { name: 'qos', value: 'breif', source: '--qos' };
  expect(() => checkPermissions([typo], permissions)).toThrow(
    expect.objectContaining({ code: 'E_SLURM_QOS', try: ['did you mean "brief"?'] }),
  );
  const right = [
    { name: 'account', value: 'chat', source: '' },
    { name: 'qos', value: 'brief', source: '' },
  ];
  expect(() => checkPermissions(right, permissions)).not.toThrow();
});

test('a reservation is listed while it lasts', async () => {
  const { cluster } = lease;
  const made = await cluster.runAs('root', [
    ...['scontrol', 'create', 'reservation', 'ReservationName=course', `Users=${cluster.user.name}`],
    ...['StartTime=now', 'Duration=10', 'Nodes=c1', 'Flags=IGNORE_JOBS'],
  ]);
  expect(made.code, made.stderr).toBe(0);
  try {
    const permissions = await client.permissions();
    const named = (value: string) => (): void =>
      checkPermissions([{ name: 'reservation', value, source: '--reservation' }], permissions);
    expect(named('course')).not.toThrow();
    expect(named('curse')).toThrow(expect.objectContaining({ try: ['did you mean "course"?'] }));
  } finally {
    await cluster.runAs('root', ['scontrol', 'delete', 'ReservationName=course']);
  }
});

test('clusters that slurmdbd knows are listed, and commands go to the one that is named', async () => {
  const { cluster } = lease;
  const own = (await client.config()).cluster_name;
  const sacctmgr = (...words: string[]) => cluster.runAs('root', ['sacctmgr', '--immediate', ...words]);
  await sacctmgr('add', 'cluster', 'elsewhere');
  try {
    const clusters = await client.clusters();
    expect(clusters?.map(({ name }) => name).sort()).toEqual([own, 'elsewhere'].sort());
    expect(clusters?.find(({ name }) => name === own)?.controller).toMatch(/./);
    expect(clusters?.find(({ name }) => name === 'elsewhere')?.controller).toBeUndefined();
    const there = new SlurmCommandClient(new ClusterCommandRunner(cluster), { cluster: own });
    expect((await there.config()).cluster_name).toBe(own);
    expect((await there.partitions()).map(({ name }) => name)).toContain('cpu');
    expect((await there.nodeGroups()).length).toBeGreaterThan(0);
    expect((await there.permissions()).associations).toHaveLength(1);
    const { job_id, cluster: named } = await there.submit(script([]), []);
    expect(named).toBe(own);
    expect((await there.myJobs()).map((job) => job.job_id)).toEqual([job_id]);
    await there.cancel([job_id]);
    const ended = await waitUntil(async () => (await there.jobs([job_id]))[0]?.phase === 'ended', 10_000);
    expect(ended).toBe(true);
    for (const name of ['elsewhere', 'nowhere']) {
      const away = new SlurmCommandClient(new ClusterCommandRunner(cluster), { cluster: name });
      await expect(away.submit(script([]), [])).rejects.toMatchObject({ code: 'E_SLURM_CLUSTER' });
      await expect(away.myJobs()).rejects.toMatchObject({ code: 'E_SLURM_CLUSTER' });
    }
  } finally {
    await sacctmgr('delete', 'cluster', 'elsewhere');
  }
});

test('limits of a QoS: on jobs in the queue, and on time', async () => {
  await client.submit(script(['--qos=crowded']), []);
  await expect(client.submit(script(['--qos=crowded']), [])).rejects.toMatchObject({
    code: 'E_SLURM_LIMIT',
    because: expect.arrayContaining([expect.stringContaining('QOSMaxSubmitJobPerUserLimit')]),
  });
  await expect(client.submit(script(['--qos=brief', '--time=30']), [])).rejects.toMatchObject({
    code: 'E_SLURM_LIMIT',
  });
});

test('an ended job comes from sacct once the queue has forgotten it', async () => {
  const { job_id } = await client.submit(
    script(['--account=chat', '--comment=hpcserve:acct', '--job-name="a|b c"'], 'exit 4'),
    [],
  );
  let seen: JobInfo | undefined;
  // The client asks sacct only for what squeue does not have; a squeue that answers nothing is such a one.
  const forgetful = new SlurmCommandClient({
    run: async (argv, options) =>
      argv.includes('squeue')
        ? { stdout: '', stderr: 'slurm_load_jobs error: Invalid job id specified', code: 1 }
        : new ClusterCommandRunner(lease.cluster).run(argv, options),
  });
  const recorded = await waitUntil(async () => {
    [seen] = await forgetful.jobs([job_id]);
    // For a moment the record of a very short job has its end but not yet its name and partition.
    return seen?.phase === 'ended' && seen.partition !== '';
  }, 20_000);
  expect(recorded).toBe(true);
  expect(seen).toMatchObject({
    job_id,
    state: 'FAILED',
    exit_code: 4,
    account: 'chat',
    qos: 'normal',
    partition: 'cpu',
    name: 'a|b c',
    comment: 'hpcserve:acct',
    user: lease.cluster.user.name,
    source: 'sacct',
    time_limit_s: 120,
  });
  expect(Math.abs((seen?.end_time_ms ?? 0) - Date.now())).toBeLessThan(60_000);
  expect(await forgetful.jobs(['67000001'])).toEqual([]);
});

test('a cancelled job in sacct, and a job that waits for a limit', async () => {
  const { job_id } = await client.submit(script(['--qos=normal']), []);
  await expect.poll(async () => (await client.jobs([job_id]))[0]?.state, { timeout: 20_000 }).toBe('RUNNING');
  await client.cancel([job_id]);
  // The controller tells slurmdbd a moment after it says so itself.
  const recorded = async (): Promise<string> =>
    (await lease.cluster.runAs('user', ['sacct', '-X', '-n', '-P', '-j', job_id, '-o', 'State'])).stdout;
  await expect.poll(recorded, { timeout: 30_000 }).toMatch(/^CANCELLED by \d+/);
  expect(explainReason('QOSMaxSubmitJobPerUserLimit').meaning).toContain('as many jobs as allowed');
});
