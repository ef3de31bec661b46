import { z } from 'zod';
import { dayOf } from '../../ledger/index.ts';

const count = z.number().min(0);

/** What one gateway counts of one key; the shape in `spent.json`. */
const spentSchema = z.object({
  /** Minutes since 1970, and what was asked in it and in the one before. */
  minute: count,
  requests: count,
  tokens: count,
  previous_requests: count,
  previous_tokens: count,
  /** Days since 1970 in UTC, and tokens since its beginning, that of its month, and ever. */
  day: count,
  day_tokens: count,
  month_tokens: count,
  total_tokens: count,
  /** Devices × seconds, likewise. */
  day_device_s: count.default(0),
  month_device_s: count.default(0),
  total_device_s: count.default(0),
});
export type Spent = z.infer<typeof spentSchema>;

/** `spent.json` of a gateway: what others must know of it to keep the limits that keys have for the whole site. */
export const spentFileSchema = z.object({ format: z.literal(1), keys: z.record(z.string(), spentSchema) });
export type SpentFile = z.infer<typeof spentFileSchema>;

export function minuteOf(time_ms: number): number {
  return Math.floor(time_ms / 60_000);
}

/** Day on which the month of a day begins. */
export function monthBegin(day: number): number {
  const date = new Date(day * 86_400_000);
  return dayOf(Date.UTC(date.getUTCFullYear(), date.getUTCMonth(), 1));
}

/** The same, as it is at another time: minutes, days and months that are over count no more. */
export function spentAt(spent: Spent, now_ms: number): Spent {
  const minute = minuteOf(now_ms);
  const day = dayOf(now_ms);
  let now = spent;
  if (minute > now.minute) {
    const follows = minute === now.minute + 1;
    now = {
      ...now,
      minute,
      requests: 0,
      tokens: 0,
      previous_requests: follows ? now.requests : 0,
      previous_tokens: follows ? now.tokens : 0,
    };
  }
  if (day > now.day) {
    const sameMonth = monthBegin(day) === monthBegin(now.day);
    now = { ...now, day, day_tokens: 0, day_device_s: 0 };
    if (!sameMonth) now = { ...now, month_tokens: 0, month_device_s: 0 };
  }
  return now;
}

/** Sums over gateways, as they are at one time. */
export function sumSpent(all: readonly Spent[], now_ms: number): Spent {
  const sum = { ...emptySpent, minute: minuteOf(now_ms), day: dayOf(now_ms) };
  for (const each of all) {
    const spent = spentAt(each, now_ms);
    for (const field of summed) sum[field] += spent[field];
  }
  return sum;
}

const summed = [
  'requests',
  'tokens',
  'previous_requests',
  'previous_tokens',
  'day_tokens',
  'month_tokens',
  'total_tokens',
  'day_device_s',
  'month_device_s',
  'total_device_s',
] as const;

const emptySpent: Spent = {
  minute: 0,
  requests: 0,
  tokens: 0,
  previous_requests: 0,
  previous_tokens: 0,
  day: 0,
  day_tokens: 0,
  month_tokens: 0,
  total_tokens: 0,
  day_device_s: 0,
  month_device_s: 0,
  total_device_s: 0,
};

/**
 * What was asked within the last minute, from the counts of whole minutes: of the one before, the part that the last
 * 60 s still reach into.
 */
export function lastMinute(current: number, previous: number, now_ms: number): number {
  return current + previous * (1 - (now_ms % 60_000) / 60_000);
}

/** Seconds until `lastMinute` is no more than a limit if nothing more is asked. */
export function untilWithin_s(current: number, previous: number, limit: number, now_ms: number): number {
  const passed = (now_ms % 60_000) / 60_000;
  // Within this minute the previous one fades; after it, the current one does.
  const share = previous > 0 ? 1 - (limit - current) / previous : Number.POSITIVE_INFINITY;
  const minutes =
    current <= limit && share <= 1 ? share - passed : 1 - passed + Math.max(0, 1 - limit / current);
  return Math.max(1, Math.ceil(minutes * 60));
}
