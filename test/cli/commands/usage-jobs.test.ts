import { mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { openLedger } from '../../../ledger/index.ts';
import { appendJobRecords } from '../../../ledger/jobs/job-records.ts';
import { jobRecordSchema } from '../../../spec/job-record.ts';
import { jobUsageAnswerSchema } from '../../../spec/job-usage.ts';
import { type Home, temporaryHome } from '../support.ts';

let home: Home;
let ledger: string;
const began_ms = Date.UTC(2026, 2, 1);

beforeEach(async () => {
  home = temporaryHome();
  ledger = join(home.folder, 'state/gateway/ledger.sqlite');
  mkdirSync(dirname(ledger), { recursive: true });
  const record = jobRecordSchema.parse({
    format: 1,
    site: 'alps',
    job_id: '4711',
    deployment: 'demo',
    models: ['tiny'],
    tier: 'stable',
    node_kind: 'gh200',
    account: '=cmd',
    devices: 4,
    device_model: 'GH200',
    state: 'TIMEOUT',
    start_ms: began_ms,
    end_ms: began_ms + 7_200_000,
  });
  appendJobRecords(join(home.folder, 'state/jobs'), 'demo', [record]);
  const opened = openLedger(ledger).ledger;
  await new Promise<void>((resolve, reject) =>
    opened.record(
      {
        request_id: 'req_1',
        time_ms: began_ms + 60_000,
        key_id: 'key_1',
        endpoint: '/v1/chat/completions',
        model: 'tiny',
        served_model: 'tiny',
        session: { session_id: 's1', node: 'gh1', site: 'alps', job_id: '4711', deployment: 'demo' },
        status: 200,
        stream: false,
        attempts: 1,
        prompt_tokens: 100_000,
        completion_tokens: 900_000,
        duration_ms: 3_600_000,
        device_s: 7200,
        energy_j: 7.2e6,
        energy_estimated: true,
      },
      (error) => (error ? reject(error) : resolve()),
    ),
  );
  await opened.close();
});
afterEach(() => home.dispose());

const usage = (...argv: string[]) => home.run(['usage', 'jobs', '--ledger', ledger, ...argv]);

it('shows what a job had, and what came of it', async () => {
  const { code, stdout, stderr } = await usage();
  expect(code, stderr).toBe(0);
  const [head, row] = stdout.trimEnd().split('\n');
  expect(head!.split(/ {2,}/)).toEqual(
    'JOB,ACCOUNT,STATE,DEVICES,WALLTIME,DEVICE-HOURS,BUSY,IDLE,TOKENS,TOKENS/DEVICE-HOUR,KWH,KWH/MTOKEN'.split(
      ',',
    ),
  );
  expect(row!.split(/ {2,}/)).toEqual(
    '4711,=cmd,TIMEOUT,4x GH200,2 h,8.000,2.000,75.0 %,1000000,125000,~2.00,~2.00'.split(','),
  );
  expect(stderr).toContain('energy is an estimate');
});

it('sums for programs and spreadsheets, by what jobs have one of', async () => {
  const { stdout } = await usage('--group-by', 'account,node_kind', '--json');
  expect(jobUsageAnswerSchema.parse(JSON.parse(stdout)).jobs).toMatchObject([
    { group: { account: '=cmd', node_kind: 'gh200' }, jobs: 1, allocated_device_s: 28_800, idle_share: 0.75 },
  ]);
  const csv = (await usage('--by', 'account', '--csv')).stdout.split('\n');
  expect(csv[0]).toMatch(/^account,jobs,unknown_jobs,.*,allocated_device_s,busy_device_s,idle_share,/);
  // No cell is taken for a formula.
  expect(csv[1]).toMatch(/^'=cmd,1,0,/);
  expect((await usage('--by', 'model', '--md')).stdout).toMatch(/^\| model \| jobs [\s\S]*\n\| tiny \| 1 \|/);
});

it('cuts runs by the time that is asked for', async () => {
  const { stdout } = await usage('--json', '--since', '2026-03-01T01:30:00Z');
  expect(JSON.parse(stdout).jobs).toMatchObject([{ walltime_s: 1800, busy_device_s: 0, idle_share: 1 }]);
  const after = await usage('--since', '2026-03-02');
  expect([after.code, after.stdout]).toEqual([0, '']);
  expect(after.stderr).toContain('no jobs in this time');
});

it.each([
  [['usage', 'jobs', '--group-by', 'user'], 'user is none of job, account'],
  [['usage', '--group-by', 'node_kind'], 'node_kind is none of user, key'],
  [['usage', 'jobs', '--group-by', 'acount'], 'did you mean account?'],
  [['usage', 'jobs', '--group-by', 'job,job'], 'a dimension is named twice'],
])('%j is refused', async (argv, words) => {
  const { code, stdout, stderr } = await home.run([...argv, '--ledger', ledger]);
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr).toContain(words);
});
