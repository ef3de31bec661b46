import { type ChildProcess, spawn } from 'node:child_process';
import {
  copyFileSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import Database from 'better-sqlite3';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { filesystemOf, filesystemOfMagic } from '../../host/filesystem.ts';
import { packageRoot } from '../../host/package-root.ts';
import { dayOf, type Ledger, openLedger, openLedgerReader, type RequestRecord } from '../../ledger/index.ts';
import { migrate } from '../../ledger/schema.ts';
import { askedUsage } from './asked-usage.ts';

const network = { name: 'NFS', network: true, shared_memory: false };
let folder: string;
let path: string;
const open: Ledger[] = [];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-ledger-test-'));
  path = join(folder, 'ledger.sqlite');
});

afterEach(async () => {
  for (const ledger of open.splice(0)) await ledger.close();
  rmSync(folder, { recursive: true, force: true });
});

function opened(options: Parameters<typeof openLedger>[1] = {}): ReturnType<typeof openLedger> {
  const result = openLedger(path, options);
  open.push(result.ledger);
  return result;
}

async function closed(ledger: Ledger): Promise<void> {
  open.splice(open.indexOf(ledger), 1);
  await ledger.close();
}

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

/** Names of files that a repair begins with, and not the lock of the writer. */
function isMade(before: ReadonlySet<string>): (name: string) => boolean {
  return (name) => !before.has(name) && /\.(damaged|repaired)/.test(name);
}

function write(ledger: Ledger, record: RequestRecord): Promise<void> {
  return new Promise((resolve, reject) =>
    ledger.record(record, (error) => (error ? reject(error) : resolve())),
  );
}

/** A key as ledgers held them before keys had a folder of their own. */
function writeFormerKey(id: string): void {
  const db = new Database(path);
  db.prepare("INSERT INTO keys VALUES (?, 'alice', 'h', 5, NULL, NULL)").run(id);
  db.close();
}

/** A ledger of version 3: its sums have the first half of its requests, as after a kill. */
function writeLedger3(db: Database.Database, rows: readonly Partial<RequestRecord>[]): void {
  db.exec(`INSERT INTO series VALUES (1, 'k1', NULL, '', '', '/v1/chat/completions', '', '', '', 0),
    (2, 'k2', NULL, '', '', '/v1/chat/completions', '', '', '', 0)`);
  const insert = db.prepare(
    `INSERT INTO request_rows (request_id, time_ms, series_ref, asked_model, status, stream, attempts, prompt_tokens,
      completion_tokens, duration_us, energy_estimated) VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?, ?, 0)`,
  );
  for (const [index, row] of rows.entries()) {
    const record = recordOf(row);
    insert.run(
      record.request_id,
      record.time_ms,
      record.key_id === 'k1' ? 1 : 2,
      record.model,
      record.status,
      record.attempts,
      record.prompt_tokens ?? null,
      record.completion_tokens ?? null,
      record.duration_ms * 1000,
    );
    if (index + 1 !== Math.floor(rows.length / 2)) continue;
    db.exec(`INSERT INTO hours SELECT time_ms / 3600000, series_ref, count(*), 0, 0, sum(coalesce(prompt_tokens, 0)),
        sum(coalesce(completion_tokens, 0)), 0, 0, sum(duration_us), 0, 0, 0, 0, 0, 0, 0, min(time_ms), max(time_ms)
      FROM request_rows GROUP BY 1, 2;
      INSERT INTO spent SELECT key_id, time_ms / 86400000, count(*),
        sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)), 0
      FROM request_rows JOIN series ON ref = series_ref GROUP BY 1, 2;
      UPDATE summed SET sequence = (SELECT max(sequence) FROM request_rows)`);
  }
}

/** A ledger as an earlier version wrote it. */
function writeFormerLedger(version: number, rows: readonly Partial<RequestRecord>[]): void {
  for (const suffix of ['', '-wal', '-shm']) rmSync(path + suffix, { force: true });
  const db = new Database(path);
  migrate(db, path, version);
  if (version === 3) {
    writeLedger3(db, rows);
    db.close();
    return;
  }
  const insert = db.prepare(
    `INSERT INTO requests (request_id, time_ms, key_id, endpoint, model, status, stream, attempts, prompt_tokens,
      completion_tokens, duration_ms) VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)`,
  );
  for (const row of rows) {
    const record = recordOf(row);
    insert.run(
      record.request_id,
      record.time_ms,
      record.key_id,
      record.endpoint,
      record.model,
      record.status,
      record.attempts,
      record.prompt_tokens ?? null,
      record.completion_tokens ?? null,
      record.duration_ms,
    );
  }
  if (version === 2)
    db.exec(`INSERT INTO spent SELECT key_id, time_ms / 86400000, count(*),
      coalesce(sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)), 0) FROM requests GROUP BY 1, 2`);
  db.close();
}

