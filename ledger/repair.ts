import { existsSync, rmSync } from 'node:fs';
import Database from 'better-sqlite3';
import { moveAside, moveIntoPlaceSync } from '../host/move.ts';
import { noteSummedSql, sumHoursSql, sumSpentSql } from './accounting-schema.ts';
import type { RequestRecord } from './record.ts';
import { migrate } from './schema.ts';
import { foldTail } from './tail/fold.ts';
import { tailPosition } from './tail/tail-files.ts';

/** What was done with a ledger that failed its integrity check. */
export interface RepairReport {
  /** Where the damaged file lies now. */
  set_aside: string;
  /** What SQLite said about it. */
  reason: string;
  keys_saved: number;
  requests_saved: number;
  sessions_saved: number;
}

const damaged = new Set(['SQLITE_CORRUPT', 'SQLITE_NOTADB', 'SQLITE_CORRUPT_INDEX', 'SQLITE_CORRUPT_VTAB']);

/**
 * What is wrong with an open database, undefined where nothing is. `quick_check` reads every page but does not
 * compare indexes with tables: about a second a gigabyte from a local disk.
 */
export function findDamage(db: Database.Database): string | undefined {
  try {
    const verdict = db.pragma('quick_check(1)', { simple: true }) as string;
    return verdict === 'ok' ? undefined : verdict;
  } catch (error) {
    if (isDamage(error)) return error.message;
    throw error;
  }
}

export function isDamage(error: unknown): error is Error {
  return error instanceof Database.SqliteError && damaged.has(error.code);
}

/**
 * Copies every row that can still be read of a damaged ledger into a new one at `path`, and renames the damaged one
 * (with its log or journal, which belong to it) to `<path>.damaged-<time>`. Nothing is deleted. Until the new one is
 * whole the damaged one stays where it is: of who is killed meanwhile, the next one repairs it from the beginning.
 */
export function setAsideAndSave(path: string, reason: string, now_ms: number): RepairReport {
  const set_aside = freeName(`${path}.damaged-${new Date(now_ms).toISOString().replace(/[:.]/g, '')}`);
  const report: RepairReport = { set_aside, reason, keys_saved: 0, requests_saved: 0, sessions_saved: 0 };
  const made = `${path}.repaired`;
  remove(made);
  try {
    const fresh = new Database(made);
    try {
      save(path, fresh, report);
    } finally {
      fresh.close();
    }
  } catch (error) {
    // Where the disk is full, room is what is needed.
    remove(made);
    throw error;
  }
  for (const suffix of suffixes) moveAside(path + suffix, set_aside + suffix);
  moveIntoPlaceSync(made, path);
  return report;
}

/** Files of a database: itself, its log, and its journal. */
const suffixes = ['', '-wal', '-shm', '-journal'];

function remove(path: string): void {
  for (const suffix of suffixes) rmSync(path + suffix, { force: true });
}

/** Rows of a damaged ledger, and what is made of them. */
function save(path: string, fresh: Database.Database, report: RepairReport): void {
  const old = openDamaged(path);
  if (old === undefined) {
    migrate(fresh, path);
    return;
  }
  try {
    // Rows fit into tables of their own version; what came after is made of them as of any ledger of that version.
    const version = versionOf(old);
    migrate(fresh, path, version);
    saveRows(old, fresh, version, report);
    if (version >= 3) fresh.exec(sumHoursSql);
    if (version === 3) fresh.exec(noteSummedSql);
    migrate(fresh, path);
    if (version >= 4) savePosition(old, fresh, path);
    fresh.exec(sumSpentSql);
  } finally {
    old.close();
  }
}

/** By its tables: the number in the header may be what is damaged. */
function versionOf(db: Database.Database): number {
  const has = (table: string): boolean =>
    db.prepare('SELECT 1 FROM sqlite_schema WHERE name = ?').get(table) !== undefined;
  return has('tail_position') ? 4 : has('series') ? 3 : has('spent') ? 2 : 1;
}

