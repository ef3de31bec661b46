/** The ledger with millions of requests: its size, how long questions take, what writing costs, and kills. */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import Database from 'better-sqlite3';
import { compiledFile } from '../../host/programs.ts';
import { type Ledger, openLedger, openLedgerReader } from '../../ledger/index.ts';
import { type UsageDimension, type UsageQuery, usageDimensions } from '../../spec/usage.ts';
import type { Bench, BenchResult } from '../result.ts';
import { Population } from './population.ts';

const first_ms = Date.UTC(2026, 0, 1);
const days = 90;
/** CPU time that a gateway takes for a request, all on: `bench -- gateway`, docs/gateway.md. */
const request_us = 68;
/** As many records share a commit in a gateway under load; see `sharedGroup` of the ledger. */
const group = 16;

export const ledgerBench: Bench = {
  name: 'ledger',
  describe: 'the ledger with ten million requests: size, questions, writing, kill -9',
  run: async ({ args, log }) => {
    const requests = numberOf(args, '--requests', 10_000_000);
    const kills = numberOf(args, '--kills', 200);
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-ledger-bench-'));
    try {
      return [
        ...(await measureSize(join(folder, 'ledger.sqlite'), requests, log)),
        ...(await measureKills(join(folder, 'killed.sqlite'), kills, log)),
      ];
    } finally {
      rmSync(folder, { recursive: true });
    }
  },
};

async function measureSize(
  path: string,
  requests: number,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const write_us = await fill(path, requests, log);
  const results = [
    result('CPU time of writing a request, commits of 16', 'µs', write_us, ''),
    result(
      `the same, of the ${request_us} µs that a gateway takes for a request`,
      '%',
      (100 * write_us) / request_us,
      '≤ 2 %',
      write_us <= 0.02 * request_us,
    ),
  ];
  const bytes = statSync(path).size / requests;
  results.push(result(`bytes of a request, of ${requests}`, 'B', bytes, '≤ 200 B', bytes <= 200));
  const reader = openLedgerReader(path);
  let slowest = { ms: 0, words: '' };
  for (const { words, query } of questions()) {
    const began_ms = performance.now();
    const rows = reader.usage(query).length;
    const ms = performance.now() - began_ms;
    log(`${words}: ${rows} rows, ${ms.toFixed(0)} ms`);
    if (ms > slowest.ms) slowest = { ms, words };
  }
  reader.close();
  const { ms, words } = slowest;
  results.push(result(`slowest grouped question (${words})`, 'ms', ms, '≤ 1000 ms', ms <= 1000));
  return results;
}

/** @returns CPU time of a request, µs */
async function fill(path: string, requests: number, log: (line: string) => void): Promise<number> {
  const { ledger } = openLedger(path);
  const population = new Population(1, first_ms, 24 * days);
  let spent_us = 0;
  for (let done = 0; done < requests; done += group) {
    const records = Array.from({ length: group }, () => population.next(requests));
    const before = process.cpuUsage();
    await Promise.all(records.map((record) => written(ledger, record)));
    const { user, system } = process.cpuUsage(before);
    spent_us += user + system;
    if (done % 1_000_000 < group && done > 0)
      log(`${done} requests, ${(spent_us / done).toFixed(1)} µs each`);
  }
  await ledger.close();
  return spent_us / requests;
}

function written(ledger: Ledger, record: Parameters<Ledger['record']>[0]): Promise<void> {
  return new Promise((resolve, reject) =>
    ledger.record(record, (error) => (error ? reject(error) : resolve())),
  );
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
  path: string,
  kills: number,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const acknowledged: string[] = [];
  for (let round = 0; round < kills; round++) {
    acknowledged.push(...(await writeUntilKilled(path, round)));
    if (round % 20 === 19) log(`${round + 1} kills, ${acknowledged.length} acknowledged`);
  }
  await openLedger(path).ledger.close();
  const db = new Database(path, { readonly: true });
  const counts = db.prepare('SELECT request_id, count(*) FROM requests GROUP BY 1').raw().all() as [
    string,
    number,
  ][];
  const rows = counts.reduce((sum, [, count]) => sum + count, 0);
  const summed = db.prepare('SELECT sum(requests) FROM usage_by_hour').pluck().get() as number;
  db.close();
  const present = new Set(counts.map(([id]) => id));
  const missing = acknowledged.filter((id) => !present.has(id)).length;
  const twice = counts.filter(([, count]) => count > 1).length;
  log(`${acknowledged.length} acknowledged, ${rows} rows`);
  return [
    result(
      `acknowledged requests missing after ${kills} kills of a writer under load`,
      '',
      missing,
      '= 0',
      missing === 0,
    ),
    result('requests that are there twice', '', twice, '= 0', twice === 0),
    result(
      'difference of the sums by hour from the requests',
      '',
      Math.abs(summed - rows),
      '= 0',
      summed === rows,
    ),
  ];
}

/** @returns ids that the writer printed before it was killed, after a part of a second that differs by round */
async function writeUntilKilled(path: string, round: number): Promise<string[]> {
  const child = spawn(process.execPath, [compiledFile('bench/ledger/writer.js'), path, String(round)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const lines: string[] = [];
  const wanted = 20 + ((round * 37) % 400);
  for await (const line of createInterface({ input: child.stdout })) {
    lines.push(line);
    if (lines.length === wanted) child.kill('SIGKILL');
  }
  return lines;
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
