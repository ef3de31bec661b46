import { InvalidArgumentError } from 'commander';
import { momentOf_ms } from '../spec/moment.ts';
import { parseSeconds } from './parse-seconds.ts';

/** Unix ms of `7d`, `24h` before now, or of a day or time in ISO 8601. */
export function parseSince(text: string, now_ms: number): number {
  const moment_ms = momentOf_ms(text);
  if (moment_ms !== undefined) return moment_ms;
  try {
    return now_ms - parseSeconds(text) * 1000;
  } catch {
    throw new InvalidArgumentError('a time span such as 7d or 24h, or a day such as 2026-01-31.');
  }
}
