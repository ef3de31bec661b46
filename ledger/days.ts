import type Database from 'better-sqlite3';
import { encodeDay } from './day-block.ts';
import { dayOf } from './spent-sums.ts';

/** Days that have hours and no block, until one that is not over; from one to the next by the key of `hours`. */
const unfinishedDays = `
  WITH RECURSIVE known(day) AS (
    SELECT min(hour) / 24 FROM hours
    UNION ALL SELECT (SELECT min(hour) / 24 FROM hours WHERE hour >= 24 * (known.day + 1)) FROM known WHERE day IS NOT NULL
  )
  SELECT day FROM known WHERE day < ? AND day NOT IN (SELECT day FROM days) LIMIT ?`;

/**
 * Writes the blocks of days that are over. What is added to such a day later takes its block away again, and it is
 * written anew. Nothing depends on a block being there but the time that questions take.
 *
 * @param days_max about 50 ms each, with 20,000 hours of series
 * @returns how many were written
 */
export function finishDays(db: Database.Database, now_ms: number, days_max = 1_000_000): number {
  const days = db.prepare(unfinishedDays).pluck().all(dayOf(now_ms), days_max) as number[];
  if (days.length === 0) return 0;
  const hours = db
    .prepare('SELECT * FROM hours WHERE hour >= ? AND hour < ? ORDER BY hour, series_ref')
    .raw();
  const insert = db.prepare('INSERT OR REPLACE INTO days (day, sums) VALUES (?, ?)');
  const finish = db.transaction((day: number) => {
    insert.run(day, encodeDay(day, hours.all(24 * day, 24 * (day + 1)) as number[][]));
  });
  for (const day of days) finish.immediate(day);
  return days.length;
}
