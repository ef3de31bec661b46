import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  parseControllerConfig,
  parseGres,
  parsePartitions,
  parseSinfo,
  sinfoFormat,
} from '../../slurm/cluster-facts.ts';
import { expandHostlist } from '../../slurm/hostlist.ts';
import {
  parseExit,
  parseJobState,
  parseSacct,
  parseScontrolJob,
  parseSqueue,
  squeueFormat,
} from '../../slurm/job-queue.ts';
import { parseScontrolLine, parseUtcTime_ms } from '../../slurm/text-format.ts';
import { atLeast, parseSlurmVersion } from '../../slurm/version.ts';
import { formatSlurmDuration, parseSlurmDuration_s } from '../../spec/slurm-types.ts';

/** A row as squeue prints it: unit separators between columns, a record separator at the end. */
const row = (columns: readonly string[]): string => `${columns.join('\u001f')}\u001e\n`;

describe('hostlist', () => {
  test.each([
    ['', []],
    ['(null)', []],
    ['gh1', ['gh1']],
    ['gh[1-2],a1', ['gh1', 'gh2', 'a1']],
    ['nid[001,003-005]', ['nid001', 'nid003', 'nid004', 'nid005']],
    ['r[1-2]n[08-10]', ['r1n08', 'r1n09', 'r1n10', 'r2n08', 'r2n09', 'r2n10']],
    ['x[9-11]-ib', ['x9-ib', 'x10-ib', 'x11-ib']],
  ])('%s', (list, nodes) => {
    expect(expandHostlist(list)).toEqual(nodes);
  });

  test.each(['gh[1-2', 'gh1]', 'gh[[1]]', 'gh[5-1]', 'gh[a]', 'gh[1-999999999]'])(
    '%s is an error',
    (list) => {
      expect(() => expandHostlist(list)).toThrowError(RangeError);
    },
  );
});

describe('durations', () => {
  test.each([
    ['90', 5400],
    ['90:30', 5430],
    ['01:02:03', 3723],
    ['2-3', 183_600],
    ['2-03:04', 183_840],
    ['1-00:00:00', 86_400],
    ['UNLIMITED', Number.POSITIVE_INFINITY],
    ['infinite', Number.POSITIVE_INFINITY],
    ['n/a', undefined],
    ['NOT_SET', undefined],
    ['Partition_Limit', undefined],
    ['', undefined],
  ])('%s', (text, seconds) => {
    expect(parseSlurmDuration_s(text)).toBe(seconds);
  });

  test('what is written is read back', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 10_000_000 }), (seconds) => {
        expect(parseSlurmDuration_s(formatSlurmDuration(seconds))).toBe(seconds);
      }),
    );
  });
});

test('versions of 20.11 to 25.x', () => {
  expect(parseSlurmVersion('slurm-wlm 22.05.8\n')).toMatchObject({
    year: 22,
    month: 5,
    patch: 8,
    text: '22.05.8',
  });
  expect(parseSlurmVersion('slurm 20.11.9')).toMatchObject({ year: 20, month: 11, patch: 9 });
  expect(parseSlurmVersion('slurm 25.05.0-rc1')).toMatchObject({ year: 25, month: 5, patch: 0 });
  expect(() => parseSlurmVersion('command not understood')).toThrowError();
  expect(atLeast(parseSlurmVersion('slurm 21.08.1'), 20, 11)).toBe(true);
  expect(atLeast(parseSlurmVersion('slurm 20.02.1'), 20, 11)).toBe(false);
});

