import { setTimeout as delay } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import type Database from 'better-sqlite3';
import { compiledFile } from '../../host/programs.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { RequestRecord } from '../record.ts';
import type { RecordStore } from '../record-store.ts';
import { foldTail } from './fold.ts';
import { type FoldThreadData, type FromFoldThread, progress, type ToFoldThread } from './fold-messages.ts';
import { endOfTail, isBehind, removeTail, type TailPosition, tailPosition } from './tail-files.ts';
import type { Gap } from './tail-line.ts';
import { TailWriter } from './tail-writer.ts';

const threadFile = compiledFile('ledger/tail/fold-thread.js');
/** Files of the tail, each a second's work, that are folded by who cannot wait for the thread. */
const filesHere_max = 4;
/** Before a thread is started again that ended by itself. */
const restart_ms = 1000;
/** Between two looks at how far the thread is, where nobody is held up by the wait. */
const look_ms = 5;

/**
 * Appends records to the tail, beside the ledger: a tenth of what it costs to put them into tables. A thread folds the
 * tail into those within a fraction of a second.
 *
 * ```
 *   request ─► write() to ledger.sqlite.tail-7 ─► answer          this thread
 *                          │
 *                          └─► request_rows, hours, spent          fold-thread.ts, every 200 ms while there are any
 * ```
 */
export class TailStore implements RecordStore {
  readonly #db: Database.Database;
  readonly #ledger: string;
  readonly #onFold: (failure: HpcserveError | undefined) => void;
  readonly #tail: TailWriter;
  readonly #state = new Int32Array(new SharedArrayBuffer(4 * progress.length));
  #thread: Worker | undefined;
  #told = false;
  #start_at_ms = 0;

  /** @param onFold told after each fold why it failed, if it did */
  constructor(db: Database.Database, ledger: string, onFold: (failure: HpcserveError | undefined) => void) {
    this.#db = db;
    this.#ledger = ledger;
    this.#onFold = onFold;
    const left = endOfTail(ledger);
    this.#tail = new TailWriter(ledger, Math.max(tailPosition(db).file, left?.file ?? 0) + 1, left);
  }

  write(records: readonly RequestRecord[], gap?: Gap): void {
    this.#tail.append(records, gap);
    if (this.#told) return;
    this.#told = true;
    this.#tell('more');
  }

  settle(within_ms: number): void {
    const { end } = this.#tail;
    if (!isBehind(this.#folded, end)) return;
    if (Atomics.load(this.#state, progress.turns) === 0) {
      this.#foldHere();
      return;
    }
    this.#wait(end, within_ms);
    // The thread has no share of the cores: this one does it, unless that were to take seconds.
    if (isBehind(this.#folded, end) && end.file - this.#folded.file < filesHere_max) this.#foldHere();
  }

  async settled(within_ms: number): Promise<void> {
    const { end } = this.#tail;
    const until_ms = performance.now() + within_ms;
    const turns = Atomics.load(this.#state, progress.turns);
    let told: Worker | undefined;
    while (isBehind(this.#folded, end) && performance.now() < until_ms) {
      // One that ended meanwhile has a successor, which does not know that somebody waits.
      if (!told || told !== this.#thread) {
        this.#tell('now');
        told = this.#thread;
      }
      await delay(look_ms);
      const hasTried = Atomics.load(this.#state, progress.turns) !== turns;
      if (hasTried && Atomics.load(this.#state, progress.failed) === 1) return;
    }
  }

  /** In the place of the thread, which may do the same at the same time. */
  #foldHere(): void {
    try {
      foldTail(this.#db, this.#ledger);
    } catch {
      // The thread tries it again, and says why not.
    }
  }

  #wait(end: TailPosition, within_ms: number): void {
    const until_ms = performance.now() + within_ms;
    let turns = Atomics.load(this.#state, progress.turns);
    this.#tell('now');
    while (isBehind(this.#folded, end)) {
      const left_ms = until_ms - performance.now();
      if (left_ms <= 0 || Atomics.wait(this.#state, progress.turns, turns, left_ms) === 'timed-out') return;
      turns = Atomics.load(this.#state, progress.turns);
      if (Atomics.load(this.#state, progress.failed) === 1) return;
    }
  }

  async close(): Promise<void> {
    const thread = this.#thread;
    this.#thread = undefined;
    if (thread) {
      thread.ref();
      const ended = new Promise((resolve) => thread.once('exit', resolve));
      thread.postMessage('end' satisfies ToFoldThread);
      await ended;
    }
    this.#tail.close();
    const { end } = this.#tail;
    try {
      if (isBehind(this.#folded, end)) foldTail(this.#db, this.#ledger);
      removeTail(this.#db, this.#ledger, end.file + 1);
    } catch {
      // What stays is taken by who opens the ledger next.
    }
  }

  get #folded(): TailPosition {
    // The file first: see the thread's order.
    const file = Atomics.load(this.#state, progress.file);
    return { file, bytes: Atomics.load(this.#state, progress.bytes) };
  }

  #tell(message: ToFoldThread): void {
    if (!this.#thread && performance.now() < this.#start_at_ms) {
      this.#told = false;
      return;
    }
    this.#thread ??= this.#startThread();
    this.#thread.postMessage(message);
  }

  #startThread(): Worker {
    const workerData: FoldThreadData = {
      ledger: this.#ledger,
      progress: this.#state.buffer as SharedArrayBuffer,
    };
    // Threads need compiled JavaScript, wherever this file itself runs from.
    const thread = new Worker(threadFile, { workerData });
    thread.unref();
    thread.on('message', ({ failure }: FromFoldThread) => {
      this.#told = false;
      this.#onFold(failure && HpcserveError.fromJSON(failure));
      if (this.#thread === thread && isBehind(this.#folded, this.#tail.end)) {
        this.#told = true;
        this.#tell('more');
      }
    });
    thread.once('error', (error) => {
      this.#onFold(HpcserveError.from(error));
      this.#ended(thread);
    });
    thread.once('exit', () => this.#ended(thread));
    return thread;
  }

  /** Another is started with a later record. */
  #ended(thread: Worker): void {
    if (this.#thread !== thread) return;
    this.#thread = undefined;
    this.#told = false;
    this.#start_at_ms = performance.now() + restart_ms;
    Atomics.store(this.#state, progress.turns, 0);
  }
}
