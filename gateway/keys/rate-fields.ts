import type { KeySettings } from '../../spec/key-settings.ts';
import { lastMinute, untilWithin_s } from './spending.ts';

/** What is left of a limit by the minute, and until all of it is there again. */
type RateLeft = readonly [left: number, reset_s: number];

/** Of each limit by the minute that a key has. */
export type RatesLeft = readonly [requests: RateLeft | null, tokens: RateLeft | null];

/** @param held of what runs, and counts already */
export function rateLeft(
  limit: number | undefined,
  current: number,
  previous: number,
  held: number,
  now_ms: number,
): RateLeft | null {
  if (limit === undefined) return null;
  const left = Math.max(0, Math.floor(limit - lastMinute(current, previous, now_ms) - held));
  return [left, current + previous === 0 ? 0 : untilWithin_s(current, previous, 0, now_ms)];
}

/** The limits by the minute of a key in header fields, as OpenAI names and writes them. */
export function rateHeaders(
  { requests_per_minute, tokens_per_minute }: KeySettings,
  [requests, tokens]: RatesLeft = [null, null],
): [name: string, value: string][] {
  return [
    ...rateFields('requests', requests_per_minute, requests),
    ...rateFields('tokens', tokens_per_minute, tokens),
  ];
}

function rateFields(
  of: 'requests' | 'tokens',
  limit: number | undefined,
  rate: RateLeft | null,
): [name: string, value: string][] {
  if (limit === undefined || rate === null) return [];
  const [left, reset_s] = rate;
  return [
    [`x-ratelimit-limit-${of}`, String(limit)],
    [`x-ratelimit-remaining-${of}`, String(left)],
    [
      `x-ratelimit-reset-${of}`,
      reset_s < 60 ? `${reset_s}s` : `${Math.floor(reset_s / 60)}m${reset_s % 60}s`,
    ],
  ];
}
