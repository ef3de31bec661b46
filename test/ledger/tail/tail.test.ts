/** The tail: records that are safe and not in the tables yet, whoever dies when. */
import { execFile } from 'node:child_process';
import {
  appendFileSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import Database from 'better-sqlite3';
import fc from 'fast-check';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { compiledFile } from '../../../host/programs.ts';
import { type Ledger, openLedger, openLedgerReader, type RequestRecord } from '../../../ledger/index.ts';
import { migrate } from '../../../ledger/schema.ts';
import { Fold } from '../../../ledger/tail/fold.ts';
import { tailNumbers } from '../../../ledger/tail/tail-files.ts';
import { TailDecoder, TailEncoder } from '../../../ledger/tail/tail-line.ts';
import { TailWriter } from '../../../ledger/tail/tail-writer.ts';
import { askedUsage } from '../asked-usage.ts';

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-tail-test-'));
  path = join(folder, 'ledger.sqlite');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const session = { session_id: 'a'.repeat(32), node: 'n1', site: 's', deployment: 'd', device_count: 4 };

function recordOf(change: Partial<RequestRecord> = {}): RequestRecord {
  return {
    request_id: 'req_1',
    time_ms: Date.UTC(2026, 2, 1, 12),
    key_id: 'key_1',
    endpoint: '/v1/chat/completions',
    model: 'm',
    status: 200,
    stream: false,
    attempts: 1,
    duration_ms: 10,
    ...change,
  };
}

/** A ledger whose gateway was killed before it moved these groups of records, each a line, into the tables. */
function killedLedger(...groups: RequestRecord[][]): TailWriter {
  const db = new Database(path);
  db.pragma('journal_mode = WAL');
  migrate(db, path);
  db.close();
  const writer = new TailWriter(path, 1);
  for (const group of groups) writer.append(group);
  return writer;
}

function idsOf(ledger: string): string[] {
  const db = new Database(ledger, { readonly: true });
  const ids = db.prepare('SELECT request_id FROM requests ORDER BY sequence').pluck().all() as string[];
  db.close();
  return ids;
}

/** What its users are told: what was moved within seconds of the question, on a machine that has much else to do. */
const requestsOf = async (ledger: Ledger): Promise<number | undefined> =>
  (await askedUsage(ledger, { group_by: ['model'] }))[0]?.requests;

const write = (ledger: Ledger, record: RequestRecord): Promise<void> =>
  new Promise((resolve, reject) => ledger.record(record, (error) => (error ? reject(error) : resolve())));

it('a line gives back what a record was, whatever it has', () => {
  const text = fc.string({ unit: 'grapheme', maxLength: 20 });
  const count = fc.option(fc.nat(1_000_000), { nil: undefined });
  const arbitrary: fc.Arbitrary<RequestRecord> = fc.record({
    request_id: text,
    time_ms: fc.nat(),
    key_id: text,
    limits_key_id: fc.option(text, { nil: undefined }),
    user: fc.option(text, { nil: undefined }),
    project: fc.option(text, { nil: undefined }),
    endpoint: text,
    model: text,
    served_model: fc.option(text, { nil: undefined }),
    precision: fc.option(text, { nil: undefined }),
    session: fc.constantFrom(undefined, session, { ...session, session_id: 'b', node: 'n2' }),
    status: fc.nat(599),
    stream: fc.boolean(),
    attempts: fc.nat(9),
    prompt_tokens: count,
    completion_tokens: count,
    cached_tokens: count,
    reasoning_tokens: count,
    ttft_ms: fc.option(
      fc.nat(1e9).map((us) => us / 1000),
      { nil: undefined },
    ),
    duration_ms: fc.nat(1e9).map((us) => us / 1000),
    device_s: fc.option(
      fc.nat(1e9).map((us) => us / 1e6),
      { nil: undefined },
    ),
    energy_j: fc.option(
      fc.nat(1e9).map((mj) => mj / 1000),
      { nil: undefined },
    ),
    energy_estimated: fc.boolean(),
    finish_reason: fc.option(text, { nil: undefined }),
    error_code: fc.option(text, { nil: undefined }),
    counts_only: fc.constant(false),
    trace: fc.option(
      fc.record({ parameters: text, prefix: fc.uint8Array().map((bytes) => Buffer.from(bytes)) }),
      { nil: undefined },
    ),
  });
  fc.assert(
    fc.property(fc.array(fc.array(arbitrary, { minLength: 1, maxLength: 4 }), { maxLength: 4 }), (groups) => {
      const [encoder, decoder] = [new TailEncoder(), new TailDecoder()];
      for (const group of groups) {
        // One that could not be written leaves no trace in those behind it.
        encoder.encode(group);
        encoder.takeBack();
        const line = encoder.encode(group);
        expect(line.indexOf('\n')).toBe(line.length - 1);
        expect(decoder.decode(line).records).toEqual(group);
      }
    }),
  );
});

it('a killed gateway’s is read as if it had been moved, and moved once', async () => {
  killedLedger(
    [recordOf({ session }), recordOf({ request_id: 'req_2' })],
    [recordOf({ request_id: 'req_3' })],
  );
  const reader = openLedgerReader(path);
  expect(reader.usage({ group_by: ['node'] }).map(({ group, requests }) => [group.node, requests])).toEqual([
    ['-', 2],
    ['n1', 1],
  ]);
  reader.close();
  for (let round = 0; round < 2; round++) {
    await openLedger(path).ledger.close();
    expect(idsOf(path)).toEqual(['req_1', 'req_2', 'req_3']);
  }
  expect(tailNumbers(path)).toEqual([]);
});

it('a long one that a reader moves holds up no gateway that starts', async () => {
  const records = 600_000;
  const groups = Array.from({ length: records / 1000 }, (_, group) =>
    Array.from({ length: 1000 }, (_, index) => recordOf({ request_id: `req_${group}_${index}`, session })),
  );
  killedLedger(...groups);
  const module = pathToFileURL(compiledFile('ledger/index.js')).href;
  const program = `(await import('${module}')).openLedgerReader(process.argv[1]).close()`;
  const read = promisify(execFile)(process.execPath, ['--input-type=module', '-e', program, path]);
  const db = new Database(path, { readonly: true });
  const moved = db.prepare('SELECT bytes FROM tail_position').pluck();
  await expect.poll(() => moved.get(), { timeout: 20_000, interval: 20 }).not.toBe(0);
  db.close();
  const { ledger } = openLedger(path);
  await read;
  expect(await requestsOf(ledger)).toBe(records);
  await ledger.close();
}, 120_000);

it('what was moved, and not noted where, is moved once: both are one transaction', () => {
  killedLedger([recordOf()], [recordOf({ request_id: 'req_2' })]);
  // As a copy that was taken when the tables had them and the file was still there.
  const db = new Database(path);
  const one = new Fold(db, path, { keepsFiles: true });
  one.all();
  expect(one.position()).toEqual({ file: 1, bytes: statSync(`${path}.tail-1`).size });
  one.close();
  const other = new Fold(db, path, { keepsFiles: true });
  other.all();
  other.close();
  db.close();
  expect(idsOf(path)).toEqual(['req_1', 'req_2']);
});

it('two that move the same at the same time move it once', () => {
  const writer = killedLedger([recordOf()]);
  const [a, b] = [new Database(path), new Database(path)];
  const [one, other] = [new Fold(a, path), new Fold(b, path)];
  one.all();
  writer.append([recordOf({ request_id: 'req_2', session })]);
  other.all();
  writer.append([recordOf({ request_id: 'req_3', session })]);
  one.all();
  other.all();
  expect(idsOf(path)).toEqual(['req_1', 'req_2', 'req_3']);
  for (const each of [one, other, a, b]) each.close();
});

it('goes on in another file when one is large, and the files that were moved go', async () => {
  const { ledger } = openLedger(path);
  const prefix = Buffer.alloc(4096, 7);
  // 12 MB of each round, of the 16 MB that a file takes.
  for (let round = 0; round < 4; round++)
    await Promise.all(
      Array.from({ length: 2000 }, (_, index) =>
        write(ledger, recordOf({ request_id: `req_${round}_${index}`, trace: { parameters: '{}', prefix } })),
      ),
    );
  await expect.poll(() => requestsOf(ledger), { timeout: 60_000 }).toBe(8000);
  await expect.poll(() => tailNumbers(path), { timeout: 10_000 }).not.toContain(1);
  await ledger.close();
  expect(tailNumbers(path)).toEqual([]);
  expect(new Set(idsOf(path)).size).toBe(8000);
});

it('a line that is cut off was never acknowledged, and nothing behind it is lost', async () => {
  killedLedger([recordOf()], [recordOf({ request_id: 'req_2' })]);
  const file = `${path}.tail-1`;
  truncateSync(file, statSync(file).size - 5);
  const { ledger } = openLedger(path);
  await write(ledger, recordOf({ request_id: 'req_3' }));
  await ledger.close();
  expect(idsOf(path)).toEqual(['req_1', 'req_3']);
});

it('a damaged line is left out, and noted', async () => {
  killedLedger([recordOf()]);
  appendFileSync(`${path}.tail-1`, `${'\0'.repeat(100)}\n{"requests":[[7]]}\n`);
  await openLedger(path).ledger.close();
  expect(idsOf(path)).toEqual(['req_1']);
  const db = new Database(path, { readonly: true });
  expect(db.prepare('SELECT requests, reason FROM gaps').all()).toEqual(
    Array(2).fill({ requests: 0, reason: 'a line of the tail was damaged' }),
  );
  db.close();
});

it('has no id of a request that leaves only counts', async () => {
  const { ledger } = openLedger(path);
  await write(ledger, recordOf({ request_id: 'req_secret', counts_only: true }));
  for (const file of readdirSync(folder))
    expect(readFileSync(join(folder, file)).includes('req_secret'), file).toBe(false);
  await ledger.close();
});

it('of a ledger that is damaged brings back what the tables had not, once', async () => {
  const { ledger } = openLedger(path);
  const ids = Array.from({ length: 3000 }, (_, index) => `req_${index}`);
  await Promise.all(ids.map((request_id, index) => write(ledger, recordOf({ request_id, time_ms: index }))));
  await expect.poll(() => requestsOf(ledger), { timeout: 60_000 }).toBe(3000);
  await write(ledger, recordOf({ request_id: 'req_last' }));
  const killed = join(folder, 'killed');
  mkdirSync(killed);
  for (const name of readdirSync(folder))
    if (name.startsWith('ledger.sqlite') && !name.endsWith('.writer'))
      copyFileSync(join(folder, name), join(killed, name));
  await ledger.close();
  const copy = join(killed, 'ledger.sqlite');
  const db = new Database(copy);
  db.pragma('wal_checkpoint(TRUNCATE)');
  const root = db
    .prepare("SELECT rootpage FROM sqlite_schema WHERE name = 'tail_position'")
    .pluck()
    .get() as number;
  db.close();
  const bytes = readFileSync(copy);
  bytes.fill(0xff, (root - 1) * 4096, root * 4096);
  writeFileSync(copy, bytes);
  const { ledger: saved, repair } = openLedger(copy);
  expect(repair).toBeDefined();
  await saved.close();
  expect(idsOf(copy).sort()).toEqual([...ids, 'req_last'].sort());
});
