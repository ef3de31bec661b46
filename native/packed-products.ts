import koffi from 'koffi';
import type { CpuKernels, KernelSet } from './cpu-kernels.ts';
import { type Ggml, GgmlType, tensorLayout } from './ggml.ts';
import type { Pointer } from './signature.ts';

/** GGML_N_TASKS_MAX: every thread of the pool takes its share. */
const all_threads = -1;

type GraphFunctions = Pick<
  Ggml,
  'ggml_backend_cpu_buffer_type' | 'ggml_backend_buffer_get_type' | 'ggml_custom_4d'
>;

/**
 * Our products in graphs of ggml: a layout for weights, which is a buffer type of ggml as its own special ones are, and
 * the operators that multiply by what lies in it. No kernel of ggml knows this layout.
 */
export class PackedProducts {
  /** The instruction set that multiplies. */
  readonly set: KernelSet;
  readonly bufferType: Pointer;
  readonly #kernels: CpuKernels;
  readonly #ggml: GraphFunctions;

  private constructor(ggml: GraphFunctions, kernels: CpuKernels, set: KernelSet, bufferType: Pointer) {
    this.#ggml = ggml;
    this.#kernels = kernels;
    this.set = set;
    this.bufferType = bufferType;
  }

  /** @returns undefined where this CPU runs none of the products, or not the one that is asked for */
  static open(
    ggml: GraphFunctions,
    kernels: CpuKernels,
    set: KernelSet | undefined = kernels.sets[0],
  ): PackedProducts | undefined {
    const layout = set && kernels.hk_layout(set.bit, ggml.ggml_backend_cpu_buffer_type());
    return layout ? new PackedProducts(ggml, kernels, set, layout) : undefined;
  }

  /**
   * @param type of ggml
   * @param width elements of a row
   */
  canMultiply(type: number, width: number): boolean {
    return this.#kernels.hk_can_pack(type, width) === 1;
  }

  /** Whether a tensor lies in this layout. */
  holds(tensor: Pointer): boolean {
    const buffer = koffi.decode(tensor, tensorLayout.buffer, 'void *') as Pointer | null;
    return buffer !== null && this.#ggml.ggml_backend_buffer_get_type(buffer) === this.bufferType;
  }

  /**
   * @param weights that lie in this layout: ne [k, n]
   * @param x F32, ne [k, m]; its rows may be apart
   * @returns F32, ne [n, m]; the last of two operations
   */
  multiply(context: Pointer, weights: Pointer, x: Pointer): Pointer {
    const [k, n] = [extent(weights, 0), extent(weights, 1)];
    const m = extent(x, 1);
    const bytes = Number(this.#kernels.hk_activation_bytes(m, k));
    const { packOperator, multiplyOperator } = this.#kernels;
    const packed = this.#custom(context, GgmlType.I8, [bytes, 1], [x], packOperator);
    return this.#custom(context, GgmlType.F32, [n, m], [weights, packed], multiplyOperator);
  }

  #custom(
    context: Pointer,
    type: number,
    [ne0, ne1]: readonly [number, number],
    sources: readonly Pointer[],
    operator: Pointer,
  ): Pointer {
    const list = BigUint64Array.from(sources);
    const set = BigInt(this.set.bit);
    const args = [list, sources.length, operator, all_threads, set] as const;
    return this.#ggml.ggml_custom_4d(context, type, ne0, ne1, 1, 1, ...args)!;
  }
}

function extent(tensor: Pointer, index: number): number {
  return Number(koffi.decode(tensor, tensorLayout.ne + 8 * index, 'int64_t'));
}
