import { readdirSync, rmSync, statSync } from 'node:fs';
import { basename, dirname } from 'node:path';
import type Database from 'better-sqlite3';

/** How far into the tail: in which of its files, and how many bytes of it. */
export interface TailPosition {
  file: number;
  bytes: number;
}

export const tailFile = (ledger: string, number: number): string => `${ledger}.tail-${number}`;

/** Numbers of the files of a ledger's tail, the oldest first. */
export function tailNumbers(ledger: string): number[] {
  const prefix = `${basename(ledger)}.tail-`;
  return readdirSync(dirname(ledger))
    .filter((name) => name.startsWith(prefix) && /^\d+$/.test(name.slice(prefix.length)))
    .map((name) => Number(name.slice(prefix.length)))
    .sort((a, b) => a - b);
}

/** Up to where there are files; undefined where there are none. */
export function endOfTail(ledger: string): TailPosition | undefined {
  const file = tailNumbers(ledger).at(-1);
  if (file === undefined) return undefined;
  const bytes = statSync(tailFile(ledger, file), { throwIfNoEntry: false })?.size ?? 0;
  return { file, bytes };
}

/** Removes the files before one, which the tables have: from then on also where the power is lost. */
export function removeTail(db: Database.Database, ledger: string, before: number): void {
  const done = tailNumbers(ledger).filter((number) => number < before);
  if (done.length === 0) return;
  db.pragma('wal_checkpoint(PASSIVE)');
  for (const number of done) rmSync(tailFile(ledger, number), { force: true });
}

/** Up to where the tables have it. */
export function tailPosition(db: Database.Database): TailPosition {
  return db.prepare('SELECT file, bytes FROM tail_position').get() as TailPosition;
}

export function isBehind(one: TailPosition, other: TailPosition): boolean {
  return one.file < other.file || (one.file === other.file && one.bytes < other.bytes);
}
