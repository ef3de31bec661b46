/** Weights on their way into a special layout, where each of them is read anyway: NaN and infinite ones are told. */
import { loadCpuKernels } from '../../native/cpu-kernels.ts';
import type { Ggml } from '../../native/ggml.ts';
import { packedProducts } from '../../native/packed-products.ts';
import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

/** Whole rows as model files have them. */
export interface WeightRows {
  /** Of ggml. */
  type: number;
  rows: number;
  row_elements: number;
  bytes: number;
}

/**
 * Gives rows to a tensor, in whose layout they then lie.
 * @param tensor of as many rows, in a layout of ggml or in ours
 * @returns whether all are numbers, as far as anybody can say: without our library, nobody looks
 */
export function writeWeights(
  ggml: Ggml,
  tensor: Pointer,
  source: Pointer,
  { type, rows, row_elements, bytes }: WeightRows,
): boolean {
  const kernels = loadCpuKernels();
  const tells = packedProducts(ggml)?.holds(tensor) === true;
  // What this thread wrote before, such as the matrices of a proof, is nobody's model.
  if (tells) kernels!.hk_take_refused();
  const finite = !kernels || tells || kernels.hk_are_finite(type, rows, row_elements, source) === 1;
  ggml.ggml_backend_tensor_set(tensor, source, 0, bytes);
  return tells ? kernels!.hk_take_refused() === null : finite;
}

/** What is said of a file with such weights; plain data, which a loading thread can send. */
export function refusedWeights(path: string, name: string): { what: string; because: string } {
  return {
    what: `${path} has weights that are no numbers`,
    because: `in the tensor ${name} at least one is NaN or infinite, and every answer would be`,
  };
}

export function refusedWeightsError(path: string, name: string): HpcserveError {
  return new HpcserveError('E_MODEL_WEIGHTS', refusedWeights(path, name));
}