describe('records', () => {
  it('are told of to all of a group, whatever one of them throws', async () => {
    const thrown: unknown[] = [];
    const { ledger } = opened({ onThrown: (one) => thrown.push(one) });
    const broken = new Error('its client broke off');
    const told: string[] = [];
    await new Promise<void>((resolve) => {
      ledger.record(recordOf({ request_id: 'a' }), () => told.push('a'));
      ledger.record(recordOf({ request_id: 'b' }), () => {
        throw broken;
      });
      ledger.record(recordOf({ request_id: 'c' }), () => {
        told.push('c');
        resolve();
      });
    });
    expect(told).toEqual(['a', 'c']);
    expect(thrown).toEqual([broken]);
    await new Promise<void>((resolve) => ledger.record(recordOf({ request_id: 'd' }), () => resolve()));
  });

  it('are on disk when committed is called, with who computed them', async () => {
    const { ledger } = opened();
    const session = { session_id: 'a'.repeat(32), node: 'n1', site: 's', job_id: '42', deployment: 'd' };
    await write(ledger, recordOf({ session, prompt_tokens: 3, completion_tokens: 4 }));
    const reader = openLedgerReader(path);
    expect(reader.usage({ group_by: ['deployment'] })).toMatchObject([
      { group: { deployment: 'd' }, requests: 1, prompt_tokens: 3, completion_tokens: 4 },
    ]);
    reader.close();
    const db = new Database(path, { readonly: true });
    expect(db.prepare('SELECT node, job_id FROM requests').all()).toEqual([{ node: 'n1', job_id: '42' }]);
    db.close();
  });

  it('sum up by every dimension to the same totals, whatever was recorded', async () => {
    const arbitrary = fc.record({
      model: fc.constantFrom('a', 'b', 'c'),
      key_id: fc.constantFrom('k1', 'k2'),
      time_ms: fc.integer({ min: Date.UTC(2026, 0, 1), max: Date.UTC(2026, 0, 5) }),
      prompt_tokens: fc.option(fc.nat(100_000), { nil: undefined }),
      completion_tokens: fc.option(fc.nat(100_000), { nil: undefined }),
      error_code: fc.option(fc.constant('E_X'), { nil: undefined }),
      deployment: fc.option(fc.constantFrom('d1', 'd2'), { nil: undefined }),
    });
    let round = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(arbitrary, { maxLength: 30 }), arbitrary, async (rows, extra) => {
        path = join(folder, `ledger-${round++}.sqlite`);
        const { ledger } = opened();
        const [since_ms, until_ms] = [Date.UTC(2026, 0, 2), Date.UTC(2026, 0, 4)];
        const sessions = new Map<string, RequestRecord['session']>();
        await Promise.all(
          [...rows, extra].map(({ deployment, ...row }) => {
            const record = recordOf(row);
            if (deployment !== undefined) {
              const session = sessions.get(deployment) ?? {
                session_id: deployment,
                node: 'n',
                site: 's',
                deployment,
              };
              sessions.set(deployment, session);
              record.session = session;
            }
            return write(ledger, record);
          }),
        );
        const inside = [...rows, extra].filter(({ time_ms }) => time_ms >= since_ms && time_ms < until_ms);
        const reader = openLedgerReader(path);
        for (const by of ['model', 'key', 'day', 'deployment'] as const) {
          const usage = reader.usage({ group_by: [by], since_ms, until_ms });
          const total = (field: 'requests' | 'errors' | 'prompt_tokens' | 'completion_tokens'): number =>
            usage.reduce((sum, row) => sum + row[field], 0);
          expect(total('requests')).toBe(inside.length);
          expect(total('errors')).toBe(inside.filter(({ error_code }) => error_code).length);
          expect(total('prompt_tokens')).toBe(inside.reduce((sum, row) => sum + (row.prompt_tokens ?? 0), 0));
          expect(total('completion_tokens')).toBe(
            inside.reduce((sum, row) => sum + (row.completion_tokens ?? 0), 0),
          );
        }
        const days = reader.usage({ group_by: ['day'], since_ms, until_ms });
        expect(days.map(({ group }) => group.day)).toEqual(
          [...new Set(inside.map(({ time_ms }) => new Date(time_ms).toISOString().slice(0, 10)))].sort(),
        );
        reader.close();
        await closed(ledger);
      }),
      { numRuns: 15 },
    );
  }, 240_000);

  it('survive kill -9 of the writer as soon as they were acknowledged', async () => {
    const child = spawn(process.execPath, [join(packageRoot, 'dist/test/ledger/writer.js'), path], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const acknowledged = await linesUntil(child, 500);
    child.kill('SIGKILL');
    await new Promise((resolve) => child.once('exit', resolve));
    const { ledger, repair } = opened();
    expect(repair).toBeUndefined();
    await closed(ledger);
    const db = new Database(path, { readonly: true });
    const present = new Set(db.prepare('SELECT request_id FROM requests').pluck().all());
    db.close();
    expect(acknowledged.length).toBeGreaterThanOrEqual(500);
    expect(acknowledged.filter((id) => !present.has(id))).toEqual([]);
  });

  it('wait in memory while the disk is full, up to a bound, and the gap is noted', async () => {
    const health: (string | undefined)[] = [];
    const { ledger } = opened({ backlog_max: 2, onHealth: (error) => health.push(error?.code) });
    // The kernel's own full disk: what is written there fails with ENOSPC.
    symlinkSync('/dev/full', `${path}.tail-1`);
    await Promise.all([write(ledger, recordOf()), write(ledger, recordOf())]);
    expect(ledger.behind).toMatchObject({ requests: 2, reason: { code: 'E_LEDGER_WRITE' } });
    expect(ledger.behind?.reason.because.join()).toContain('ENOSPC');
    expect(ledger.failure?.code).toBe('E_LEDGER_WRITE');
    await expect(write(ledger, recordOf())).rejects.toMatchObject({ code: 'E_LEDGER_WRITE' });
    await expect.poll(() => ledger.behind, { timeout: 10_000 }).toBeUndefined();
    expect(ledger.failure).toBeUndefined();
    expect(health).toEqual(['E_LEDGER_WRITE', undefined]);
    await write(ledger, recordOf());
    expect((await askedUsage(ledger, { group_by: ['model'] }))[0]?.requests).toBe(3);
    const db = new Database(path, { readonly: true });
    expect(db.prepare('SELECT requests, until_ms >= since_ms AS ordered FROM gaps').all()).toEqual([
      { requests: 2, ordered: 1 },
    ]);
    db.close();
  });

  it('are safe while another holds the tables, and there once it lets go', async () => {
    const { ledger } = opened();
    await write(ledger, recordOf());
    expect((await askedUsage(ledger, { group_by: ['model'] }))[0]?.requests).toBe(1);
    const blocker = new Database(path);
    blocker.exec('BEGIN IMMEDIATE');
    await Promise.all([write(ledger, recordOf()), write(ledger, recordOf())]);
    expect(ledger.behind).toBeUndefined();
    blocker.exec('ROLLBACK');
    blocker.close();
    await expect
      .poll(async () => (await askedUsage(ledger, { group_by: ['model'] }))[0]?.requests, { timeout: 20_000 })
      .toBe(3);
  });

  it('that leave only counts are in the sums and nowhere else', async () => {
    const { ledger } = opened();
    await write(ledger, recordOf({ counts_only: true, request_id: 'req_secret', prompt_tokens: 5 }));
    expect(await askedUsage(ledger, { group_by: ['key', 'hour'] })).toMatchObject([
      { group: { key: 'key_1', hour: '2026-03-01T12:00Z' }, requests: 1, prompt_tokens: 5 },
    ]);
    expect(ledger.spentSince('key_1', 0)).toMatchObject({ requests: 1, tokens: 5 });
    const db = new Database(path, { readonly: true });
    expect(db.prepare('SELECT count(*) FROM requests').pluck().get()).toBe(0);
    db.close();
    expect(readFileSync(path).includes('req_secret')).toBe(false);
  });

  it('have one writer, which is refused while another process or ledger has the file', () => {
    opened();
    expect(() => openLedger(path)).toThrow(expect.objectContaining({ code: 'E_LEDGER_BUSY' }));
  });
});

