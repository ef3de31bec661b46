/** Our matrix products against double precision, on every instruction set of this machine, and their fixed order. */
import { describe, expect, it } from 'vitest';
import {
  builtKernels,
  errorApart,
  errorOf,
  isAsBytes,
  isHalf,
  type Matrix,
  madeMatrix,
  margin,
  one_row_apart,
  type PackedType,
  pack,
  packedTypes,
  packsNumbers,
  product,
  randomNumbers,
  setFor,
  untouched,
  widthFor,
} from './support.ts';

const kernels = builtKernels();
const types = Object.keys(packedTypes) as PackedType[];
const quantized = types.filter((type) => !isHalf(type));
/** F32 sums of up to 4,096 terms; a term that is missing or in the wrong place makes a thousand times as much. */
const error_max = 4e-7;

console.log(
  `compiled: ${kernels.compiled.map(({ name }) => name).join(', ')}; ran here: ${kernels.sets.map(({ name }) => name).join(', ')}`,
);

function activations(m: number, k: number, next: () => number): Float32Array {
  return Float32Array.from({ length: m * k }, next);
}

/** n, k, m: one row, strips and blocks that are cut off, every width of tile, more rows than pass at once. */
const shapes: [number, number, number][] = [
  [1, 32, 1],
  [16, 64, 2],
  [17, 96, 3],
  [48, 2112, 16],
  [50, 1056, 33],
  [33, 544, 7],
  [32, 4128, 5],
  [40, 2080, 18],
  [63, 96, 530],
  [33, 2336, 32],
  [40, 2336, 150],
];

