/** Questions about a ledger that is written meanwhile: nobody waits for them but who asks. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Database from 'better-sqlite3';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Filesystem } from '../../../host/filesystem.ts';
import { type Ledger, openLedger, type RequestRecord } from '../../../ledger/index.ts';
import type { RequestsQuestion } from '../../../ledger/questions/question.ts';
import type { UsageAnswer } from '../../../spec/usage.ts';
import { askedUsage } from '../asked-usage.ts';

const local: Filesystem = { name: 'local', network: false, shared_memory: true };
const network: Filesystem = { name: 'NFS', network: true, shared_memory: false };
const recorded_ms = Date.UTC(2026, 2, 1, 12);
const byModel: RequestsQuestion = {
  of: 'requests',
  group_by: ['model'],
  format: 'json',
  key_names: new Map(),
};
let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-questions-test-'));
  path = join(folder, 'ledger.sqlite');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function write(ledger: Ledger, change: Partial<RequestRecord> = {}): Promise<void> {
  const record: RequestRecord = {
    request_id: 'req_1',
    time_ms: recorded_ms,
    key_id: 'key_1',
    endpoint: '/v1/chat/completions',
    model: 'm',
    status: 200,
    stream: false,
    attempts: 1,
    duration_ms: 10,
    ...change,
  };
  return new Promise((resolve, reject) =>
    ledger.record(record, (error) => (error ? reject(error) : resolve())),
  );
}

/** A ledger of so many hours of 200 series, a request in each. */
async function makeLarge(hours: number): Promise<number> {
  await openLedger(path).ledger.close();
  const db = new Database(path);
  db.exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
    INSERT INTO series SELECT i, 'key_' || i, NULL, '', '', '/v1/chat/completions', 'm', 'm', '', 0 FROM n;
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ${200 * hours - 1})
    INSERT INTO hours SELECT 400000 + i / 200, 1 + i % 200, 1, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
      (400000 + i / 200) * 3600000, (400000 + i / 200) * 3600000 FROM n`);
  db.close();
  return 200 * hours;
}

describe.each([local, network])('on a filesystem of the kind $name', (filesystem) => {
  it('requests are recorded while a large ledger is summed up', async () => {
    const requests = await makeLarge(4000);
    const { ledger } = openLedger(path, { filesystem });
    // The thread is there: what is left to be waited for is the sum.
    await askedUsage(ledger, { group_by: ['model'], since_ms: recorded_ms + 3_600_000_000_000 });
    const order: string[] = [];
    const asked = askedUsage(ledger, { group_by: ['model', 'endpoint'] });
    const answered = asked.then(() => order.push('answer'));
    for (let at = 0; at < 5; at++) {
      await write(ledger);
      order.push('record');
    }
    await answered;
    expect(order).toEqual([...Array<string>(5).fill('record'), 'answer']);
    const [row] = (await asked).filter(({ group }) => group.model === 'm');
    expect(row).toMatchObject({ requests, prompt_tokens: 7 * requests });
    await ledger.close();
  }, 60_000);

  it('what was recorded before is counted, however lately', async () => {
    const { ledger } = openLedger(path, { filesystem });
    for (let count = 1; count <= 20; count++) {
      await write(ledger);
      expect((await askedUsage(ledger, { group_by: ['key'] }))[0]?.requests).toBe(count);
    }
    await ledger.close();
  }, 60_000);

  it('pages of hours, requests and series are each counted once', async () => {
    const { ledger } = openLedger(path, { filesystem });
    const times = Array.from({ length: 5000 }, (_, index) => recorded_ms + 2_000_000 * index + (index % 7));
    const keys = times.map((_, index) => `key_${index % 2500}`);
    // Many at one moment, over the end of a page.
    for (let index = 0; index < 3000; index++) {
      times.push(recorded_ms + 1);
      keys.push('key_1');
    }
    await Promise.all(times.map((time_ms, index) => write(ledger, { time_ms, key_id: keys[index]! })));
    for (const [since_ms, until_ms] of [
      [undefined, undefined],
      [recorded_ms + 1, recorded_ms + 2],
      [recorded_ms + 5, recorded_ms + 3_000_000_000 + 5],
    ] as const) {
      const rows = await askedUsage(ledger, { group_by: ['endpoint'], since_ms, until_ms });
      const inside = times.filter(
        (time_ms) => time_ms >= (since_ms ?? 0) && time_ms < (until_ms ?? Number.POSITIVE_INFINITY),
      );
      expect(rows[0]?.requests).toBe(inside.length);
      expect(rows).toHaveLength(1);
    }
    expect(await askedUsage(ledger, { group_by: ['key'] })).toHaveLength(2500);
    await ledger.close();
  }, 60_000);

  it('who asks without end is refused, and holds up nobody else', async () => {
    await makeLarge(100);
    const { ledger } = openLedger(path, { filesystem });
    const order: string[] = [];
    const greedy = Array.from({ length: 20 }, () => ledger.ask('key_1', byModel));
    const outcomes = greedy.map((asked) =>
      asked.then(
        () => order.push('greedy'),
        (error: { code: string }) => order.push(error.code),
      ),
    );
    const other = ledger.ask('key_2', byModel).then(() => order.push('other'));
    await Promise.all([...outcomes, other]);
    // One is answered at once, eight wait.
    expect(order.filter((one) => one === 'greedy')).toHaveLength(9);
    expect(order.slice(0, 11)).toEqual(Array(11).fill('E_KEY_QUESTIONS'));
    expect(order.indexOf('other')).toBeLessThanOrEqual(12);
    await ledger.close();
  }, 60_000);

  it('what is not answered when the ledger closes is given up, and the rest is written', async () => {
    await makeLarge(4000);
    const { ledger } = openLedger(path, { filesystem });
    const asked = Array.from({ length: 5 }, () => ledger.ask('key_1', byModel));
    const outcomes = Promise.allSettled(asked);
    await write(ledger);
    await ledger.close();
    for (const outcome of await outcomes)
      expect(outcome).toMatchObject({ status: 'rejected', reason: { code: 'E_GATEWAY_DRAINING' } });
    await expect(ledger.ask('key_1', byModel)).rejects.toMatchObject({ code: 'E_GATEWAY_DRAINING' });
  }, 60_000);
});

it('names keys, and says why a ledger cannot be read', async () => {
  const { ledger } = openLedger(path);
  await write(ledger);
  const named: RequestsQuestion = { ...byModel, group_by: ['key'], key_names: new Map([['key_1', 'alice']]) };
  const answer = JSON.parse(new TextDecoder().decode(await ledger.ask('operator', named))) as UsageAnswer;
  expect(answer.usage).toMatchObject([{ group: { key: 'key_1' }, key_name: 'alice', requests: 1 }]);
  const csv = new TextDecoder().decode(await ledger.ask('operator', { ...named, format: 'csv' }));
  expect(csv.split('\n')[1]).toMatch(/^key_1,alice,1,/);
  const db = new Database(path);
  db.exec('DROP TABLE days');
  db.close();
  const because = [expect.stringContaining('no such table: days')];
  await expect(ledger.ask('operator', byModel)).rejects.toMatchObject({ because });
  await ledger.close();
});