describe('what a key used', () => {
  it('is summed by day, as the requests are, also of a ledger from before sums were kept', async () => {
    const arbitrary = fc.record({
      key_id: fc.constantFrom('k1', 'k2'),
      time_ms: fc.integer({ min: Date.UTC(2026, 0, 1), max: Date.UTC(2026, 0, 5) }),
      prompt_tokens: fc.option(fc.nat(1000), { nil: undefined }),
      completion_tokens: fc.option(fc.nat(1000), { nil: undefined }),
    });
    let round = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(arbitrary, { maxLength: 30 }), fc.nat(5), async (rows, after) => {
        path = join(folder, `spent-${round++}.sqlite`);
        const { ledger } = opened();
        await Promise.all(rows.map((row) => write(ledger, recordOf(row))));
        const first_day = dayOf(Date.UTC(2026, 0, 1)) + after;
        const counted = rows.filter(({ key_id, time_ms }) => key_id === 'k1' && dayOf(time_ms) >= first_day);
        const expected = {
          requests: counted.length,
          tokens: counted.reduce(
            (sum, { prompt_tokens = 0, completion_tokens = 0 }) => sum + prompt_tokens + completion_tokens,
            0,
          ),
          device_s: 0,
        };
        expect(ledger.spentSince('k1', first_day)).toEqual(expected);
        await closed(ledger);
        for (const version of [1, 2, 3]) {
          writeFormerLedger(version, rows);
          const migrated = opened().ledger;
          expect(migrated.spentSince('k1', first_day)).toEqual(expected);
          expect(
            await askedUsage(migrated, {
              group_by: ['key'],
              since_ms: first_day * 86_400_000,
              filter: { key: ['k1'] },
            }),
          ).toEqual(
            expected.requests === 0 ? [] : [expect.objectContaining({ requests: expected.requests })],
          );
          await closed(migrated);
        }
      }),
      { numRuns: 25 },
    );
  }, 240_000);
});

