import { dirname } from 'node:path';
import Database from 'better-sqlite3';
import { filesystemOf } from '../../host/filesystem.ts';
import { schemaVersion } from '../schema.ts';
import { lockWriter } from '../writer-lock.ts';
import { foldTail } from './fold.ts';
import { endOfTail, isBehind, type TailPosition, tailPosition } from './tail-files.ts';

/** Many times what a gateway takes on a machine that has much to do. */
const wait_ms = 30_000;
const look_ms = 20;

/**
 * What was answered before this call is in the tables behind it, as far as its gateway puts it there within seconds.
 * The tail of one that was killed is moved there at once, by who reads, who is the ledger's writer for that moment.
 */
export function settleTail(ledger: string): void {
  const end = endOfTail(ledger);
  if (!end || isFolded(ledger, end) || foldAlone(ledger)) return;
  const until_ms = performance.now() + wait_ms;
  const never = new Int32Array(new SharedArrayBuffer(4));
  while (!isFolded(ledger, end) && performance.now() < until_ms) Atomics.wait(never, 0, 0, look_ms);
}

/** Also where this cannot be found out: who opens the ledger then says why. */
function isFolded(ledger: string, end: TailPosition): boolean {
  try {
    const db = new Database(ledger, { readonly: true, fileMustExist: true, timeout: 500 });
    try {
      return (
        db.pragma('user_version', { simple: true }) !== schemaVersion || !isBehind(tailPosition(db), end)
      );
    } finally {
      db.close();
    }
  } catch {
    return true;
  }
}

/** @returns false where a gateway has the ledger, or this process may not write it */
function foldAlone(ledger: string): boolean {
  if (!filesystemOf(dirname(ledger)).shared_memory) return false;
  try {
    const release = lockWriter(ledger, 0);
    try {
      const db = new Database(ledger, { fileMustExist: true, timeout: 500 });
      try {
        foldTail(db, ledger);
      } finally {
        db.close();
      }
    } finally {
      release();
    }
    return true;
  } catch {
    return false;
  }
}
