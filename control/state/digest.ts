/** Digests of JSON values: equal values have equal digests, whatever the order of their keys. */
import { createHash } from 'node:crypto';

/** SHA-256 in hex over the value with sorted keys; undefined properties do not count. */
export function digestOf(value: unknown): string {
  return createHash('sha256').update(canonical(value)).digest('hex');
}

function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value)
      .filter(([, each]) => each !== undefined)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, each]) => `${JSON.stringify(key)}:${canonical(each)}`);
    return `{${entries.join(',')}}`;
  }
  // JSON has no Infinity: limits of "none" must still differ from an absent one.
  return typeof value === 'number' && !Number.isFinite(value)
    ? `"${value}"`
    : (JSON.stringify(value) ?? 'null');
}
