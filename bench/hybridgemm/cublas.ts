/** NVIDIA's own product, of weights that lie on the device: what hybrid ones are held against. */
import koffi, { type LibraryHandle } from 'koffi';
import type { HybridDevice } from '../../native/cuda/hybrid-gemm.ts';
import { bind, type Pointer, type SignatureTable } from '../../native/signature.ts';

const names = ['libcublas.so.13', 'libcublas.so.12', 'libcublas.so.11', 'libcublas.so'];

/** See cublas_v2.h. */
const table = {
  cublasCreate_v2: ['i32', 'ptr'],
  cublasDestroy_v2: ['i32', 'ptr'],
  cublasSetStream_v2: ['i32', 'ptr', 'ptr'],
  cublasGemmEx: [
    ...(['i32', 'ptr', 'i32', 'i32', 'i32', 'i32', 'i32', 'ptr'] as const),
    ...(['ptr', 'i32', 'i32', 'ptr', 'i32', 'i32', 'ptr'] as const),
    ...(['ptr', 'i32', 'i32', 'i32', 'i32'] as const),
  ],
} as const satisfies SignatureTable;

const transposed = 1;
const plain = 0;
const cuda_r_32f = 0;
const cuda_r_16bf = 14;
const compute_32f = 68;
const default_algorithm = -1;

/** BF16 rows [m, k] and weights [n, k] on the device; sums in F32 [m, n]. Begun on the device's stream. */
export type ResidentProduct = (
  m: number,
  n: number,
  k: number,
  x: Pointer,
  weights: Pointer,
  y: Pointer,
) => void;

/** @returns undefined where the library is not on the loader's way */
export function openCublas(
  device: HybridDevice,
): { multiply: ResidentProduct; close: () => void } | undefined {
  const library = firstOf(names);
  if (!library) return undefined;
  const cublas = bind(library, table);
  const created = new BigUint64Array(1);
  check('cublasCreate', cublas.cublasCreate_v2(created));
  const handle = created[0]!;
  check('cublasSetStream', cublas.cublasSetStream_v2(handle, device.stream));
  const [one, zero] = [Float32Array.of(1), Float32Array.of(0)];
  return {
    // It thinks in columns: the transposed result is weights · transposed rows.
    multiply: (m, n, k, x, weights, y) => {
      const a = [one, weights, cuda_r_16bf, k] as const;
      const c = [zero, y, cuda_r_32f, n] as const;
      const ways = [compute_32f, default_algorithm] as const;
      const shape = [transposed, plain, n, m, k] as const;
      check('cublasGemmEx', cublas.cublasGemmEx(handle, ...shape, ...a, x, cuda_r_16bf, k, ...c, ...ways));
    },
    close: () => void cublas.cublasDestroy_v2(handle),
  };
}

function firstOf(candidates: readonly string[]): LibraryHandle | undefined {
  for (const name of candidates) {
    try {
      return koffi.load(name);
    } catch {
      // Another version may be there.
    }
  }
  return undefined;
}

function check(call: string, status: number): void {
  if (status !== 0) throw new Error(`${call} failed with status ${status}`);
}
