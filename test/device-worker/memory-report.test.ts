/** Every byte that the kernel counts has a name: held against this process, whose parts are known. */
import { readFileSync } from 'node:fs';
import { setFlagsFromString } from 'node:v8';
import { describe, expect, it } from 'vitest';
import { reportMemory } from '../../agent/device-worker/memory-report.ts';

const mib = 2 ** 20;

function partsNow(): Record<string, number> {
  const { parts, pss_bytes, unexplained_bytes } = reportMemory();
  expect(parts.reduce((sum, { bytes }) => sum + bytes, unexplained_bytes)).toBe(pss_bytes);
  return {
    ...Object.fromEntries(parts.map(({ name, bytes }) => [name, bytes])),
    unexplained_bytes,
    pss_bytes,
  };
}

describe('the report of a process’s memory', () => {
  it('adds up to what the kernel counts, and leaves next to nothing unexplained', () => {
    const { pss_bytes, unexplained_bytes } = partsNow();
    const rollup = readFileSync('/proc/self/smaps_rollup', 'utf8');
    const counted_bytes = 1024 * Number(/^Pss:\s+(\d+)/m.exec(rollup)![1]);
    expect(Math.abs(pss_bytes! / counted_bytes - 1)).toBeLessThan(0.05);
    expect(unexplained_bytes! / pss_bytes!).toBeLessThan(0.01);
  });

  it('counts a buffer as a block of the native heap, as far as it was written to, and a heap of objects as JavaScript', async () => {
    // Otherwise the collector may give memory back in between.
    setFlagsFromString('--no-memory-reducer');
    const before = partsNow();
    const buffer = Buffer.allocUnsafeSlow(96 * mib);
    buffer.fill(1, 0, 48 * mib);
    const with_buffer = partsNow();
    const grown = (name: string, from: Record<string, number>, to: Record<string, number>): number =>
      (to[name]! - from[name]!) / mib;
    expect(grown('large blocks of it', before, with_buffer)).toBeGreaterThan(47);
    // A huge page at its end may be there whole.
    expect(grown('large blocks of it', before, with_buffer)).toBeLessThan(54);
    const objects = Array.from({ length: 1_000_000 }, (_, at) => ({ at, next: at + 1 }));
    const with_objects = partsNow();
    expect(grown('JavaScript', with_buffer, with_objects)).toBeGreaterThan(20);
    expect(grown('unexplained_bytes', before, with_objects)).toBeLessThan(1);
    expect(buffer[0]! + objects.length).toBe(1_000_001);
  });
});
