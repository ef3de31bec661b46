/** Made-up weights in super-blocks of 256 elements, read by what ggml's headers say of them. */
import { cutOff, fromF16 } from './numbers.ts';

const super_elements = 256;

/** struct block_q4_K: two F16, 12 bytes of scales and minima of 6 bits, 128 bytes of integers. */
function readQ4K(block: Uint8Array, element: number): [scale: number, integer: number, minimum: number] {
  const sub = element >> 5;
  const s = block.subarray(4, 16);
  const scale = sub < 4 ? s[sub]! & 63 : (s[sub + 4]! & 15) | ((s[sub - 4]! >> 6) << 4);
  const minimum = sub < 4 ? s[sub + 4]! & 63 : (s[sub + 4]! >> 4) | ((s[sub]! >> 6) << 4);
  const byte = block[16 + 32 * (element >> 6) + (element & 31)]!;
  const half = (at: number) => fromF16(block[at]! | (block[at + 1]! << 8));
  return [half(0) * scale, (element & 32) === 0 ? byte & 15 : byte >> 4, half(2) * minimum];
}

/** struct block_q6_K: 128 bytes of low bits, 64 of high ones, 16 signed scales, an F16. */
function readQ6K(block: Uint8Array, element: number): [scale: number, integer: number, minimum: number] {
  const within = element & 127;
  const quarter = within >> 5;
  const low = block[64 * (element >> 7) + 32 * (quarter & 1) + (within & 31)]!;
  const high = block[128 + 32 * (element >> 7) + (within & 31)]!;
  const integer = ((quarter < 2 ? low : low >> 4) & 15) | (((high >> (2 * quarter)) & 3) << 4);
  const scale = (block[192 + (element >> 4)]! << 24) >> 24;
  return [fromF16(block[208]! | (block[209]! << 8)) * scale, integer - 32, 0];
}

const layouts = {
  Q4_K: { bytes: 144, halves: [0, 2], read: readQ4K },
  Q6_K: { bytes: 210, halves: [208], read: readQ6K },
};

/**
 * @param count of weights
 * @param scaleOf F16 of a super-block, by number
 */
export function madeSuperBlocks(
  type: 'Q4_K' | 'Q6_K',
  count: number,
  next: () => number,
  scaleOf?: (index: number) => number,
): { bytes: Uint8Array; values: Float64Array; cut: Float64Array } {
  const { bytes: size, halves, read } = layouts[type];
  const values = new Float64Array(count);
  const cut = new Float64Array(count);
  const bytes = new Uint8Array((count / super_elements) * size);
  for (let at = 0; at < bytes.length; at++) bytes[at] = Math.floor((next() + 1) * 128);
  for (let index = 0; index < count / super_elements; index++) {
    const block = bytes.subarray(index * size, (index + 1) * size);
    for (const [place, at] of halves.entries()) {
      const half =
        scaleOf?.(2 * index + place) ??
        (next() < 0 ? 0x8000 : 0) | (0x1000 + Math.floor((next() + 1) * 0x800));
      block[at] = half & 255;
      block[at + 1] = half >> 8;
    }
    for (let element = 0; element < super_elements; element++) {
      const [scale, integer, minimum] = read(block, element);
      values[index * super_elements + element] = scale * integer - minimum;
      cut[index * super_elements + element] = cutOff(scale, integer, minimum);
    }
  }
  return { bytes, values, cut };
}
