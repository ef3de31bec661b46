import { statSync } from 'node:fs';
import { Worker } from 'node:worker_threads';
import type Database from 'better-sqlite3';
import { compiledFile } from '../host/programs.ts';

const workerFile = compiledFile('ledger/checkpoint-worker.js');
/** Records between two looks at the log's size. */
const interval = 2000;
/** Lower: a smaller log, more writes to the file; higher: the reverse, since a page in it many times is copied once. */
const passive_bytes = 32 * 1024 * 1024;
/**
 * A passive checkpoint never lets the log start over while records keep coming, so at this size the writer itself
 * does one: it waits for the disk, but only for the few pages the passive one had not yet copied.
 */
const restart_bytes = 128 * 1024 * 1024;

/**
 * Folds the write-ahead log into the database file. Syncing takes milliseconds, which no answer should wait
 * for, so it runs in a worker thread with a connection of its own.
 */
export class Checkpointer {
  readonly #db: Database.Database;
  readonly #path: string;
  #worker: Worker | undefined;
  #since = 0;
  #running = false;

  constructor(db: Database.Database, path: string) {
    this.#db = db;
    this.#path = path;
  }

  /** To be told how many records were committed. */
  wrote(records: number): void {
    this.#since += records;
    if (this.#since < interval || this.#running) return;
    this.#since = 0;
    const bytes = statSync(`${this.#path}-wal`, { throwIfNoEntry: false })?.size ?? 0;
    if (bytes >= restart_bytes) this.#restart();
    else if (bytes >= passive_bytes) this.#passive();
  }

  async close(): Promise<void> {
    await this.#worker?.terminate();
  }

  /** The log is written from its start again, and cut to its usual size. */
  #restart(): void {
    this.#db.pragma('wal_checkpoint(TRUNCATE)');
  }

  #passive(): void {
    this.#running = true;
    if (!this.#worker) {
      // Threads need compiled JavaScript, wherever this file itself runs from.
      this.#worker = new Worker(workerFile, { workerData: { path: this.#path } });
      this.#worker.unref();
      this.#worker.on('message', () => {
        this.#running = false;
      });
      // A failed checkpoint loses nothing: the log keeps its pages, and the next one tries again.
      this.#worker.once('error', () => {
        this.#worker = undefined;
        this.#running = false;
      });
    }
    this.#worker.postMessage('checkpoint');
  }
}
