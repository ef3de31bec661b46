/** Every byte that the kernel counts has a name: held against this process, whose parts are known. */
import { readFileSync } from 'node:fs';
import { setFlagsFromString } from 'node:v8';
import koffi from 'koffi';
import { describe, expect, it } from 'vitest';
import { reportMemory } from '../../../agent/device-worker/memory-report.ts';

const mib = 2 ** 20;
const libc = koffi.load('libc.so.6');
const mmap = libc.func('intptr_t mmap(intptr_t, size_t, int, int, int, int64_t)') as (
  ...values: number[]
) => number;
const munmap = libc.func('int munmap(intptr_t, size_t)') as (address: number, bytes: number) => number;
const [nothing, private_anonymous_not_over_others] = [0, 0x10_0022];
const page_bytes = 4096;

function heapEnd(): number {
  const heap = /^\w+-(\w+) .*\[heap\]$/m.exec(readFileSync('/proc/self/maps', 'utf8'));
  return Number.parseInt(heap![1]!, 16);
}

/** @returns bytes, by the kernel */
function counted(): number {
  const rollup = readFileSync('/proc/self/smaps_rollup', 'utf8');
  return 1024 * Number(/^Pss:\s+(\d+)/m.exec(rollup)![1]);
}

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
    const before_bytes = counted();
    const { pss_bytes, unexplained_bytes } = partsNow();
    const counts = [before_bytes, counted()];
    // The look itself takes memory, since its code is compiled; what is shared with others counts less when more of
    // them come.
    expect(pss_bytes).toBeGreaterThan(0.95 * Math.min(...counts));
    expect(pss_bytes).toBeLessThan(1.05 * Math.max(...counts));
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

  it('knows the heap where something lies in its way and it goes on elsewhere', () => {
    const in_the_way = heapEnd();
    const mapped = mmap(in_the_way, page_bytes, nothing, private_anonymous_not_over_others, -1, 0);
    // Where something lies there already, that will do.
    expect([in_the_way, -1]).toContain(mapped);
    try {
      const before = partsNow();
      // Each too small for a block of its own.
      const buffers = Array.from({ length: 400 }, () => Buffer.allocUnsafeSlow(96 * 1024).fill(1));
      const after = partsNow();
      expect(heapEnd()).toBe(in_the_way);
      expect((after['native heap']! - before['native heap']!) / mib).toBeGreaterThan(25);
      expect((after.unexplained_bytes! - before.unexplained_bytes!) / mib).toBeLessThan(1);
      expect(buffers.every((buffer) => buffer[0] === 1)).toBe(true);
    } finally {
      if (mapped !== -1) munmap(in_the_way, page_bytes);
    }
  });
});
