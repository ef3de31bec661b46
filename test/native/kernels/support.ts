/** Made-up weights in the layout of model files, what they are in double precision, and products by our kernels. */
import { type CpuKernels, type KernelSet, loadCpuKernels } from '../../../native/cpu-kernels.ts';
import { addressOf, GgmlType } from '../../../native/ggml.ts';
import { asBytes, bf16Of, cutOff, fromBf16, fromF16 } from './numbers.ts';
import { madeSuperBlocks } from './super-blocks.ts';

/** Tests need a build with a C compiler; where there is none, products cannot be tried. */
export function builtKernels(): CpuKernels {
  const kernels = loadCpuKernels();
  if (!kernels) throw new Error('native/kernels was not compiled: npm run build, with a C compiler');
  return kernels;
}

export const packedTypes = {
  BF16: GgmlType.BF16,
  F16: GgmlType.F16,
  Q4_0: GgmlType.Q4_0,
  Q8_0: GgmlType.Q8_0,
  Q4_K: GgmlType.Q4_K,
  Q6_K: GgmlType.Q6_K,
} as const;
export type PackedType = keyof typeof packedTypes;

const block_elements = 32;

/** The least row that a type can have and that is no shorter than `k`; odd lengths are for types without blocks. */
export function widthFor(type: PackedType, k: number): number {
  const block = type.endsWith('_K') ? 256 : isHalf(type) ? 1 : block_elements;
  return Math.ceil(k / block) * block;
}

export function isHalf(type: PackedType): type is 'BF16' | 'F16' {
  return type === 'BF16' || type === 'F16';
}
const scale_bytes = 2;

/** Whether a set multiplies bytes, activations too. */
export function isAsBytes({ name }: KernelSet, type: PackedType): boolean {
  return name !== 'AMX-BF16' && !isHalf(type);
}

/** A generator of numbers by seed (mulberry32), from -1 to 1. */
export function randomNumbers(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 31 - 1;
  };
}

/** Memory that begins at a multiple of 32 and of nothing more: ggml's allocator of graphs gives such addresses. */
function alignedBytes(count: number): Uint8Array {
  const memory = new Uint8Array(count + 96);
  const begin = Number((96n - (addressOf(memory) % 64n)) % 64n);
  return memory.subarray(begin, begin + count);
}

export interface Matrix {
  type: PackedType;
  n: number;
  k: number;
  /** As a model file has it. */
  bytes: Uint8Array;
  /** [n, k], exactly. */
  values: Float64Array;
  /** The same as the tile unit takes them. */
  cut: Float64Array;
}

/** @param scaleOf the scale of a block (as an F16) or a BF16 value, by number: what makes a matrix hostile */
export function madeMatrix(
  type: PackedType,
  n: number,
  k: number,
  next: () => number,
  scaleOf?: (index: number) => number,
): Matrix {
  if (type === 'Q4_K' || type === 'Q6_K')
    return { type, n, k, ...madeSuperBlocks(type, n * k, next, scaleOf) };
  const values = new Float64Array(n * k);
  const cut = isHalf(type) ? values : new Float64Array(n * k);
  if (isHalf(type)) {
    const halves = new Uint16Array(n * k);
    for (let at = 0; at < n * k; at++) {
      // An F16 between 2^-9 and 2.
      const random = next();
      const made = type === 'BF16' ? bf16Of(random) : 0x1800 + Math.floor(Math.abs(random) * 0x2800);
      halves[at] = scaleOf?.(at) ?? (random < 0 ? 0x8000 | made : made);
      values[at] = type === 'BF16' ? fromBf16(halves[at]!) : fromF16(halves[at]!);
    }
    return { type, n, k, bytes: new Uint8Array(halves.buffer), values, cut };
  }
  const block_bytes = scale_bytes + (type === 'Q4_0' ? 16 : 32);
  const bytes = new Uint8Array(((n * k) / block_elements) * block_bytes);
  for (let block = 0; block < (n * k) / block_elements; block++) {
    const at = block * block_bytes;
    // An F16 between 2^-9 and 2^-5, of either sign.
    const half = scaleOf?.(block) ?? (next() < 0 ? 0x8000 : 0) | (0x1800 + Math.floor((next() + 1) * 0x800));
    bytes[at] = half & 255;
    bytes[at + 1] = half >> 8;
    for (let byte = scale_bytes; byte < block_bytes; byte++)
      bytes[at + byte] = Math.floor((next() + 1) * 128);
    for (let element = 0; element < block_elements; element++) {
      const byte = bytes[at + scale_bytes + (type === 'Q4_0' ? element % 16 : element)]!;
      const integer = type === 'Q4_0' ? ((byte >> (element < 16 ? 0 : 4)) & 15) - 8 : (byte << 24) >> 24;
      values[block * block_elements + element] = fromF16(half) * integer;
      cut[block * block_elements + element] = cutOff(fromF16(half), integer);
    }
  }
  return { type, n, k, bytes, values, cut };
}

