/** The ledger with millions of requests: its size, how long questions take, what writing costs, and kills. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Database from 'better-sqlite3';
import { finishDays } from '../../ledger/days.ts';
import { type Ledger, openLedger, openLedgerReader, type RequestRecord } from '../../ledger/index.ts';
import { type UsageDimension, type UsageQuery, usageDimensions } from '../../spec/usage.ts';
import type { Bench, BenchResult } from '../result.ts';
import { killUnderLoad } from './killed-gateway.ts';
import { Population } from './population.ts';

const first_ms = Date.UTC(2026, 0, 1);
const days = 90;
/** As many records share a commit in a gateway under load; see `sharedGroup` of the ledger. */
const group = 16;
/** Records that are made at a time, before any of them is written: what that costs is not the ledger's. */
const chunk = 64 * group;

export const ledgerBench: Bench = {
  name: 'ledger',
  describe: 'the ledger with ten million requests: size, questions, writing, kill -9 of gateways under load',
  run: async ({ args, log }) => {
    const requests = numberOf(args, '--requests', 10_000_000);
    const kills = numberOf(args, '--kills', 200);
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-ledger-bench-'));
    try {
      const { request_us, results } = await measureKills(join(folder, 'killed'), kills, log);
      return [...(await measureSize(join(folder, 'ledger.sqlite'), requests, request_us, log)), ...results];
    } finally {
      rmSync(folder, { recursive: true });
    }
  },
};

async function measureSize(
  path: string,
  requests: number,
  request_us: number,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const cost = await fill(path, requests, log);
  const results = [
    result('CPU time of writing a request on the event loop, commits of 16', 'µs', cost.loop_us, ''),
    result(
      `the same, of the ${request_us.toFixed(0)} µs that the event loop of a gateway takes for a request`,
      '%',
      (100 * cost.loop_us) / request_us,
      '≤ 2 %',
      cost.loop_us <= 0.02 * request_us,
    ),
    result('CPU time of other threads for a request: tables and their sums', 'µs', cost.others_us, ''),
  ];
  const bytes = statSync(path).size / requests;
  results.push(result(`bytes of a request, of ${requests}`, 'B', bytes, '≤ 200 B', bytes <= 200));
  const reader = openLedgerReader(path);
  let slowest = { ms: 0, words: '' };
  for (const { words, query } of questions()) {
    const [began_ms, before_us] = [performance.now(), loop_us()];
    const rows = reader.usage(query).length;
    const ms = performance.now() - began_ms;
    log(
      `${words}: ${rows} rows, ${ms.toFixed(0)} ms (${((loop_us() - before_us) / 1000).toFixed(0)} ms of CPU)`,
    );
    if (ms > slowest.ms) slowest = { ms, words };
  }
  reader.close();
  const { ms, words } = slowest;
  results.push(result(`slowest grouped question (${words})`, 'ms', ms, '≤ 1000 ms', ms <= 1000));
  return results;
}

interface WriteCost {
  /** CPU time of a request on the thread that answers, and on all others, µs. */
  loop_us: number;
  others_us: number;
}

async function fill(path: string, requests: number, log: (line: string) => void): Promise<WriteCost> {
  const { ledger } = openLedger(path);
  const population = new Population(1, first_ms, 24 * days);
  const others_us = (): number => cpu_us() - loop_us();
  const before_us = others_us();
  let spent_us = 0;
  for (let done = 0; done < requests; done += chunk) {
    const records = Array.from({ length: Math.min(chunk, requests - done) }, () => population.next(requests));
    const began_us = loop_us();
    for (let at = 0; at < records.length; at += group) await write(ledger, records.slice(at, at + group));
    spent_us += loop_us() - began_us;
    if (done % 1_000_000 < chunk && done > 0)
      log(`${done} requests, ${(spent_us / done).toFixed(2)} µs each on the event loop`);
  }
  await ledger.close();
  const db = new Database(path);
  const began_ms = performance.now();
  const finished = finishDays(db, Date.now());
  log(`blocks of ${finished} days in ${(performance.now() - began_ms).toFixed(0)} ms`);
  db.close();
  return { loop_us: spent_us / requests, others_us: (others_us() - before_us) / requests };
}

function cpu_us(): number {
  const { user, system } = process.cpuUsage();
  return user + system;
}

/** CPU time of this thread. */
function loop_us(): number {
  return Number(readFileSync('/proc/thread-self/schedstat', 'utf8').split(' ')[0]) / 1000;
}

/** One promise for all of them: theirs is not the ledger's work. */
function write(ledger: Ledger, records: readonly RequestRecord[]): Promise<void> {
  return new Promise((resolve, reject) => {
    let left = records.length;
    const committed = (error: Error | undefined): void => {
      if (error) reject(error);
      else if (--left === 0) resolve();
    };
    for (const record of records) ledger.record(record, committed);
  });
}

/** By each dimension, by three, and of times that begin and end within an hour. */
function* questions(): Generator<{ words: string; query: UsageQuery }> {
  const groups: UsageDimension[][] = usageDimensions.map((name) => [name]);
  for (const group_by of [
    ...groups,
    ['user', 'model', 'day'] as const,
    ['project', 'device', 'month'] as const,
  ]) {
    yield { words: `by ${group_by.join()}`, query: { group_by } };
    const half_hour_ms = 1_800_000;
    const since_ms = first_ms + 10 * 86_400_000 + half_hour_ms;
    const until_ms = first_ms + 70 * 86_400_000 + half_hour_ms;
    yield {
      words: `by ${group_by.join()}, 60 days from a half hour`,
      query: { group_by, since_ms, until_ms },
    };
  }
}

async function measureKills(
  folder: string,
  kills: number,
  log: (line: string) => void,
): Promise<{ request_us: number; results: BenchResult[] }> {
  mkdirSync(folder);
  const { answered, missing, twice, rows, summed, request_us } = await killUnderLoad(folder, kills, log);
  log(`${answered} answers, ${rows} rows`);
  const difference = Math.abs(summed - rows);
  const results = [
    result(
      `answered requests missing after ${kills} kills of a gateway under load, of ${answered}`,
      '',
      missing.length,
      '= 0',
      missing.length === 0,
    ),
    result('requests that are there twice', '', twice.length, '= 0', twice.length === 0),
    result('difference of the sums from the requests', '', difference, '= 0', difference === 0),
  ];
  return { request_us, results };
}

function result(
  what: string,
  unit: string,
  ours: number,
  bar: string,
  holds: boolean | null = null,
): BenchResult {
  return { what, unit, ours, peer: '', theirs: null, ratio: null, bar, holds };
}

function numberOf(args: readonly string[], name: string, usual: number): number {
  const at = args.indexOf(name);
  return at === -1 ? usual : Number(args[at + 1]);
}
