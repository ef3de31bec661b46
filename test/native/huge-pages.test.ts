import { Worker } from 'node:worker_threads';
import { describe, expect, test } from 'vitest';
import { HostPool } from '../../agent/backend/cpu/host-pool.ts';
import { loadGgml, memoryAt } from '../../native/ggml.ts';
import { makeHugePages, nextHugePage, wholeHugePages } from '../../native/huge-pages.ts';
import { huge_page_bytes, SharedMemory, unmap } from '../../native/memory-map.ts';
import { huge_bytes } from './huge-bytes.ts';

const [probe, probed] = aligned(4 * huge_page_bytes);
/** Linux before 6.1 makes none, and what is asked for here has to change nothing there. */
const canMake = makeHugePages({ address: probe, bytes: 4 * huge_page_bytes });
probed.close();
console.log(`huge pages of memory files: ${canMake ? 'made' : 'not made'} by this kernel`);

/** Writes to the first byte of every small page, from the end to the beginning, again and again for a while. */
const writing = `
const { parentPort, workerData } = require('node:worker_threads');
const { writeSync } = require('node:fs');
parentPort.postMessage('begun');
const until = performance.now() + 100;
do for (let at = workerData.bytes - 4096; at >= 0; at -= 4096) writeSync(workerData.descriptor, Buffer.of(7), 0, 1, at);
while (performance.now() < until);
`;

/** A memory file that is mapped at a multiple of a huge page. */
function aligned(bytes: number): [bigint, SharedMemory] {
  const wide = SharedMemory.create('test', bytes + huge_page_bytes);
  const address = nextHugePage(wide.map());
  const memory = SharedMemory.create('test', bytes);
  memory.mapOver(address);
  wide.close();
  return [address, memory];
}

describe('huge pages of a memory file that has small ones', () => {
  test('what was written stays, and small parts at the ends are left as they are', () => {
    const bytes = 4 * huge_page_bytes;
    const [address, memory] = aligned(bytes);
    const view = memoryAt(address, bytes);
    for (let at = 0; at < bytes; at += 4096) view[at] = at / 4096;
    const whole = wholeHugePages(address + 4096n, bytes - 8192)!;
    expect(whole).toEqual({ address: address + BigInt(huge_page_bytes), bytes: bytes - 2 * huge_page_bytes });
    expect(makeHugePages(whole)).toBe(canMake);
    expect(huge_bytes(address, bytes)).toBe(canMake ? bytes - 2 * huge_page_bytes : 0);
    for (let at = 0; at < bytes; at += 4096) expect(view[at]).toBe((at / 4096) % 256);
    unmap(address, bytes);
    memory.close();
  });

  test('a range without a whole one has none', () => {
    expect(wholeHugePages(BigInt(huge_page_bytes) + 1n, 2 * huge_page_bytes - 2)).toBeUndefined();
  });

  test('are made also while another thread writes there', async () => {
    const bytes = 16 * huge_page_bytes;
    const [address, memory] = aligned(bytes);
    const writer = new Worker(writing, { eval: true, workerData: { descriptor: memory.descriptor, bytes } });
    await new Promise((resolve) => writer.once('message', resolve));
    const made = makeHugePages({ address, bytes });
    await new Promise((resolve) => writer.once('exit', resolve));
    // What was refused because of the writer is made now.
    if (!made) expect(makeHugePages({ address, bytes })).toBe(canMake);
    const view = memoryAt(address, bytes);
    for (let at = 0; at < bytes; at += 4096) expect(view[at]).toBe(7);
    unmap(address, bytes);
    memory.close();
  });
});

describe('a pool', () => {
  test('names what can be made of ranges, in pieces, and shows it in every layout', () => {
    const pool = new HostPool(loadGgml(), 40 * huge_page_bytes);
    pool.write(3 * huge_page_bytes + 5, Uint8Array.of(1, 2, 3));
    const ranges = pool.hugeRanges([
      { offset: 2 * huge_page_bytes - 1, bytes: 34 * huge_page_bytes },
      { offset: 37 * huge_page_bytes, bytes: huge_page_bytes - 1 },
    ]);
    if (pool.pages !== 'base') expect(ranges).toEqual([]);
    else expect(ranges.map(({ bytes }) => bytes / huge_page_bytes)).toEqual([8, 8, 8, 8, 1]);
    for (const range of ranges) expect(makeHugePages(range)).toBe(canMake);
    if (canMake && pool.pages === 'base') expect(pool.resident_bytes).toBe(33 * huge_page_bytes);
    for (const { base } of pool.layouts) {
      const view = memoryAt(base, pool.bytes);
      expect([...view.subarray(3 * huge_page_bytes + 4, 3 * huge_page_bytes + 9)]).toEqual([0, 1, 2, 3, 0]);
      const touched_bytes = huge_bytes(base + BigInt(3 * huge_page_bytes), huge_page_bytes);
      if (canMake && pool.pages === 'base') expect(touched_bytes).toBeGreaterThan(0);
    }
    pool.free();
  });
});