describe('filesystems without shared memory', () => {
  it('are recognized by their magic', () => {
    expect(filesystemOfMagic(0x6969)).toEqual(network);
    expect(filesystemOfMagic(0x0bd00bd0).name).toBe('Lustre');
    expect(filesystemOfMagic(-11317950).name).toBe('CIFS');
    // A mapped page that cannot be copied for want of room would end the process by SIGBUS.
    expect(filesystemOfMagic(-1859950530)).toEqual({ name: 'btrfs', network: false, shared_memory: false });
    expect(filesystemOfMagic(0xef53)).toEqual({ name: 'local', network: false, shared_memory: true });
    expect(filesystemOf('/proc')).toEqual({ name: 'local', network: false, shared_memory: true });
  });

  it('get no write-ahead log, one writer, and readers all the same', async () => {
    const { ledger } = opened({ filesystem: network });
    await write(ledger, recordOf({ key_id: 'key_7' }));
    expect(readdirSync(folder).some((file) => file.endsWith('-wal') || file.endsWith('-shm'))).toBe(false);
    expect(() => openLedger(path, { filesystem: network })).toThrow(
      expect.objectContaining({ code: 'E_LEDGER_BUSY' }),
    );
    const reader = openLedgerReader(path);
    expect(reader.usage({ group_by: ['key'] })).toMatchObject([{ group: { key: 'key_7' }, requests: 1 }]);
    reader.close();
  });

  it('are read behind a kill -9 within a commit, of which nothing counts', async () => {
    const { ledger } = opened({ filesystem: network });
    await write(ledger, recordOf());
    await closed(ledger);
    const killed = join(folder, 'killed.sqlite');
    const db = new Database(path);
    db.pragma('journal_mode = TRUNCATE');
    db.pragma('cache_size = 2');
    db.exec('BEGIN IMMEDIATE');
    db.exec('DELETE FROM hours');
    // More than is kept in memory: it is written into the file before the commit.
    const insert = db.prepare(
      "INSERT INTO audit (time_ms, actor, action, subject, details) VALUES (1, 'a', 'b', 'c', ?)",
    );
    insert.run('x'.repeat(1_000_000));
    for (const suffix of ['', '-journal']) copyFileSync(path + suffix, killed + suffix);
    db.close();
    expect(statSync(`${killed}-journal`).size).toBeGreaterThan(0);
    const reader = openLedgerReader(killed);
    expect(reader.usage({ group_by: ['model'] })).toMatchObject([{ requests: 1 }]);
    reader.close();
    await closed(opened({ filesystem: network }).ledger);
  });

  it('turn a ledger that was local into one without a log, and back, with nothing lost', async () => {
    const first = opened().ledger;
    await write(first, recordOf());
    await closed(first);
    const second = opened({ filesystem: network }).ledger;
    await write(second, recordOf());
    await closed(second);
    expect((await askedUsage(opened().ledger, { group_by: ['model'] }))[0]?.requests).toBe(2);
  });
});