describe('squeue', () => {
  const columns = [
    '42',
    '42',
    'N/A',
    'PENDING',
    'Resources',
    'hpcserve:ab',
    '',
    'a|b\nc',
    'ada',
    '(null)',
    'normal',
    'gpu',
    '2026-11-21T01:59:10',
    '2026-11-21T02:59:11',
    'N/A',
    '1-00:00:00',
    '0',
    '0',
  ];

  test('a waiting job, whatever is in its name', () => {
    expect(parseSqueue(row(columns))).toEqual([
      {
        job_id: '42',
        base_job_id: '42',
        state: 'PENDING',
        phase: 'waiting',
        reason: 'Resources',
        name: 'a|b\nc',
        user: 'ada',
        qos: 'normal',
        partition: 'gpu',
        comment: 'hpcserve:ab',
        node_list: '',
        nodes: [],
        submit_time_ms: Date.UTC(2026, 10, 21, 1, 59, 10),
        start_time_ms: Date.UTC(2026, 10, 21, 2, 59, 11),
        start_is_estimate: true,
        time_limit_s: 86_400,
        restart_count: 0,
        source: 'squeue',
      },
    ]);
  });

  test('array ranges and components of heterogeneous jobs', () => {
    const array = columns.with(1, '30_[2-5%1]').with(0, '30');
    const het = columns.with(0, '33').with(1, '32+1').with(2, '32').with(3, 'RUNNING').with(6, 'gh[1-2]');
    expect(parseSqueue(row(array) + row(het))).toMatchObject([
      { job_id: '30', base_job_id: '30', array_task: '[2-5%1]' },
      { job_id: '33', base_job_id: '32', het_offset: 1, nodes: ['gh1', 'gh2'], phase: 'running' },
    ]);
  });

  test('a failed job has its exit code, also from the raw wait status of older versions', () => {
    const failed = columns.with(3, 'FAILED');
    expect(parseSqueue(row(failed.with(17, '256')))[0]).toMatchObject({ exit_code: 1, phase: 'ended' });
    expect(parseSqueue(row(failed.with(17, '3:0')))[0]).toMatchObject({ exit_code: 3 });
    expect(parseExit('4021')).toEqual({ exit_code: 0, exit_signal: 53 });
    expect(parseExit('0:15')).toEqual({ exit_code: 0, exit_signal: 15 });
    expect(parseExit('')).toEqual({});
  });

  test('another number of columns is an error and not a guess', () => {
    expect(() => parseSqueue(row(columns.slice(1)))).toThrowError(
      expect.objectContaining({ code: 'E_SLURM_ANSWER' }),
    );
    expect(parseJobState('CANCELLED+')).toBe('CANCELLED');
  });

  test('a state or a node list of a form that nobody knows spoils no other line', () => {
    const asleep = columns.with(3, 'SLEEPING').with(0, '43').with(1, '43');
    const odd = columns.with(3, 'RUNNING').with(6, 'n[1-').with(0, '44').with(1, '44');
    expect(parseSqueue(row(asleep) + row(odd) + row(columns))).toMatchObject([
      { job_id: '43', state: 'UNKNOWN', phase: 'unknown' },
      { job_id: '44', state: 'RUNNING', phase: 'running', node_list: 'n[1-', nodes: [] },
      { job_id: '42', state: 'PENDING', phase: 'waiting' },
    ]);
  });

  test('the format asks for full width and ends rows with the record separator', () => {
    expect(squeueFormat).toMatch(/^JobID:\u001f,JobArrayID:\u001f,/);
    expect(squeueFormat).toMatch(/exit_code:\u001e$/);
  });
});

test('scontrol show job, with spaces and equal signs in values', () => {
  const line =
    'JobId=34 ArrayJobId=30 ArrayTaskId=1 JobName=my job UserId=ada(1001) GroupId=ada(1001) Priority=1 Account=(null) QOS=normal ' +
    'JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=2 ExitCode=7:0 RunTime=00:01:00 TimeLimit=04:00:00 ' +
    'SubmitTime=2026-11-21T02:02:43 StartTime=2026-11-21T02:02:45 EndTime=2026-11-21T02:03:45 Partition=gpu NodeList=gh[1-2] ' +
    'BatchHost=gh1 Comment=hpcserve:x a=b Command=/x/run.sh --k=v WorkDir=/x';
  expect(parseScontrolJob(line)).toMatchObject({
    job_id: '34',
    base_job_id: '30',
    array_task: '1',
    name: 'my job',
    user: 'ada',
    state: 'FAILED',
    reason: 'NonZeroExitCode',
    restart_count: 2,
    exit_code: 7,
    nodes: ['gh1', 'gh2'],
    time_limit_s: 14_400,
    source: 'scontrol',
  });
  expect(parseScontrolLine('A=1 A=2 Reason=not answering [root@2026]').get('A')).toBe('1');
  expect(parseScontrolLine('A=1 Reason=not answering [root@2026]').get('Reason')).toBe(
    'not answering [root@2026]',
  );
});

