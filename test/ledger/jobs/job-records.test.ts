import { appendFileSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { askSql, openLedger, readJobRecords } from '../../../ledger/index.ts';
import { appendJobRecords } from '../../../ledger/jobs/job-records.ts';
import { type JobRecord, jobRecordSchema } from '../../../spec/job-record.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-jobs-test-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

const record = (job_id: string, start_ms: number, more: Partial<JobRecord> = {}): JobRecord =>
  jobRecordSchema.parse({ format: 1, site: 's', job_id, state: 'RUNNING', start_ms, ...more });

it('are read again as they were written, the last word on each run', async () => {
  const jobs = join(folder, 'jobs');
  expect(await readJobRecords([jobs])).toEqual([]);
  appendJobRecords(jobs, 'a', [record('1', 100), record('2', 50)]);
  appendJobRecords(jobs, 'b', [record('3', 10)]);
  const over = record('1', 100, { state: 'TIMEOUT', end_ms: 200 });
  // The same job once more, after it went back into the queue.
  appendJobRecords(jobs, 'a', [over, record('1', 300)]);
  expect(await readJobRecords([jobs])).toEqual([record('3', 10), record('2', 50), over, record('1', 300)]);
  expect(statSync(jobs).mode & 0o777).toBe(0o700);
  expect(statSync(join(jobs, 'a.jsonl')).mode & 0o777).toBe(0o600);
});

it('of a writer that was killed in the middle of a line cost that line alone', async () => {
  appendJobRecords(folder, 'a', [record('1', 100)]);
  appendFileSync(join(folder, 'a.jsonl'), '{"format":1,"site":"s","job_id":"2","st');
  appendJobRecords(folder, 'a', [record('3', 300)]);
  expect((await readJobRecords([folder])).map(({ job_id }) => job_id)).toEqual(['1', '3']);
  expect(readFileSync(join(folder, 'a.jsonl'), 'utf8').endsWith('\n')).toBe(true);
});

it('can be asked in SQL beside the ledgers', async () => {
  const path = join(folder, 'ledger.sqlite');
  await openLedger(path).ledger.close();
  const jobs = [
    record('7', 1000, {
      end_ms: 3_601_000,
      devices: 4,
      models: ["a'); DROP TABLE jobs; --", 'b'],
      account: 'chat',
    }),
    record('8', Date.now() - 60_000),
  ];
  const asked = { limit_ms: 20_000, rows_max: 10, jobs };
  const { rows } = await askSql(
    [path],
    'SELECT job_id, models, slurm_account, devices, walltime_s, allocated_device_s / 3600 FROM jobs WHERE end_ms > 0',
    asked,
  );
  expect(rows).toEqual([['7', "a'); DROP TABLE jobs; --,b", 'chat', 4, 3600, 4]]);
  const going = await askSql(
    [path],
    'SELECT walltime_s, allocated_device_s FROM jobs WHERE end_ms IS NULL',
    asked,
  );
  expect(going.rows[0]![0]).toBeGreaterThanOrEqual(60);
  expect(going.rows[0]![1]).toBeNull();
  const joined = 'SELECT count(*) FROM jobs LEFT JOIN usage_by_hour USING (job_id)';
  expect((await askSql([path], joined, asked)).rows).toEqual([[2]]);
  await expect(askSql([path], 'DELETE FROM jobs', asked)).rejects.toMatchObject({ code: 'E_LEDGER_QUERY' });
});
