import { copyFileSync, existsSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Database from 'better-sqlite3';
import { HpcserveError } from '../spec/errors/error.ts';
import type { UsageQuery, UsageRow } from '../spec/usage.ts';
import { ledgerError } from './ledger-error.ts';
import { findDamage, isDamage } from './repair.ts';
import { requireKnownVersion } from './schema.ts';
import { queryUsage } from './usage.ts';

/** Read-only view of a ledger, also while a gateway writes it. */
export interface LedgerReader {
  usage(query: UsageQuery): UsageRow[];
  close(): void;
}

const snapshotTries = 20;

/**
 * Opens a ledger for reading. On a network filesystem a running gateway holds the file exclusively; then a
 * copy that no write crossed is read instead.
 *
 * Throws E_LEDGER_MISSING, E_LEDGER_VERSION, E_LEDGER_DAMAGED, E_LEDGER_BUSY (no such copy could be made).
 */
export function openLedgerReader(path: string): LedgerReader {
  if (!existsSync(path)) {
    throw new HpcserveError('E_LEDGER_MISSING', { what: `there is no ledger at ${path}` });
  }
  try {
    return openDirectly(path);
  } catch (error) {
    if (error instanceof Database.SqliteError && error.code.startsWith('SQLITE_BUSY'))
      return openSnapshot(path);
    throw ledgerError(error, path);
  }
}

function openDirectly(path: string): LedgerReader {
  const db = new Database(path, { readonly: true, fileMustExist: true, timeout: 500 });
  try {
    requireKnownVersion(db.pragma('user_version', { simple: true }) as number, path);
    return readerOf(db, () => {});
  } catch (error) {
    db.close();
    throw error;
  }
}

function openSnapshot(path: string): LedgerReader {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-ledger-'));
  const remove = (): void => rmSync(folder, { recursive: true, force: true });
  const copy = join(folder, 'ledger.sqlite');
  try {
    for (let attempt = 0; attempt < snapshotTries; attempt++) {
      const before = fingerprint(path);
      if (before === undefined) continue;
      copyFileSync(path, copy);
      if (fingerprint(path) !== before) continue;
      const db = new Database(copy, { timeout: 500 });
      try {
        // The time of change may be too coarse to show every write; a torn copy would not pass this either.
        if (findDamage(db) === undefined) {
          requireKnownVersion(db.pragma('user_version', { simple: true }) as number, path);
          return readerOf(db, remove);
        }
      } catch (error) {
        if (!isDamage(error)) throw error;
      }
      db.close();
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
  const { size, mtimeNs } = statSync(path, { bigint: true });
  return `${size} ${mtimeNs}`;
}

function readerOf(db: Database.Database, closed: () => void): LedgerReader {
  return {
    usage: (query) => queryUsage(db, query),
    close: () => {
      db.close();
      closed();
    },
  };
}
