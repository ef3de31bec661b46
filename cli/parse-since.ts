import { InvalidArgumentError } from 'commander';
import { parseSeconds } from './parse-seconds.ts';

/** Unix ms of `7d`, `24h` before now, or of a day or time in ISO 8601. */
export function parseSince(text: string, now_ms: number): number {
  const date = /^\d{4}-\d{2}-\d{2}/.test(text) ? Date.parse(text) : Number.NaN;
  if (Number.isFinite(date)) return date;
  try {
    return now_ms - parseSeconds(text) * 1000;
  } catch {
    throw new InvalidArgumentError('a time span such as 7d or 24h, or a day such as 2026-01-31.');
  }
}
