import { dirname } from 'node:path';
import Database from 'better-sqlite3';
import { filesystemOf } from '../../host/filesystem.ts';
import { schemaVersion } from '../schema.ts';
import { lockWriter } from '../writer-lock.ts';
import { Fold } from './fold.ts';
import { endOfTail, isBehind, type TailPosition, tailPosition } from './tail-files.ts';

/** Many times what a gateway takes on a machine that has much to do. */
const wait_ms = 30_000;
const look_ms = 20;
/**
 * So long a reader is the ledger's writer at a time. A gateway that starts waits two seconds, and looks every 100 ms
 * whether it can be (SQLite's busy handler): the pause is longer.
 */
const turn_ms = 500;
const pause_ms = 150;

/**
 * What was answered before this call is in the tables behind it, as far as its gateway puts it there within seconds.
 * The tail of one that was killed is moved there at once, by who reads, who is the ledger's writer for that moment.
 */
export function settleTail(ledger: string): void {
  const end = endOfTail(ledger);
  if (!end || isFolded(ledger, end)) return;
  let folded = foldAlone(ledger);
  while (folded === 'part') {
    pause(pause_ms);
    folded = foldAlone(ledger);
  }
  if (folded === 'all') return;
  const until_ms = performance.now() + wait_ms;
  while (!isFolded(ledger, end) && performance.now() < until_ms) pause(look_ms);
}

function pause(time_ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, time_ms);
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

/**
 * One turn of a reader.
 * @returns `nothing` where a gateway has the ledger, or this process may not write it
 */
function foldAlone(ledger: string): 'all' | 'part' | 'nothing' {
  if (!filesystemOf(dirname(ledger)).shared_memory) return 'nothing';
  try {
    const release = lockWriter(ledger, 0);
    try {
      const db = new Database(ledger, { fileMustExist: true, timeout: 500 });
      try {
        return foldFor(turn_ms, new Fold(db, ledger));
      } finally {
        db.close();
      }
    } finally {
      release();
    }
  } catch {
    return 'nothing';
  }
}

function foldFor(time_ms: number, fold: Fold): 'all' | 'part' {
  const until_ms = performance.now() + time_ms;
  try {
    while (fold.step()) if (performance.now() >= until_ms) return 'part';
    return 'all';
  } finally {
    fold.close();
  }
}
