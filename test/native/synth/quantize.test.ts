import koffi from 'koffi';
import { describe, expect, test } from 'vitest';
import { ggmlRow_bytes, ggmlTypeByName } from '../../../native/formats/ggml-types.ts';
import { findNativeLibraries } from '../../../native/libraries.ts';
import { fromHalf, toBfloat16, toHalf } from '../../../native/synth/half.ts';
import { rowEncoders, type SynthTensorType } from '../../../native/synth/quantize.ts';
import { RandomStream } from '../../../native/synth/random.ts';

const library = koffi.load(findNativeLibraries().ggml_base);
const quantizeChunk = library.func(
  'size_t ggml_quantize_chunk(int type, const float *src, _Out_ void *dst, int64_t start, int64_t rows, int64_t row, void *imatrix)',
);

/** Such weights as `model synth` makes, and a block of zeros. */
function weights(): Float32Array {
  const values = new Float32Array(256 * 16);
  new RandomStream(3, 5, 0).fillNormal(values, 0, 0.02);
  values.fill(0, 256, 512);
  return values;
}

/** With a constant block and outliers. */
function extremes(): Float32Array {
  const values = weights();
  values.fill(0.5, 512, 544);
  values[1000] = -3;
  values[1500] = 7;
  return values;
}

function ours(type: SynthTensorType, values: Float32Array): Uint8Array {
  const out = new Uint8Array(ggmlRow_bytes(ggmlTypeByName(type), values.length));
  rowEncoders[type](values, out, 0);
  return out;
}

function theirs(type: SynthTensorType, values: Float32Array): Uint8Array {
  const traits = ggmlTypeByName(type);
  const out = new Uint8Array(ggmlRow_bytes(traits, values.length));
  quantizeChunk(traits.id, values, out, 0, 1, values.length, null);
  return out;
}

describe('encoders against the ggml library', () => {
  test.each(['F32', 'F16', 'BF16', 'Q8_0', 'Q4_0'] as const)('%s: the same bytes', (type) => {
    const values = extremes();
    expect(Buffer.from(ours(type, values)).equals(Buffer.from(theirs(type, values)))).toBe(true);
  });

  test.each([
    ['Q4_K', 'dequantize_row_q4_K', 1.2],
    ['Q6_K', 'dequantize_row_q6_K', 1.2],
  ] as const)('%s: as ggml reads it, nearly as precise as ggml writes it', (type, reader, factor) => {
    const dequantize = library.func(`void ${reader}(const void *blocks, _Out_ float *values, int64_t count)`);
    const values = weights();
    const error = (bytes: Uint8Array): number => {
      const back = new Float32Array(values.length);
      dequantize(bytes, back, values.length);
      return Math.sqrt(
        back.reduce((sum, value, index) => sum + (value - values[index]!) ** 2, 0) / back.length,
      );
    };
    expect(error(ours(type, values))).toBeLessThan(factor * error(theirs(type, values)));
  });
});

test('every 16-bit float survives the way there and back', () => {
  for (let half = 0; half < 0x10000; half++) {
    const value = fromHalf(half);
    if (!Number.isNaN(value)) expect(toHalf(value)).toBe(half);
  }
  expect([toHalf(65520), toHalf(65519), toHalf(1 + 2 ** -11), toHalf(1 + 3 * 2 ** -11)]).toEqual([
    0x7c00, 0x7bff, 0x3c00, 0x3c02,
  ]);
  expect([toBfloat16(1), toBfloat16(1 + 2 ** -8), toBfloat16(1 + 3 * 2 ** -8)]).toEqual([
    0x3f80, 0x3f80, 0x3f82,
  ]);
});

describe('the generator', () => {
  test('gives what xoshiro128++ gives, and the same one value or many at a time', () => {
    const reference = referenceStream(7, 11, 13);
    const stream = new RandomStream(7, 11, 13);
    for (let index = 0; index < 1000; index++) expect(stream.next()).toBe(reference());
    const draws = new RandomStream(1, 2, 3);
    const filled = new Float32Array(64);
    new RandomStream(1, 2, 3).fillNormal(filled, 0, Math.sqrt(21845));
    for (const value of filled) {
      const draw = draws.next();
      const sum = (draw & 255) + ((draw >>> 8) & 255) + ((draw >>> 16) & 255) + (draw >>> 24);
      expect(value).toBeCloseTo(sum - 510, 3);
    }
  });

  test('has the mean, spread and independence of rows that it promises', () => {
    const rows = Array.from({ length: 64 }, (_, row) => {
      const values = new Float32Array(4096);
      new RandomStream(9, 4, row).fillNormal(values, 1, 2);
      return values;
    });
    const all = rows.flatMap((row) => [...row]);
    const mean = all.reduce((sum, value) => sum + value, 0) / all.length;
    const deviation = Math.sqrt(all.reduce((sum, value) => sum + (value - mean) ** 2, 0) / all.length);
    expect(mean).toBeCloseTo(1, 1);
    expect(deviation).toBeCloseTo(2, 1);
    for (let row = 1; row < rows.length; row++) {
      const product = rows[0]!.reduce((sum, value, index) => sum + (value - 1) * (rows[row]![index]! - 1), 0);
      // 4096 products of deviation 4: five deviations of their sum.
      expect(Math.abs(product)).toBeLessThan(5 * 4 * Math.sqrt(4096));
    }
  });
});

/** xoshiro128++ 1.0 as published, written down once more on big integers. */
function referenceStream(seed: number, key: number, index: number): () => number {
  const mask = 0xffffffffn;
  const rotate = (value: bigint, by: bigint): bigint => ((value << by) | (value >> (32n - by))) & mask;
  const state = new RandomStream(seed, key, index).state.map(BigInt);
  return () => {
    const [a, b, c, d] = state as [bigint, bigint, bigint, bigint];
    const result = (rotate((a + d) & mask, 7n) + a) & mask;
    const shifted = (b << 9n) & mask;
    const next2 = c ^ a;
    const next3 = d ^ b;
    state[1] = b ^ next2;
    state[0] = a ^ next3;
    state[2] = next2 ^ shifted;
    state[3] = rotate(next3, 11n);
    return Number(result);
  };
}
