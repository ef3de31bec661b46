import { existsSync } from 'node:fs';
import type Database from 'better-sqlite3';
import type { RequestRecord } from '../record.ts';
import { RequestWriter } from '../request-writer.ts';
import { isBehind, removeTail, type TailPosition, tailFile, tailNumbers } from './tail-files.ts';
import type { Gap } from './tail-line.ts';
import { type ReadLine, TailReader } from './tail-reader.ts';

/** Records of one transaction, about. Lower: shorter ones; higher: less work a record. */
const batch_max = 4096;

/** Lines that were read and are not in the tables yet. */
interface Batch {
  file: number;
  lines: ReadLine[];
}

export interface FoldOptions {
  /** The ledger is a copy: the tail belongs to another. */
  keepsFiles?: boolean;
  /** What is in the tables already, where they do not say how far they have the tail. */
  isKnown?: (record: RequestRecord) => boolean;
}

/**
 * Moves records from the tail of a ledger into its tables. How far it came is written in the same transaction, so that
 * each record is moved once, whoever is killed when, and whoever else does the same.
 */
export class Fold {
  readonly #db: Database.Database;
  readonly #ledger: string;
  readonly #options: FoldOptions;
  readonly #writer: RequestWriter;
  readonly #position: Database.Statement;
  readonly #setPosition: Database.Statement;
  #reader: TailReader | undefined;
  #file = -1;
  #batch: Batch | undefined;

  constructor(db: Database.Database, ledger: string, options: FoldOptions = {}) {
    this.#db = db;
    this.#ledger = ledger;
    this.#options = options;
    this.#writer = new RequestWriter(db);
    this.#position = db.prepare('SELECT file, bytes FROM tail_position');
    this.#setPosition = db.prepare('UPDATE tail_position SET file = ?, bytes = ?');
  }

  /** Moves all that is there. @throws SqliteError where the tables cannot be written; nothing is lost then */
  all(): void {
    while (this.step()) {}
  }

  /** Up to where the tables have it. */
  position(): TailPosition {
    return this.#position.get() as TailPosition;
  }

  /** Moves up to a few thousand records. @returns whether there were any */
  step(): boolean {
    this.#batch ??= this.#nextBatch();
    if (!this.#batch) return false;
    const { file, lines } = this.#batch;
    try {
      this.#db.exec('BEGIN IMMEDIATE');
      this.#move(file, lines);
      this.#db.exec('COMMIT');
    } catch (error) {
      if (this.#db.inTransaction) this.#db.exec('ROLLBACK');
      this.#writer.rolledBack();
      throw error;
    }
    this.#writer.committed();
    this.#batch = undefined;
    if (!this.#options.keepsFiles) removeTail(this.#db, this.#ledger, file);
    return true;
  }

  close(): void {
    this.#reader?.close();
    this.#reader = undefined;
  }

  #move(file: number, lines: readonly ReadLine[]): void {
    const position = this.position();
    const { isKnown = () => false } = this.#options;
    const records: RequestRecord[] = [];
    const gaps: Gap[] = [];
    for (const { line, end } of lines) {
      if (!isBehind(position, { file, bytes: end })) continue;
      for (const record of line?.records ?? []) if (!isKnown(record)) records.push(record);
      const gap = line ? line.gap : damagedLine();
      if (gap) gaps.push(gap);
    }
    this.#writer.write(records, ...gaps);
    const end = { file, bytes: lines.at(-1)!.end };
    if (isBehind(position, end)) this.#setPosition.run(end.file, end.bytes);
  }

  #nextBatch(): Batch | undefined {
    for (;;) {
      if (!this.#reader && !this.#openNext()) return undefined;
      // Asked before the file is read: behind one that is followed by another comes nothing more.
      const isLast = !tailNumbers(this.#ledger).some((number) => number > this.#file);
      const lines: ReadLine[] = [];
      for (let records = 0; records < batch_max; ) {
        const more = this.#reader!.read();
        if (more.length === 0) break;
        lines.push(...more);
        records += more.reduce((sum, { line }) => sum + (line?.records.length ?? 0), 0);
      }
      if (lines.length > 0) return { file: this.#file, lines };
      if (isLast) return undefined;
      this.close();
    }
  }

  /** The file that the tables have a part of, or the first behind it. */
  #openNext(): boolean {
    const { file, bytes } = this.position();
    const next = tailNumbers(this.#ledger).find((number) => number >= Math.max(this.#file + 1, file));
    if (next === undefined || !existsSync(tailFile(this.#ledger, next))) return false;
    this.#reader = new TailReader(tailFile(this.#ledger, next), next === file ? bytes : 0);
    this.#file = next;
    return true;
  }
}

function damagedLine(): Gap {
  const now_ms = Date.now();
  return { since_ms: now_ms, until_ms: now_ms, requests: 0, reason: 'a line of the tail was damaged' };
}

/** Moves all of a tail into the tables, for who has the ledger alone; see `Fold`. */
export function foldTail(db: Database.Database, ledger: string, options?: FoldOptions): void {
  const fold = new Fold(db, ledger, options);
  try {
    fold.all();
  } finally {
    fold.close();
  }
}
