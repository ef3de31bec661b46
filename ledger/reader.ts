import { copyFileSync, existsSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Database from 'better-sqlite3';
import { HpcserveError } from '../spec/errors/error.ts';
import type { UsageQuery, UsageRow } from '../spec/usage.ts';
import { ledgerError } from './ledger-error.ts';
import { findDamage, isDamage } from './repair.ts';
import { migrate, requireKnownVersion, schemaVersion } from './schema.ts';
import { foldTail } from './tail/fold.ts';
import { settleTail } from './tail/settle-tail.ts';
import { queryUsage } from './usage.ts';
import { lockWriter } from './writer-lock.ts';

/** Read-only view of a ledger, also while a gateway writes it. */
export interface LedgerReader {
  usage(query: UsageQuery): UsageRow[];
  close(): void;
}

const snapshotTries = 20;

/**
 * Opens a ledger for reading; see `readablePath`.
 *
 * Throws E_LEDGER_MISSING, E_LEDGER_VERSION, E_LEDGER_DAMAGED, E_LEDGER_BUSY.
 */
export function openLedgerReader(path: string): LedgerReader {
  const readable = readablePath(path);
  const db = new Database(readable.path, { readonly: true, fileMustExist: true, timeout: 500 });
  return {
    usage: (query) => queryUsage(db, query),
    close: () => {
      db.close();
      readable.close();
    },
  };
}

/**
 * A file with the ledger's rows that can be read now: the ledger itself, also while a gateway writes it. On a network
 * filesystem a running gateway holds it exclusively; and one of an earlier version cannot be asked today's questions.
 * Then it is a copy that no write crossed, brought to the present version, which ends with `close`.
 *
 * Throws E_LEDGER_MISSING, E_LEDGER_VERSION, E_LEDGER_DAMAGED, E_LEDGER_BUSY (no such copy could be made).
 */
export function readablePath(path: string): { path: string; close: () => void } {
  if (!existsSync(path)) {
    throw new HpcserveError('E_LEDGER_MISSING', { what: `there is no ledger at ${path}` });
  }
  settleTail(path);
  takeBackUnfinished(path);
  try {
    if (isPresentVersion(path)) return { path, close: () => {} };
  } catch (error) {
    const busy = error instanceof Database.SqliteError && error.code.startsWith('SQLITE_BUSY');
    if (!busy) throw ledgerError(error, path);
  }
  return snapshot(path);
}

/**
 * A gateway that was killed within a commit, where there is no log, left a journal: SQLite takes back what was begun as
 * soon as somebody opens the file who may write it, which a reader is for that moment, as the ledger's writer.
 */
function takeBackUnfinished(path: string): void {
  if (fingerprint(path) !== undefined) return;
  try {
    const release = lockWriter(path, 0);
    try {
      const db = new Database(path, { fileMustExist: true, timeout: 500 });
      try {
        db.pragma('user_version');
      } finally {
        db.close();
      }
    } finally {
      release();
    }
  } catch {
    // A gateway is within a commit, or this process may not write: who opens the ledger then says so.
  }
}

function isPresentVersion(path: string): boolean {
  const db = new Database(path, { readonly: true, fileMustExist: true, timeout: 500 });
  try {
    const version = db.pragma('user_version', { simple: true }) as number;
    requireKnownVersion(version, path);
    return version === schemaVersion;
  } finally {
    db.close();
  }
}

function snapshot(path: string): { path: string; close: () => void } {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-ledger-'));
  const remove = (): void => rmSync(folder, { recursive: true, force: true });
  const copy = join(folder, 'ledger.sqlite');
  try {
    for (let attempt = 0; attempt < snapshotTries; attempt++) {
      const before = fingerprint(path);
      if (before === undefined) continue;
      copyFileSync(path, copy);
      // What a log holds that was not folded in belongs to it.
      rmSync(`${copy}-wal`, { force: true });
      if (existsSync(`${path}-wal`)) copyFileSync(`${path}-wal`, `${copy}-wal`);
      if (fingerprint(path) !== before) continue;
      const db = new Database(copy, { timeout: 500 });
      try {
        // The time of change may be too coarse to show every write; a torn copy would not pass this either.
        if (findDamage(db) === undefined) {
          migrate(db, path);
          foldTail(db, path, { keepsFiles: true });
          return { path: copy, close: remove };
        }
      } catch (error) {
        if (!isDamage(error)) throw error;
      } finally {
        db.close();
      }
    }
    throw new HpcserveError('E_LEDGER_BUSY', {
      what: `no copy of the ledger ${path} could be made between two writes`,
      because: 'a gateway holds it on a network filesystem and is writing all the time',
      try: 'ask the gateway instead: GET /hpcserve/v1/usage with its admin token',
    });
  } catch (error) {
    remove();
    throw error;
  }
}

/** Size and time of the file while no transaction is open; undefined while its journal holds one. */
function fingerprint(path: string): string | undefined {
  const journal = statSync(`${path}-journal`, { throwIfNoEntry: false });
  if (journal !== undefined && journal.size > 0) return undefined;
  return [path, `${path}-wal`]
    .map((file) => statSync(file, { bigint: true, throwIfNoEntry: false }))
    .map((stats) => `${stats?.size} ${stats?.mtimeNs}`)
    .join();
}