describe('damage', () => {
  it('of pages: the file is set aside, keys and readable requests are saved', async () => {
    const { ledger } = opened();
    writeFormerKey('key_former');
    await Promise.all(
      Array.from({ length: 6000 }, (_, index) =>
        write(ledger, recordOf({ request_id: `req_${index}`, prompt_tokens: 2 })),
      ),
    );
    await closed(ledger);
    const bytes = readFileSync(path);
    const pages = bytes.length / 4096;
    bytes.fill(0xff, Math.floor(pages / 2) * 4096, (Math.floor(pages / 2) + 2) * 4096);
    writeFileSync(path, bytes);
    const { ledger: saved, repair } = opened();
    expect(repair).toBeDefined();
    expect(statSync(repair!.set_aside).size).toBe(bytes.length);
    expect(repair!.keys_saved).toBe(1);
    expect(repair!.requests_saved).toBeGreaterThan(4000);
    expect(repair!.requests_saved).toBeLessThanOrEqual(6000);
    expect(saved.formerKeys()).toEqual([{ id: 'key_former', name: 'alice', hash: 'h', created_at_ms: 5 }]);
    // Sums lie elsewhere: they know of requests whose rows are lost.
    const { requests, tokens } = saved.spentSince('key_1', 0);
    expect(requests).toBeGreaterThanOrEqual(repair!.requests_saved);
    expect(requests).toBeLessThanOrEqual(6000);
    expect(tokens).toBe(2 * requests);
    expect((await askedUsage(saved, { group_by: ['model'] }))[0]?.requests).toBe(requests);
    await write(saved, recordOf());
  });

  it('and a kill -9 of who repairs it: the next one saves all that is readable, and nothing twice', async () => {
    const { ledger } = opened();
    const requests = 40_000;
    await Promise.all(
      Array.from({ length: requests }, (_, index) => write(ledger, recordOf({ request_id: `r${index}` }))),
    );
    await closed(ledger);
    const bytes = readFileSync(path);
    bytes.fill(0xff, bytes.length - 4096);
    writeFileSync(path, bytes);
    const before = new Set(readdirSync(folder));
    const child = spawn(process.execPath, [join(packageRoot, 'dist/test/ledger/writer.js'), path], {
      stdio: 'ignore',
    });
    const exited = new Promise((resolve) => child.once('exit', resolve));
    // What it makes: it is within the repair.
    await expect.poll(() => readdirSync(folder).some(isMade(before)), { interval: 1 }).toBe(true);
    child.kill('SIGKILL');
    await exited;
    const { ledger: saved } = opened();
    const { time_ms } = recordOf();
    const ofDay = { group_by: ['day'], since_ms: time_ms, until_ms: time_ms + 1 } as const;
    const [day] = await askedUsage(saved, ofDay);
    expect(day?.requests).toBeGreaterThan(requests / 2);
    expect(day?.requests).toBeLessThanOrEqual(requests);
    expect(readdirSync(folder).filter((name) => name.includes('.repaired'))).toEqual([]);
  });

  it('of everything: a new ledger starts beside the old file', async () => {
    writeFileSync(path, 'this was never a database, but it is long enough to be looked at'.repeat(100));
    const { ledger, repair } = opened();
    expect(repair).toMatchObject({ keys_saved: 0, requests_saved: 0 });
    expect(readFileSync(repair!.set_aside, 'utf8')).toContain('never a database');
    await write(ledger, recordOf());
  });

  it('a newer version is left alone', async () => {
    await closed(opened().ledger);
    const db = new Database(path);
    db.pragma('user_version = 99');
    db.close();
    expect(() => openLedger(path)).toThrow(expect.objectContaining({ code: 'E_LEDGER_VERSION' }));
    expect(() => openLedgerReader(path)).toThrow(expect.objectContaining({ code: 'E_LEDGER_VERSION' }));
    expect(() => openLedgerReader(join(folder, 'none.sqlite'))).toThrow(
      expect.objectContaining({ code: 'E_LEDGER_MISSING' }),
    );
  });

  it('files are for their owner alone', async () => {
    const { ledger } = opened();
    await write(ledger, recordOf());
    for (const file of readdirSync(folder)) expect(statSync(join(folder, file)).mode & 0o077).toBe(0);
  });
});

/** The first lines a process prints, at least `count`. */
async function linesUntil(child: ChildProcess, count: number): Promise<string[]> {
  const lines: string[] = [];
  for await (const line of createInterface({ input: child.stdout! })) {
    lines.push(line);
    if (lines.length >= count) break;
  }
  return lines;
}