test('sacct', () => {
  const line = [
    '77',
    '77',
    'CANCELLED by 1001',
    '0:15',
    'None',
    'gpu',
    'x',
    'ada',
    'proj',
    'normal',
    'None assigned',
    '2026-11-21T01:00:00',
    'Unknown',
    '2026-11-21T01:05:00',
    '60',
    '',
  ].join('\u001f');
  expect(parseSacct(`${line}\n`)).toMatchObject([
    {
      job_id: '77',
      state: 'CANCELLED',
      phase: 'ended',
      exit_signal: 15,
      node_list: '',
      time_limit_s: 3600,
      account: 'proj',
      source: 'sacct',
    },
  ]);
  expect(parseSacct('')).toEqual([]);
});

test('sinfo and GRES in the forms of several sites', () => {
  expect(sinfoFormat).toMatch(/\u001e$/);
  const columns = [
    'gpu',
    'n[1-4]',
    'MIXED+PLANNED',
    'a100,ib',
    'gpu:a100:4(S:0-1),nvme:1',
    'gpu:a100:1(IDX:0)',
    '64',
    '2',
    '32',
    '1',
    '515000+',
    '64/192/0/256',
  ];
  expect(parseSinfo(row(columns))).toMatchObject([
    {
      partition: 'gpu',
      nodes: ['n1', 'n2', 'n3', 'n4'],
      states: ['mixed', 'planned'],
      memory_mb: 515_000,
      gres: [
        { name: 'gpu', type: 'a100', count: 4 },
        { name: 'nvme', count: 1 },
      ],
      gres_used: [{ name: 'gpu', type: 'a100', count: 1 }],
      cpu_counts: { allocated: 64, idle: 192, other: 0, total: 256 },
    },
  ]);
  expect(parseSinfo(row(columns.with(1, 'n[1-')) + row(columns))).toMatchObject([{ node_list: 'n[1-4]' }]);
  // What a node that does not answer is in: up to 20.11 a sign, then a word.
  for (const shown of ['MIXED*', 'MIXED+NOT_RESPONDING', 'mixed*+not_responding'])
    expect(parseSinfo(row(columns.with(2, shown)))[0]!.states).toEqual(['mixed', 'not_responding']);
  expect(parseGres('gpu:4')).toEqual([{ name: 'gpu', count: 4 }]);
  expect(parseGres('gpu:nvidia_a100_1g.5gb:7')).toEqual([
    { name: 'gpu', type: 'nvidia_a100_1g.5gb', count: 7 },
  ]);
  expect(parseGres('bandwidth:lustre:4G')).toEqual([
    { name: 'bandwidth', type: 'lustre', count: 4 * 1024 ** 3 },
  ]);
  expect(parseGres('(null)')).toEqual([]);
  expect(parseGres('craynetwork')).toEqual([{ name: 'craynetwork', count: 1 }]);
});

test('partitions and controller settings', () => {
  const line =
    'PartitionName=gpu AllowGroups=ALL AllowAccounts=p1,p2 AllowQos=ALL Default=YES QoS=N/A DefaultTime=NONE GraceTime=30 ' +
    'MaxNodes=UNLIMITED MaxTime=UNLIMITED Nodes=n[1-2] PriorityTier=10 OverSubscribe=EXCLUSIVE PreemptMode=REQUEUE State=UP DefMemPerNode=UNLIMITED';
  const [partition] = parsePartitions(`${line}\n`);
  expect(partition).toEqual({
    name: 'gpu',
    is_default: true,
    state: 'UP',
    node_list: 'n[1-2]',
    max_time_s: Number.POSITIVE_INFINITY,
    preempt_mode: 'REQUEUE',
    priority_tier: 10,
    grace_time_s: 30,
    max_nodes: Number.POSITIVE_INFINITY,
    allow_accounts: ['p1', 'p2'],
    exclusive: true,
  });
  const config = parseControllerConfig(
    'ClusterName = x\nKillWait                = 30 sec\nAccountingStorageType = accounting_storage/slurmdbd\nSlurmctldHost[0] = a\nGresTypes = gpu,nvme\n',
  );
  expect(config).toMatchObject({
    cluster_name: 'x',
    kill_wait_s: 30,
    has_accounting: true,
    gres_types: ['gpu', 'nvme'],
    min_job_age_s: 300,
  });
});

test('times are UTC', () => {
  expect(parseUtcTime_ms('2026-01-02T03:04:05')).toBe(Date.UTC(2026, 0, 2, 3, 4, 5));
  expect(parseUtcTime_ms('N/A')).toBeUndefined();
  expect(parseUtcTime_ms('Unknown')).toBeUndefined();
});