/** Weights as the kernels of one instruction set read them. */
export function pack(kernels: CpuKernels, set: KernelSet, { type, n, k, bytes }: Matrix): Uint8Array {
  const id = packedTypes[type];
  const packed = alignedBytes(kernels.hk_packed_bytes(id, n, k)).fill(0xff);
  kernels.hk_pack_weights(set.bit, id, n, k, bytes, packed);
  return packed;
}

/** Whether packing says that all weights are numbers. */
export function packsNumbers(kernels: CpuKernels, set: KernelSet, { type, n, k, bytes }: Matrix): boolean {
  const id = packedTypes[type];
  const packed = alignedBytes(kernels.hk_packed_bytes(id, n, k));
  return kernels.hk_pack_weights(set.bit, id, n, k, bytes, packed) === 1;
}

/** Floats from one row of a result to the next beyond its columns, which nobody may write to. */
export const margin = 3;
export const untouched = 12345.5;

/** @returns [m, n + margin] */
export function product(
  kernels: CpuKernels,
  set: KernelSet,
  matrix: Matrix,
  packed: Uint8Array,
  x: Float32Array,
  m: number,
  parts = 1,
  bits = setFor(kernels, set, matrix.type),
): Float32Array {
  const { type, n, k } = matrix;
  const blocks = Math.ceil(k / block_elements);
  const activations = alignedBytes(kernels.hk_activation_bytes(bits, m, k)).fill(0xff);
  for (let part = 0; part < parts; part++) {
    const [begin, end] = [Math.floor((blocks * part) / parts), Math.floor((blocks * (part + 1)) / parts)];
    kernels.hk_pack_activations(bits, m, k, x, k, activations, begin, end);
  }
  const y = new Float32Array(m * (n + margin)).fill(untouched);
  const strips = Math.ceil(n / 16);
  for (let part = 0; part < parts; part++) {
    const [begin, end] = [Math.floor((strips * part) / parts), Math.floor((strips * (part + 1)) / parts)];
    const id = packedTypes[type];
    const ran = kernels.hk_multiply(bits, id, n, k, m, packed, activations, y, n + margin, begin, end);
    if (ran !== 1) throw new Error(`${set.name} did not run`);
  }
  return y;
}

/** HK_ONE_ROW_APART. */
export const one_row_apart = 256;

/** What products of such weights are asked for with. */
export function setFor(kernels: CpuKernels, set: KernelSet, type: PackedType, fixed_order = true): number {
  return kernels.hk_set_for(set.bit, packedTypes[type], fixed_order ? 1 : 0);
}

/**
 * Largest error of a product with one row that is computed apart, as a share of the result's own size: x is rounded to
 * 16 bits in blocks, and no weight is rounded.
 */
export function errorApart({ n, k, values }: Matrix, x: Float32Array, y: Float32Array): number {
  let [error, size] = [0, 1e-30];
  for (let column = 0; column < n; column++) {
    let sum = 0;
    for (let at = 0; at < k; at++) sum += x[at]! * values[column * k + at]!;
    error = Math.max(error, Math.abs(y[column]! - sum));
    size = Math.max(size, Math.abs(sum));
  }
  return error / size;
}

/** Activations as the kernels round them: not at all where products are of F32. */
function roundedFor(set: KernelSet, type: PackedType, x: Float32Array): Float64Array {
  if (type === 'F16' || (type === 'BF16' && ['AVX2', 'AVX-512 VNNI'].includes(set.name)))
    return Float64Array.from(x);
  return isAsBytes(set, type) ? asBytes(x) : Float64Array.from(x, (value) => fromBf16(bf16Of(value)));
}

/**
 * Largest error of a product, as a share of the sum of its terms' sizes. Activations are rounded first, as the kernels
 * do, and quantized weights are as the tile unit takes them where it multiplies.
 */
export function errorOf(set: KernelSet, matrix: Matrix, x: Float32Array, m: number, y: Float32Array): number {
  const { n, k } = matrix;
  const rounded = roundedFor(set, matrix.type, x);
  const weights = set.name === 'AMX-BF16' ? matrix.cut : matrix.values;
  let worst = 0;
  for (let row = 0; row < m; row++)
    for (let column = 0; column < n; column++) {
      let sum = 0;
      let size = 1e-30;
      for (let at = 0; at < k; at++) {
        const term = rounded[row * k + at]! * weights[column * k + at]!;
        sum += term;
        size += Math.abs(term);
      }
      const error = Math.abs(y[row * (n + margin) + column]! - sum) / size;
      if (!(error <= worst)) worst = error;
    }
  return worst;
}
