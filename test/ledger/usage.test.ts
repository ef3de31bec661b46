/** Questions, held against what the requests themselves say: with blocks of days, without, and after late requests. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Database from 'better-sqlite3';
import fc from 'fast-check';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { decodeDay, encodeDay } from '../../ledger/day-block.ts';
import { finishDays } from '../../ledger/days.ts';
import { summedColumns } from '../../ledger/hour-sums.ts';
import { type Ledger, openLedger, type RequestRecord } from '../../ledger/index.ts';
import { queryUsage } from '../../ledger/usage.ts';
import type { UsageDimension, UsageFilter, UsageQuery, UsageRow } from '../../spec/usage.ts';
import { askedUsage } from './asked-usage.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-usage-test-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const first_ms = Date.UTC(2026, 0, 30);
const sessions = ['d1', 'd2'].map((deployment) => ({
  session_id: deployment,
  node: `node-${deployment}`,
  site: 's',
  deployment,
}));

/** About three days around the end of a month. */
const record: fc.Arbitrary<RequestRecord> = fc
  .record({
    time_ms: fc.integer({ min: first_ms, max: first_ms + 3 * 86_400_000 }),
    key_id: fc.constantFrom('k1', 'k2'),
    user: fc.constantFrom(undefined, 'alice', 'böb'),
    session: fc.constantFrom(undefined, ...sessions),
    attempts: fc.integer({ min: 0, max: 3 }),
    prompt_tokens: fc.option(fc.nat(100_000), { nil: undefined }),
    completion_tokens: fc.option(fc.nat(5), { nil: undefined }),
    ttft_ms: fc.option(fc.double({ min: 0, max: 1e4, noNaN: true }), { nil: undefined }),
    device_s: fc.option(fc.double({ min: 0, max: 1e7, noNaN: true }), { nil: undefined }),
    energy_j: fc.option(fc.double({ min: 0, max: 1e9, noNaN: true }), { nil: undefined }),
    energy_estimated: fc.boolean(),
    error_code: fc.option(fc.constant('E_X'), { nil: undefined }),
  })
  .map((some) => ({
    request_id: 'req_1',
    endpoint: '/v1/chat/completions',
    model: 'm',
    status: 200,
    stream: false,
    duration_ms: 20_000,
    ...some,
  }));

const question = fc.record({
  group_by: fc.uniqueArray(fc.constantFrom('user', 'key', 'node', 'model', 'hour', 'day', 'month'), {
    minLength: 1,
    maxLength: 4,
  }) as fc.Arbitrary<UsageDimension[]>,
  since_ms: fc.option(fc.integer({ min: first_ms, max: first_ms + 3 * 86_400_000 }), { nil: undefined }),
  until_ms: fc.option(fc.integer({ min: first_ms, max: first_ms + 3 * 86_400_000 }), { nil: undefined }),
  filter: fc.constantFrom<UsageFilter | undefined>(undefined, { user: ['böb', '-'] }, { key: ['k1'] }),
});

async function writeAll(ledger: Ledger, records: readonly RequestRecord[]): Promise<void> {
  await Promise.all(
    records.map(
      (each) =>
        new Promise<void>((resolve, reject) =>
          ledger.record(each, (error) => (error ? reject(error) : resolve())),
        ),
    ),
  );
}

/** The same from the records, one by one. */
function recomputed(records: readonly RequestRecord[], { group_by, ...query }: UsageQuery): UsageRow[] {
  const namesOf = (of: RequestRecord): Partial<Record<UsageDimension, string>> => {
    const iso = new Date(of.time_ms).toISOString();
    return {
      user: of.user ?? '-',
      key: of.key_id,
      node: of.session?.node ?? '-',
      model: of.session ? 'm' : '-',
      hour: `${iso.slice(0, 13)}:00Z`,
      day: iso.slice(0, 10),
      month: iso.slice(0, 7),
    };
  };
  const groups = new Map<string, RequestRecord[]>();
  for (const each of records) {
    const names = namesOf(each);
    const [since_ms, until_ms] = [query.since_ms ?? 0, query.until_ms ?? Number.MAX_SAFE_INTEGER];
    if (each.time_ms < since_ms || each.time_ms >= until_ms) continue;
    const wanted = Object.entries(query.filter ?? {});
    if (wanted.some(([name, values]) => !values.includes(names[name as UsageDimension]!))) continue;
    const group = JSON.stringify(group_by.map((name) => names[name]));
    groups.set(group, [...(groups.get(group) ?? []), each]);
  }
  const rows = [...groups].map(([group, of]) => {
    const names = JSON.parse(group) as string[];
    return rowOf(Object.fromEntries(group_by.map((name, index) => [name, names[index]!])), of);
  });
  const order = ({ group }: UsageRow): string => group_by.map((name) => group[name]).join('\0');
  return rows.sort((a, b) => (order(a) < order(b) ? -1 : 1));
}

