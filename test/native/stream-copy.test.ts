import { expect, test } from 'vitest';
import { memoryAt } from '../../native/ggml.ts';
import { huge_page_bytes, SharedMemory, unmap } from '../../native/memory-map.ts';
import { loadStreamCopy } from '../../native/stream-copy.ts';
import { builtKernels } from './kernels/support.ts';

builtKernels();
const streamCopy = loadStreamCopy()!;

/** Around lines, pages and the four pages that are copied side by side. */
const lengths = [0, 1, 15, 63, 64, 65, 127, 4095, 4096, 16_383, 16_384, 16_385, 70_000, 300_001];
const offsets = [0, 1, 13, 16, 63];

test('a copy past the caches is a copy, wherever it begins and ends, and of nothing else', () => {
  const memory = SharedMemory.create('copy', huge_page_bytes);
  const base = memory.map();
  const half = huge_page_bytes / 2;
  const all = memoryAt(base, memory.bytes);
  const from = all.subarray(0, half);
  for (let index = 0; index < half; index++) from[index] = (index * 2654435761) >>> 13;
  for (const length of lengths)
    for (const to_offset of offsets)
      for (const from_offset of offsets) {
        const to = all.subarray(half, half + length + 128).fill(7);
        streamCopy(base + BigInt(half + to_offset), base + BigInt(from_offset), length);
        const expected = Buffer.alloc(to.length, 7);
        expected.set(from.subarray(from_offset, from_offset + length), to_offset);
        expect(Buffer.compare(to, expected), `${length} bytes from ${from_offset} to ${to_offset}`).toBe(0);
      }
  unmap(base, memory.bytes);
  memory.close();
});