describe.each(kernels.sets)('$name', (set) => {
  it.each(types)('%s is right on every shape, and writes nothing else', (type) => {
    for (const [n, even, m] of shapes) {
      const k = isHalf(type) && n > 1 ? even - n : widthFor(type, even);
      const next = randomNumbers(n * 31 + m);
      const matrix = madeMatrix(type, n, k, next);
      const x = activations(m, k, next);
      const y = product(kernels, set, matrix, pack(kernels, set, matrix), x, m);
      expect(errorOf(set, matrix, x, m, y), `${n} × ${k} by ${m}`).toBeLessThan(error_max);
      for (let row = 0; row < m; row++)
        for (let column = n; column < n + margin; column++)
          expect(y[row * (n + margin) + column]).toBe(untouched);
    }
  });

  it.each(types)('%s gives a row the same bits alone, in every batch, and in parts', (type) => {
    const [n, k, m] = [80, widthFor(type, 2144), 70];
    const next = randomNumbers(5);
    const matrix = madeMatrix(type, n, k, next);
    const packed = pack(kernels, set, matrix);
    const x = activations(m, k, next);
    const row = (y: Float32Array, index: number): Buffer =>
      Buffer.from(y.buffer, y.byteOffset + index * (n + margin) * 4, n * 4);
    const alone = Array.from({ length: m }, (_, index) =>
      row(product(kernels, set, matrix, packed, x.subarray(index * k, (index + 1) * k), 1), 0),
    );
    for (const [rows, parts] of [
      [2, 1],
      [3, 2],
      [7, 1],
      [16, 3],
      [17, 1],
      [70, 1],
      [70, 5],
    ] as const) {
      const y = product(kernels, set, matrix, packed, x, rows, parts);
      for (let index = 0; index < rows; index++)
        expect(row(y, index).equals(alone[index]!), `row ${index} of ${rows} in ${parts} parts`).toBe(true);
    }
  });

  it.each(types)('%s gives a row of many the same bits alone, where x is more than a cache holds', (type) => {
    const [n, k, m] = [216, 4096, 330];
    const next = randomNumbers(13);
    const matrix = madeMatrix(type, n, k, next);
    const packed = pack(kernels, set, matrix);
    const x = activations(m, k, next);
    const y = product(kernels, set, matrix, packed, x, m);
    for (const row of [0, 15, 16, 207, 208, 329]) {
      const alone = product(kernels, set, matrix, packed, x.subarray(row * k, (row + 1) * k), 1);
      const own = y.subarray(row * (n + margin), row * (n + margin) + n);
      expect(
        Buffer.from(own.slice().buffer).equals(Buffer.from(alone.slice(0, n).buffer)),
        `row ${row}`,
      ).toBe(true);
    }
  });

  it.each(quantized)(
    '%s is right for one row as it is computed where order is free, whatever is in it',
    (type) => {
      for (const [n, even] of [
        [1, 32],
        [17, 96],
        [80, 2144],
        [33, 8192],
      ] as const) {
        const k = widthFor(type, even);
        const next = randomNumbers(n + k);
        const matrix = madeMatrix(type, n, k, next);
        const packed = pack(kernels, set, matrix);
        const x = activations(1, k, next);
        const free = setFor(kernels, set, type, false);
        // Apart, a row is rounded to 16 bits in blocks; as bytes, as in a batch.
        expect((free & one_row_apart) !== 0).toBe(!isAsBytes(set, type));
        const error = (y: Float32Array): number =>
          isAsBytes(set, type) ? errorOf(set, matrix, x, 1, y) / error_max : errorApart(matrix, x, y) / 1e-4;
        const y = product(kernels, set, matrix, packed, x, 1, 1, free);
        expect(error(y), `${n} × ${k}`).toBeLessThan(1);
        expect([...y.subarray(n)]).toEqual(Array(margin).fill(untouched));
        expect(product(kernels, set, matrix, packed, x, 1, 3, free)).toEqual(y);
        // A block of zeros or of almost nothing, and one that is no number.
        x.fill(0, 0, 16);
        x.fill(1e-40, 16, 32);
        expect(error(product(kernels, set, matrix, packed, x, 1, 1, free))).toBeLessThan(1);
        x[k - 1] = Number.NaN;
        const none = product(kernels, set, matrix, packed, x, 1, 1, free);
        expect([...none.subarray(0, n)].every(Number.isNaN)).toBe(true);
      }
    },
  );

  it('takes zeros, the smallest and the largest numbers', () => {
    const [n, m] = [16, 3];
    const next = randomNumbers(9);
    // BF16: 0, -0, a denormal, 2^-126, 2^100. F16 scales: 0, -0, a denormal, 2^-14, the largest.
    const bf16 = [0, 0x8000, 1, 0x0080, 0x7180];
    const f16 = [0, 0x8000, 1, 0x0400, 0x7bff];
    for (const type of types) {
      const k = widthFor(type, 64);
      const hostile = (type === 'BF16' ? bf16 : f16) as readonly number[];
      const matrix = madeMatrix(type, n, k, next, (index) => hostile[(index * 7) % hostile.length]!);
      const x = activations(m, k, next);
      x[3] = 1e-40;
      x[4] = 0;
      x[5] = -0;
      const y = product(kernels, set, matrix, pack(kernels, set, matrix), x, m);
      expect(errorOf(set, matrix, x, m, y), type).toBeLessThan(error_max);
    }
  });

  it('tells a matrix whose rows are in the wrong place', () => {
    for (const type of types) {
      const next = randomNumbers(2);
      const k = widthFor(type, 64);
      const matrix = madeMatrix(type, 32, k, next);
      const swapped: Matrix = { ...matrix, values: matrix.values.slice(), cut: matrix.cut.slice() };
      swapped.values.set(matrix.values.subarray(k, 2 * k), 0);
      swapped.cut.set(matrix.cut.subarray(k, 2 * k), 0);
      const x = activations(2, k, next);
      const y = product(kernels, set, matrix, pack(kernels, set, matrix), x, 2);
      expect(errorOf(set, swapped, x, 2, y)).toBeGreaterThan(1000 * error_max);
    }
  });
});

it.each(quantized)('%s has the same bits on every instruction set but AMX', (type) => {
  const sets = kernels.sets.filter((set) => isAsBytes(set, type));
  const [n, k, m] = [80, widthFor(type, 2144), 19];
  const next = randomNumbers(11);
  const matrix = madeMatrix(type, n, k, next);
  const x = activations(m, k, next);
  const [first, ...others] = sets.map((set) =>
    product(kernels, set, matrix, pack(kernels, set, matrix), x, m),
  );
  for (const other of others) expect(other).toEqual(first);
});

