import { statSync } from 'node:fs';
import { Worker } from 'node:worker_threads';
import type Database from 'better-sqlite3';

/** Records between two looks at the log's size. */
const interval = 2000;
/** Lower: a smaller log, more writes to the file; higher: the reverse. SQLite's own default is 4 MB. */
const passiveBytes = 8 * 1024 * 1024;
/**
 * A passive checkpoint never lets the log start over while records keep coming, so at this size the writer itself
 * does one: it waits for the disk, but only for the few pages the passive one had not yet copied.
 */
const restartBytes = 64 * 1024 * 1024;

/**
 * Folds the write-ahead log into the database file. Syncing takes milliseconds, which no answer should wait
 * for, so it runs in a worker thread with a connection of its own.
 */
export class Checkpointer {
  readonly #db: Database.Database;
  readonly #path: string;
  #since = 0;
  #running: Promise<void> | undefined;

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
    if (bytes >= restartBytes) this.#db.pragma('wal_checkpoint(RESTART)');
    else if (bytes >= passiveBytes) this.#running = this.#checkpoint();
  }

  async close(): Promise<void> {
    await this.#running;
  }

  #checkpoint(): Promise<void> {
    return new Promise((resolve) => {
      const worker = new Worker(workerFile(), { workerData: { path: this.#path } });
      const done = (): void => {
        this.#running = undefined;
        resolve();
      };
      // A failed passive checkpoint loses nothing: the log keeps its pages, and the next one tries again.
      worker.once('error', done);
      worker.once('exit', done);
    });
  }
}

/** Worker threads run compiled code, also when the ledger itself runs from the sources (in tests). */
function workerFile(): URL {
  return import.meta.url.endsWith('.ts')
    ? new URL('../dist/ledger/checkpoint-worker.js', import.meta.url)
    : new URL('./checkpoint-worker.js', import.meta.url);
}
