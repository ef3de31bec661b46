import type Database from 'better-sqlite3';
import { finishDays } from './days.ts';
import type { RequestRecord } from './record.ts';
import { RequestWriter } from './request-writer.ts';
import type { Gap } from './tail/tail-line.ts';

/** Where the records of a ledger become safe from the death of its process. */
export interface RecordStore {
  /** All of them, or none, when it returns. @throws the system's or SQLite's error */
  write(records: readonly RequestRecord[], gap?: Gap): void;
  /** What was written is in the tables when it returns, as far as that is done within a time. */
  settle(within_ms: number): void;
  /** The same when it resolves; others go on meanwhile. */
  settled(within_ms: number): Promise<void>;
  /** Before the database closes. */
  close(): Promise<void>;
}

/** Between two looks for days that are over. */
const days_ms = 600_000;

/** Writes into the tables themselves: where each commit is synced, there is nothing that is faster. */
export class TableStore implements RecordStore {
  readonly #db: Database.Database;
  readonly #writer: RequestWriter;
  readonly #begin: Database.Statement;
  readonly #commit: Database.Statement;
  readonly #now_ms: () => number;
  #days_at_ms = 0;

  constructor(db: Database.Database, now_ms: () => number) {
    this.#db = db;
    this.#writer = new RequestWriter(db);
    this.#begin = db.prepare('BEGIN IMMEDIATE');
    this.#commit = db.prepare('COMMIT');
    this.#now_ms = now_ms;
  }

  write(records: readonly RequestRecord[], gap?: Gap): void {
    try {
      this.#begin.run();
      this.#writer.write(records, gap);
      this.#commit.run();
    } catch (error) {
      if (this.#db.inTransaction) this.#db.exec('ROLLBACK');
      this.#writer.rolledBack();
      throw error;
    }
    this.#writer.committed();
    this.#finishDay();
  }

  settle(): void {}

  async settled(): Promise<void> {}

  async close(): Promise<void> {}

  #finishDay(): void {
    const now_ms = this.#now_ms();
    if (now_ms < this.#days_at_ms) return;
    this.#days_at_ms = now_ms + days_ms;
    try {
      finishDays(this.#db, now_ms, 1);
    } catch {
      // Questions take longer without; it is tried again.
    }
  }
}
