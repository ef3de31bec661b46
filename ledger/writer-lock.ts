import { chmodSync, closeSync, existsSync, openSync } from 'node:fs';
import Database from 'better-sqlite3';

/**
 * Holds the right to write a ledger until the returned function is called, or this process ends: a lock of the system
 * on `<path>.writer`, in SQLite's own form, which any number of readers of the ledger itself do not meet.
 *
 * @throws SqliteError SQLITE_BUSY where another holds it
 */
export function lockWriter(path: string, timeout_ms = 2000): () => void {
  const file = `${path}.writer`;
  if (!existsSync(file)) closeSync(openSync(file, 'a', 0o600));
  chmodSync(file, 0o600);
  const lock = new Database(file, { timeout: timeout_ms });
  try {
    lock.pragma('locking_mode = EXCLUSIVE');
    lock.exec('BEGIN EXCLUSIVE; COMMIT');
  } catch (error) {
    lock.close();
    throw error;
  }
  return () => lock.close();
}