function rowOf(group: UsageRow['group'], of: readonly RequestRecord[]): UsageRow {
  const sum = (value: (each: RequestRecord) => number): number =>
    of.reduce((total, each) => total + value(each), 0);
  const decodes = ({ ttft_ms, completion_tokens = 0 }: RequestRecord): boolean =>
    ttft_ms !== undefined && completion_tokens > 1;
  const us = (ms = 0): number => Math.round(ms * 1000);
  const mj = ({ energy_j = 0 }: RequestRecord): number => Math.round(energy_j * 1000);
  return {
    group,
    requests: of.length,
    errors: sum(({ error_code }) => (error_code ? 1 : 0)),
    retries: sum(({ attempts }) => Math.max(attempts - 1, 0)),
    prompt_tokens: sum(({ prompt_tokens = 0 }) => prompt_tokens),
    completion_tokens: sum(({ completion_tokens = 0 }) => completion_tokens),
    cached_tokens: 0,
    reasoning_tokens: 0,
    duration_ms: sum(({ duration_ms }) => us(duration_ms)) / 1000,
    ttft_ms: sum(({ ttft_ms }) => us(ttft_ms)) / 1000,
    ttft_requests: sum(({ ttft_ms }) => (ttft_ms === undefined ? 0 : 1)),
    decode_ms: sum((each) => (decodes(each) ? us(each.duration_ms) - us(each.ttft_ms) : 0)) / 1000,
    decode_tokens: sum((each) => (decodes(each) ? each.completion_tokens! - 1 : 0)),
    device_s: sum(({ device_s = 0 }) => Math.round(device_s * 1e6)) / 1e6,
    energy_j: sum(mj) / 1000,
    energy_estimated_j: sum((each) => (each.energy_estimated ? mj(each) : 0)) / 1000,
    first_ms: Math.min(...of.map(({ time_ms }) => time_ms)),
    last_ms: Math.max(...of.map(({ time_ms }) => time_ms)),
  };
}

it('is what the requests add up to, of whatever time and by whatever', async () => {
  let round = 0;
  await fc.assert(
    fc.asyncProperty(
      fc.array(record, { maxLength: 40 }),
      fc.array(record, { maxLength: 3 }),
      fc.array(question, { minLength: 1, maxLength: 5 }),
      async (records, late, questions) => {
        const path = join(folder, `usage-${round++}.sqlite`);
        const first = openLedger(path).ledger;
        await writeAll(first, records);
        for (const query of questions)
          expect(await askedUsage(first, query)).toEqual(recomputed(records, query));
        await first.close();
        const db = new Database(path);
        finishDays(db, Date.UTC(2027, 0, 1));
        const days = new Set(records.map(({ time_ms }) => Math.floor(time_ms / 86_400_000)));
        expect(db.prepare('SELECT count(*) FROM days').pluck().get()).toBe(days.size);
        for (const query of questions) expect(queryUsage(db, query)).toEqual(recomputed(records, query));
        db.close();
        const second = openLedger(path).ledger;
        await writeAll(second, late);
        for (const query of questions)
          expect(await askedUsage(second, query)).toEqual(recomputed([...records, ...late], query));
        await second.close();
      },
    ),
    { numRuns: 30 },
  );
}, 240_000);

it('blocks have the numbers of a day, in as many bytes as the largest of each kind needs', () => {
  const day = 20_483;
  const large = 2 ** 40 + 1;
  const rowAt = (hour: number, series: number, value: number): number[] => [
    24 * day + hour,
    series,
    ...summedColumns.map((_name, index) => (index === 0 ? 1 : index === 1 ? 0 : value)),
    (24 * day + hour) * 3_600_000,
    (24 * day + hour) * 3_600_000 + 3_599_999,
  ];
  for (const value of [0, 255, 256, 65_535, 65_536, 2 ** 32 - 1, 2 ** 32, large]) {
    const block = encodeDay(day, [rowAt(0, 1, 0), rowAt(23, 70_000, value)]);
    // Where its bytes begin within their buffer is not ours to choose.
    const shifted = Buffer.concat([Buffer.alloc(3), block]).subarray(3);
    for (const bytes of [block, shifted]) {
      const { rows, columns } = decodeDay(bytes)!;
      expect(rows).toBe(2);
      expect([...columns[0]!]).toEqual([0, 23]);
      expect([...columns[1]!]).toEqual([1, 70_000]);
      expect([...columns[2]!]).toEqual([1, 1]);
      expect(columns[3]).toBeUndefined();
      expect(columns[4] ? [...columns[4]] : [0, 0]).toEqual([0, value]);
      expect([...columns.at(-1)!]).toEqual([3_599_999, 23 * 3_600_000 + 3_599_999]);
    }
    expect(decodeDay(block.subarray(0, block.length - 8))).toBeUndefined();
  }
  expect(decodeDay(Buffer.from('no block'))).toBeUndefined();
});