it('quantized weights of the tile unit are within 0.7 units of BF16, and right on average', () => {
  const { values, cut } = madeMatrix('Q8_0', 64, 4096, randomNumbers(3));
  let worst = 0;
  let [sum, size] = [0, 0];
  for (const [index, value] of values.entries()) {
    if (value === 0) continue;
    const unit = 2 ** (Math.floor(Math.log2(Math.abs(value))) - 7);
    worst = Math.max(worst, Math.abs(cut[index]! - value) / unit);
    sum += Math.abs(cut[index]!) - Math.abs(value);
    size += Math.abs(value);
  }
  expect(worst).toBeLessThan(0.71);
  expect(Math.abs(sum / size)).toBeLessThan(2e-4);
});

it.each(types)('%s with a weight that is no number is told when it is packed', (type) => {
  // All bits of the exponent, as F16 and as BF16: infinite, and NaN.
  for (const bad of type === 'BF16' ? [0x7f80, 0xff81] : [0x7c00, 0xfe00])
    for (const place of [0, 2, 38]) {
      const next = randomNumbers(place);
      const k = widthFor(type, 64);
      const hostile = madeMatrix(type, 20, k, next, (index) => (index === place ? bad : 0x2000));
      const same = madeMatrix(type, 20, k, randomNumbers(place), () => 0x2000);
      for (const set of kernels.sets) {
        expect(packsNumbers(kernels, set, same), set.name).toBe(true);
        expect(packsNumbers(kernels, set, hostile), `${set.name}, ${bad} at ${place}`).toBe(false);
      }
    }
});

it('an instruction set that is not there computes nothing', () => {
  const matrix = madeMatrix('Q8_0', 16, 32, randomNumbers(1));
  const nowhere = { name: 'AVX2', bit: 64 } as never;
  expect(() => product(kernels, nowhere, matrix, new Uint8Array(1024), new Float32Array(32), 1)).toThrow(
    'did not run',
  );
});

it('packs what it has kernels for, strip by strip', () => {
  const { Q4_0, Q8_0, BF16 } = packedTypes;
  const canPack = (type: number, k: number) => kernels.hk_can_pack(type, k) === 1;
  expect([
    canPack(Q4_0, 64),
    canPack(Q4_0, 48),
    canPack(BF16, 7),
    canPack(Q8_0, 0),
    canPack(13, 256),
    canPack(packedTypes.F16, 9),
    canPack(packedTypes.Q6_K, 512),
    canPack(packedTypes.Q4_K, 128),
  ]).toEqual([true, false, true, false, false, true, true, false]);
  // Whole strips take the bytes of the file.
  expect(Number(kernels.hk_packed_bytes(Q4_0, 32, 64))).toBe(32 * 2 * 18);
  expect(Number(kernels.hk_packed_bytes(Q8_0, 17, 32))).toBe(32 * 34);
  expect(Number(kernels.hk_packed_bytes(packedTypes.Q6_K, 16, 512))).toBe(32 * 210);
  // Scales and minima have bytes of their own: 4 for every 144.
  expect(Number(kernels.hk_packed_bytes(packedTypes.Q4_K, 16, 512))).toBe(32 * 148);
});

it('has the set first whose products of BF16 are quicker, and says the same whenever it measures', () => {
  const verdicts = new Set(Array.from({ length: 20 }, () => kernels.hk_is_bf16_slow()));
  expect(verdicts.size).toBe(1);
  const names = kernels.sets.map(({ name }) => name);
  const narrow = names.indexOf('AVX-512 BF16');
  if (narrow >= 0) expect(narrow > names.indexOf('AVX-512 VNNI')).toBe(verdicts.has(1));
  else expect([...verdicts]).toEqual([0]);
  expect(names.includes('AMX-BF16') ? names[0] : names.at(-1)).toBe(
    names.includes('AMX-BF16') ? 'AMX-BF16' : 'AVX2',
  );
});
