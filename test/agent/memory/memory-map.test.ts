import { spawnSync } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { HostPool } from '../../../agent/backend/cpu/host-pool.ts';
import { leaseHolds, releaseLease, takeLease } from '../../../native/file-lease.ts';
import { loadGgml, memoryAt } from '../../../native/ggml.ts';
import {
  huge_page_bytes,
  isInPageCache,
  mapFile,
  pageSize_bytes,
  populateForReading,
  readCachedInto,
  readInto,
  SharedMemory,
  unmap,
} from '../../../native/memory-map.ts';

import { forgetFile } from './page-cache.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-map-'));
afterAll(() => rmSync(folder, { recursive: true }));

describe('a memory file', () => {
  test('is one memory wherever it is mapped', () => {
    const memory = SharedMemory.create('test', huge_page_bytes);
    const [one, two] = [memory.map(), memory.map()];
    expect(one).not.toBe(two);
    memoryAt(one, 8).set([1, 2, 3]);
    expect([...memoryAt(two, 4)]).toEqual([1, 2, 3, 0]);
    unmap(one, memory.bytes);
    unmap(two, memory.bytes);
    memory.close();
  });

  test('refuses sizes that are no whole pages', () => {
    expect(() => SharedMemory.create('test', huge_page_bytes + 4096)).toThrow(RangeError);
  });
});

describe('the memory of a pool', () => {
  test('shows the same bytes in every layout, is taken when asked for, and is given back', () => {
    const resident = (): number => process.memoryUsage.rss() / 2 ** 20;
    const start = resident();
    const ggml = loadGgml();
    for (let round = 0; round < 3; round++) {
      const pool = new HostPool(ggml, 60 * 2 ** 20);
      expect(pool.layouts.map(({ name }) => name)).toContain('CPU');
      for (const { base } of pool.layouts) {
        memoryAt(base + 4096n, 2).set([round + 1, 7]);
        expect([...pool.view(4096, 2)]).toEqual([round + 1, 7]);
      }
      pool.populate();
      expect(resident() - start).toBeGreaterThan(50);
      pool.move(8192, 4096, 2);
      expect([...pool.view(8192, 2)]).toEqual([round + 1, 7]);
      pool.free();
    }
    expect(resident() - start).toBeLessThan(50);
  });

  test('of a size that ggml takes from its heap leaves the heap usable', () => {
    const ggml = loadGgml();
    for (let round = 0; round < 50; round++) {
      const pool = new HostPool(ggml, huge_page_bytes);
      pool.view(0, pool.bytes).fill(round);
      pool.free();
      expect(Buffer.alloc(3 * huge_page_bytes).every((byte) => byte === 0)).toBe(true);
    }
  });
});

describe('a file that is read through a mapping', () => {
  const path = join(folder, 'file');
  writeFileSync(path, new Uint8Array(4 * pageSize_bytes()).fill(5));

  test('says where it has no bytes instead of ending the process', () => {
    const descriptor = openSync(path, 'r');
    const mapping = mapFile(descriptor, 0, 4 * pageSize_bytes())!;
    expect(populateForReading(mapping, 4 * pageSize_bytes())).toBe(true);
    expect(isInPageCache(mapping, 4 * pageSize_bytes())).toBe(true);
    expect(memoryAt(mapping + 5n, 1)[0]).toBe(5);
    truncateSync(path, pageSize_bytes());
    expect(populateForReading(mapping, 4 * pageSize_bytes())).toBe(false);
    unmap(mapping, 4 * pageSize_bytes());
    const memory = SharedMemory.create('target', huge_page_bytes);
    const target = memory.map();
    expect(readInto(target, descriptor, pageSize_bytes() - 3, 8)).toBe(3);
    expect([...memoryAt(target, 4)]).toEqual([5, 5, 5, 0]);
    expect(readInto(target, 9999, 0, 8)).toBeLessThan(0);
    unmap(target, memory.bytes);
    memory.close();
    closeSync(descriptor);
  });

  test('is read as far as it is in the page cache, where that is asked for', async () => {
    const own = join(folder, 'cached');
    const bytes = 8 * huge_page_bytes;
    writeFileSync(own, new Uint8Array(bytes).fill(7));
    const descriptor = openSync(own, 'r');
    const memory = SharedMemory.create('target', bytes);
    const target = memory.map();
    expect(readCachedInto(target, descriptor, 5, 100)).toBe(100);
    expect([...memoryAt(target, 101)]).toEqual([...new Array(100).fill(7), 0]);
    await forgetFile(own);
    // Kernels begin to read the first pages all the same, and a quick disk may have brought them by then: not the rest.
    expect(readCachedInto(target, descriptor, 0, bytes)).toBeLessThan(bytes / 2);
    expect(readInto(target, descriptor, 0, bytes)).toBe(bytes);
    expect(readCachedInto(target, 9999, 0, 8)).toBe(0);
    unmap(target, memory.bytes);
    memory.close();
    closeSync(descriptor);
  });

  test('is kept from writers by a lease, which tells when one waits', () => {
    const descriptor = openSync(path, 'r');
    expect(takeLease(descriptor)).toBe(true);
    expect(leaseHolds(descriptor)).toBe(true);
    // dd opens with O_NONBLOCK here, and is refused at once instead of waiting.
    const write = () =>
      spawnSync('dd', ['if=/dev/zero', `of=${path}`, 'bs=1', 'count=1', 'oflag=nonblock', 'conv=notrunc']);
    expect(write().status).not.toBe(0);
    expect(leaseHolds(descriptor)).toBe(false);
    releaseLease(descriptor);
    expect(write().status).toBe(0);
    closeSync(descriptor);
  });

  test('has no lease where somebody writes to it', () => {
    const writer = openSync(path, 'r+');
    const reader = openSync(path, 'r');
    expect(takeLease(reader)).toBe(false);
    closeSync(writer);
    closeSync(reader);
  });
});