function saveRows(
  old: Database.Database,
  fresh: Database.Database,
  version: number,
  report: RepairReport,
): void {
  report.keys_saved = saveTable(old, fresh, 'keys', 'rowid');
  report.sessions_saved = saveTable(old, fresh, 'sessions', 'ref');
  // Requests whose session was lost still count; the reference is kept, since nothing else says who answered.
  fresh.pragma('foreign_keys = OFF');
  if (version < 3) {
    report.requests_saved = saveTable(old, fresh, 'requests', 'sequence');
    return;
  }
  saveTable(old, fresh, 'series', 'ref');
  report.requests_saved = saveTable(old, fresh, 'request_rows', 'sequence');
  // Sums hold what left only counts; where they are lost, the requests make them anew.
  saveTable(old, fresh, 'hours', 'hour');
  saveTable(old, fresh, 'spent', 'day');
  // Which requests the sums hold is found by making those anew.
  for (const table of ['gaps', 'audit', 'traces']) saveTable(old, fresh, table, 'sequence');
  // Of a request whose series was lost, the key and the model are not known any more.
  fresh.exec(`INSERT OR IGNORE INTO series (ref, key_id, user, project, endpoint, model, served_model, precision, session_ref)
    SELECT DISTINCT series_ref, '-', '', '', '-', '', 'lost-' || series_ref, '', 0 FROM request_rows`);
}

/** How far the tables have the tail; where that is lost, requests that were saved tell it. */
function savePosition(old: Database.Database, fresh: Database.Database, path: string): void {
  try {
    const { file, bytes } = tailPosition(old);
    fresh.prepare('UPDATE tail_position SET file = ?, bytes = ?').run(file, bytes);
  } catch {
    const rows = fresh.prepare('SELECT request_id, time_ms, duration_us FROM request_rows').raw().iterate();
    const known = new Set<string>();
    for (const row of rows) known.add((row as unknown[]).join(' '));
    const isKnown = ({ request_id, time_ms, duration_ms, counts_only }: RequestRecord): boolean =>
      // Of requests that left only counts nobody can say: none is counted twice.
      counts_only === true || known.has(`${request_id} ${time_ms} ${Math.round(duration_ms * 1000)}`);
    foldTail(fresh, path, { isKnown, keepsFiles: true });
  }
}

function openDamaged(path: string): Database.Database | undefined {
  try {
    const db = new Database(path, { readonly: true });
    db.prepare('SELECT count(*) FROM sqlite_schema').get();
    return db;
  } catch (error) {
    if (isDamage(error)) return undefined;
    throw error;
  }
}

/** Reads forwards to the first damaged page and backwards from the end to the last one; duplicates are ignored. */
function saveTable(old: Database.Database, fresh: Database.Database, table: string, order: string): number {
  const columns = (fresh.pragma(`table_info(${table})`) as { name: string }[]).map((column) => column.name);
  const insert = fresh.prepare(
    `INSERT OR IGNORE INTO ${table} (${columns.join(', ')}) VALUES (${columns.map(() => '?').join(', ')})`,
  );
  let saved = 0;
  for (const direction of ['ASC', 'DESC']) {
    const readToDamage = fresh.transaction(() => {
      const rows = old
        .prepare(`SELECT ${columns.join(', ')} FROM ${table} NOT INDEXED ORDER BY ${order} ${direction}`)
        .raw()
        .iterate();
      let broke = false;
      for (;;) {
        let row: IteratorResult<unknown>;
        try {
          row = rows.next();
        } catch (error) {
          if (!isDamage(error)) throw error;
          broke = true;
          break;
        }
        if (row.done) break;
        saved += insert.run(...(row.value as unknown[])).changes;
      }
      return broke;
    });
    try {
      if (!readToDamage()) return saved;
    } catch (error) {
      // The table itself is not to be found: nothing of it can be saved.
      if (error instanceof Database.SqliteError && /no such (table|column)/.test(error.message)) return saved;
      if (!isDamage(error)) throw error;
    }
  }
  return saved;
}

function freeName(wanted: string): string {
  let name = wanted;
  for (let count = 2; existsSync(name); count++) name = `${wanted}-${count}`;
  return name;
}
