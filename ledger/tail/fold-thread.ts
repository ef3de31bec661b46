/** Thread of a gateway that moves what its ledger's tail has into the tables, and what the log has into the file. */
import { statSync } from 'node:fs';
import { parentPort, workerData } from 'node:worker_threads';
import Database from 'better-sqlite3';
import { giveWay } from '../../host/niceness.ts';
import { finishDays } from '../days.ts';
import { ledgerError } from '../ledger-error.ts';
import { Fold } from './fold.ts';
import { type FoldThreadData, type FromFoldThread, progress, type ToFoldThread } from './fold-messages.ts';

/** Answers come first where cores are few. */
const niceness = 10;
/** Lower: readers of the file see requests sooner; higher: more share a transaction, and a row of the sums. */
const period_ms = 200;
/** Lower: a smaller log, more writes to the file; higher: the reverse, since a page in it many times is copied once. */
const passive_bytes = 32 * 1024 * 1024;
/** A log that a reader kept from starting over is waited for at this size, and cut. */
const restart_bytes = 128 * 1024 * 1024;
/** Between two looks for days that are over, and how long they have to be: long answers end after midnight. */
const days_ms = 600_000;
const over_ms = 3_600_000;

const { ledger, progress: shared } = workerData as FoldThreadData;
const state = new Int32Array(shared);
giveWay(niceness);
const db = new Database(ledger, { fileMustExist: true, timeout: 2000 });
db.pragma('synchronous = NORMAL');
db.pragma('wal_autocheckpoint = 0');
const fold = new Fold(db, ledger);
let timer: NodeJS.Timeout | undefined;
let days_at_ms = 0;

parentPort!.on('message', (message: ToFoldThread) => {
  if (message === 'more') {
    timer ??= setTimeout(turn, period_ms);
    return;
  }
  turn();
  if (message !== 'end') return;
  clearTimeout(timer);
  fold.close();
  db.close();
  parentPort!.close();
});

function turn(): void {
  clearTimeout(timer);
  timer = undefined;
  const message: FromFoldThread = {};
  // Who waits takes it for this turn's own.
  Atomics.store(state, progress.failed, 0);
  try {
    do noteProgress();
    while (fold.step());
    finishDay();
  } catch (error) {
    message.failure = ledgerError(error, ledger).toJSON();
  }
  Atomics.store(state, progress.failed, message.failure ? 1 : 0);
  wake();
  parentPort!.postMessage(message);
}

/** After each step: where more comes than is moved, there is no last one. */
function noteProgress(): void {
  const { file, bytes } = fold.position();
  // In this order: who reads between them sees less than there is, or a file that is done.
  Atomics.store(state, progress.bytes, bytes);
  Atomics.store(state, progress.file, file);
  wake();
  checkpoint();
}

function wake(): void {
  Atomics.add(state, progress.turns, 1);
  Atomics.notify(state, progress.turns);
}

/** Syncing takes milliseconds, which no answer waits for here. */
function checkpoint(): void {
  const bytes = statSync(`${ledger}-wal`, { throwIfNoEntry: false })?.size ?? 0;
  if (bytes >= restart_bytes) db.pragma('wal_checkpoint(TRUNCATE)');
  else if (bytes >= passive_bytes) db.pragma('wal_checkpoint(PASSIVE)');
}

/** One a turn: what was answered meanwhile is not to wait for all of them. */
function finishDay(): void {
  const now_ms = Date.now();
  if (now_ms < days_at_ms) return;
  if (finishDays(db, now_ms - over_ms, 1) === 0) days_at_ms = now_ms + days_ms;
}
