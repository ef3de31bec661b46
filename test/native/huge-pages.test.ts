import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { HostPool } from '../../agent/backend/cpu/host-pool.ts';
import { loadGgml, memoryAt } from '../../native/ggml.ts';
import { makeHugePages } from '../../native/huge-pages.ts';
import { huge_page_bytes, SharedMemory, unmap } from '../../native/memory-map.ts';

/** Bytes of this process's mappings at and behind an address that have huge pages of a memory file. */
function huge_bytes(address: bigint, bytes: number): number {
  let [inside, sum] = [false, 0];
  for (const line of readFileSync('/proc/self/smaps', 'utf8').split('\n')) {
    const range = /^([0-9a-f]+)-([0-9a-f]+) /.exec(line);
    if (range)
      inside = BigInt(`0x${range[1]}`) < address + BigInt(bytes) && BigInt(`0x${range[2]}`) > address;
    const huge = /^ShmemPmdMapped: +(\d+) kB$/.exec(line);
    if (huge && inside) sum += Number(huge[1]) * 1024;
  }
  return sum;
}

const [probe, probed] = aligned(4 * huge_page_bytes);
/** Linux before 6.1 makes none, and what is asked for here has to change nothing there. */
const canMake = await makeHugePages(probe, 4 * huge_page_bytes);
probed.close();

/** A memory file that is mapped at a multiple of a huge page. */
function aligned(bytes: number): [bigint, SharedMemory] {
  const wide = SharedMemory.create('test', bytes + huge_page_bytes);
  const page = BigInt(huge_page_bytes);
  const address = ((wide.map() + page - 1n) / page) * page;
  const memory = SharedMemory.create('test', bytes);
  memory.mapOver(address);
  wide.close();
  return [address, memory];
}

describe('huge pages of a memory file that has small ones', () => {
  test('what was written stays, and small parts at the ends are left as they are', async () => {
    const bytes = 4 * huge_page_bytes;
    const [address, memory] = aligned(bytes);
    const view = memoryAt(address, bytes);
    for (let at = 0; at < bytes; at += 4096) view[at] = at / 4096;
    const made = await makeHugePages(address + 4096n, bytes - 8192);
    expect(made).toBe(canMake);
    expect(huge_bytes(address, bytes)).toBe(canMake ? bytes - 2 * huge_page_bytes : 0);
    for (let at = 0; at < bytes; at += 4096) expect(view[at]).toBe((at / 4096) % 256);
    unmap(address, bytes);
    memory.close();
  });

  test('a range without a whole one is no range for them', async () => {
    const [address, memory] = aligned(2 * huge_page_bytes);
    expect(await makeHugePages(address + 1n, 2 * huge_page_bytes - 2)).toBe(false);
    unmap(address, 2 * huge_page_bytes);
    memory.close();
  });
});

describe('a pool', () => {
  test('makes them where they are asked for, in every layout, and only there', async () => {
    const pool = new HostPool(loadGgml(), 16 * huge_page_bytes);
    pool.write(3 * huge_page_bytes + 5, Uint8Array.of(1, 2, 3));
    pool.preferHugePages([
      { offset: 2 * huge_page_bytes, bytes: 4 * huge_page_bytes },
      { offset: 5 * huge_page_bytes, bytes: 3 * huge_page_bytes + 17 },
    ]);
    if (canMake && pool.pages === 'base')
      await expect.poll(() => pool.resident_bytes, { timeout: 10_000 }).toBe(6 * huge_page_bytes);
    expect([...pool.view(3 * huge_page_bytes + 4, 5)]).toEqual([0, 1, 2, 3, 0]);
    for (const { base } of pool.layouts) {
      const view = memoryAt(base, pool.bytes);
      expect([...view.subarray(3 * huge_page_bytes + 4, 3 * huge_page_bytes + 9)]).toEqual([0, 1, 2, 3, 0]);
      const touched = huge_bytes(base + BigInt(3 * huge_page_bytes), huge_page_bytes);
      if (canMake && pool.pages === 'base') expect(touched).toBeGreaterThan(0);
    }
    pool.free();
  });
});
