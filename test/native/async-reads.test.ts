/** Reads by the kernel, of a real file past the page cache. */
import { closeSync, constants, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { constants as system, tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { stagingMemory } from '../../agent/memory/load/staging-memory.ts';
import { AsyncReads } from '../../native/async-reads.ts';
import { loadGgml, memoryAt } from '../../native/ggml.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-reads-'));
const path = join(folder, 'file');
const page = 4096;
// Its end lies within a page.
writeFileSync(
  path,
  Uint8Array.from({ length: 5 * page + 100 }, (_, index) => (index * 2654435761) >>> 11),
);
const content = readFileSync(path);
afterAll(() => rmSync(folder, { recursive: true }));

test('bring several ranges at once, say where the file ends, and what is wrong', () => {
  const reads = AsyncReads.open(8)!;
  expect(reads, 'Linux on x86-64 and arm64 has them').toBeDefined();
  const memory = stagingMemory(loadGgml(), undefined, 8 * page);
  const descriptor = openSync(path, constants.O_RDONLY | constants.O_DIRECT);
  try {
    expect(memory.address % BigInt(page)).toBe(0n);
    const at = (index: number): bigint => memory.address + BigInt(index * page);
    expect(reads.begin(7, descriptor, at(0), 2 * page, 2 * page)).toBe(0);
    expect(reads.begin(8, descriptor, at(2), 4 * page, 2 * page)).toBe(0);
    expect(reads.begin(9, descriptor, at(4), 10 * page, page)).toBe(0);
    expect(reads.pending).toBe(3);
    const ended = new Map([reads.next(), reads.next(), reads.next()].map(({ tag, result }) => [tag, result]));
    expect(ended).toEqual(
      new Map([
        [7, 2 * page],
        [8, page + 100],
        [9, 0],
      ]),
    );
    const found = memoryAt(memory.address, 3 * page + 100);
    expect(Buffer.compare(found, content.subarray(2 * page))).toBe(0);
    expect(() => reads.next()).toThrow('no read is under way');
    // Not whole blocks: what a filesystem refuses, it refuses at once or at the end.
    const refused = reads.begin(1, descriptor, at(0), 1, 10);
    const result = refused === 0 ? reads.next().result : refused;
    expect(result).toBe(-system.errno.EINVAL);
    expect(reads.begin(1, 9999, at(0), 0, page)).toBe(-system.errno.EBADF);
    expect(reads.pending).toBe(0);
  } finally {
    reads.close();
    closeSync(descriptor);
    memory.free();
  }
});
