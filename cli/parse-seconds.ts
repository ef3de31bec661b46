import { InvalidArgumentError } from 'commander';

/** Seconds from a time as people write it: 90, 90s, 500ms, 10m, 2h, 1d. */
export function parseSeconds(text: string): number {
  const match = /^(\d+(?:\.\d+)?)(ms|s|m|min|h|d)?$/.exec(text);
  if (!match) throw new InvalidArgumentError('a time such as 90, 90s, 10m or 2h.');
  const factor = { ms: 0.001, s: 1, m: 60, min: 60, h: 3600, d: 86_400 }[match[2] ?? 's']!;
  return Number(match[1]) * factor;
}
