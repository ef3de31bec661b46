/** Products by native/cuda, on an emulated device or a real one, and what they are in double precision. */
import type { HybridDevice, HybridGemm } from '../../../native/cuda/hybrid-gemm.ts';
import { addressOf } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { bf16Of, fromBf16 } from '../kernels/numbers.ts';
import { type Matrix, margin, packedTypes, untouched } from '../kernels/support.ts';

export interface Setting {
  alpha: number;
  tile_rows: number;
}

/** Where weights lie as the library has them. */
export interface PackedMatrix {
  matrix: Matrix;
  memory: Pointer;
}

export function packInto(library: HybridGemm, matrix: Matrix): PackedMatrix {
  const type = packedTypes[matrix.type];
  const memory = library.allocateHost(library.packedBytes(type, matrix.n, matrix.k)!);
  library.pack(type, matrix.n, matrix.k, matrix.bytes, memory);
  return { matrix, memory };
}

/**
 * @param x rows of k with `margin` more in each, which are NaN
 * @returns [m, n + margin]; nothing is written beyond n
 */
export function multiplyOn(
  device: HybridDevice,
  { matrix, memory }: PackedMatrix,
  x: Float32Array,
  m: number,
  { alpha, tile_rows }: Setting,
): Float32Array {
  const { n, k } = matrix;
  const type = packedTypes[matrix.type] as 8 | 30;
  const y = new Float32Array(m * (n + margin)).fill(untouched);
  const on_device = { x: device.allocate(x.byteLength), y: device.allocate(y.byteLength) };
  device.copy(on_device.x, x, x.byteLength);
  device.copy(on_device.y, y, y.byteLength);
  const strides = { x_stride: k + margin, y_stride: n + margin };
  device.multiply({ type, m, n, k, packed: memory, ...on_device, ...strides, alpha, tile_rows });
  device.wait();
  device.copy(addressOf(y), on_device.y, y.byteLength);
  device.free(on_device.x);
  device.free(on_device.y);
  return y;
}

export function madeRows(m: number, k: number, next: () => number): Float32Array {
  const x = new Float32Array(m * (k + margin)).fill(Number.NaN);
  for (let row = 0; row < m; row++) for (let at = 0; at < k; at++) x[row * (k + margin) + at] = next();
  return x;
}

/** Largest error, as a share of the sum of its terms' sizes; x is rounded to BF16, as kernels do, and no weight is. */
export function errorOf({ n, k, values }: Matrix, x: Float32Array, m: number, y: Float32Array): number {
  const rounded = Float64Array.from(x, (value) => fromBf16(bf16Of(value)));
  let worst = 0;
  for (let row = 0; row < m; row++) {
    for (let column = 0; column < n; column++) {
      let [sum, size] = [0, 1e-30];
      for (let at = 0; at < k; at++) {
        const term = rounded[row * (k + margin) + at]! * values[column * k + at]!;
        sum += term;
        size += Math.abs(term);
      }
      const error = Math.abs(y[row * (n + margin) + column]! - sum) / size;
      if (!(error <= worst)) worst = error;
    }
    for (let beyond = 0; beyond < margin; beyond++)
      if (y[row * (n + margin) + n + beyond] !== untouched) return Number.POSITIVE_INFINITY;
  }
  return worst;
}
