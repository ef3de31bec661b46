import { lastMinute, untilWithin_s } from './spending.ts';

/**
 * Header fields of one limit by the minute, as OpenAI names and writes them: the limit, what is left, and when all of
 * it is there again.
 *
 * @param held of what runs, and counts already
 */
export function rateFields(
  of: 'requests' | 'tokens',
  limit: number | undefined,
  current: number,
  previous: number,
  held: number,
  now_ms: number,
): [name: string, value: string][] {
  if (limit === undefined) return [];
  const left = Math.max(0, Math.floor(limit - lastMinute(current, previous, now_ms) - held));
  const reset_s = current + previous === 0 ? 0 : untilWithin_s(current, previous, 0, now_ms);
  return [
    [`x-ratelimit-limit-${of}`, String(limit)],
    [`x-ratelimit-remaining-${of}`, String(left)],
    [
      `x-ratelimit-reset-${of}`,
      reset_s < 60 ? `${reset_s}s` : `${Math.floor(reset_s / 60)}m${reset_s % 60}s`,
    ],
  ];
}
