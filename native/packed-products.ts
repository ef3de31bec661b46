import { statSync } from 'node:fs';
import koffi from 'koffi';
import { type CpuKernels, type KernelSet, loadCpuKernels } from './cpu-kernels.ts';
import { type Ggml, GgmlType, tensorLayout } from './ggml.ts';
import type { Pointer } from './signature.ts';

/** GGML_N_TASKS_MAX: every thread of the pool takes its share. */
const all_threads = -1;
/** HK_ONE_ROW_APART. */
const one_row_apart = 256;

const opened = new WeakMap<Ggml, { products: PackedProducts | undefined }>();

/** Our products beside a loaded library; undefined where they were not built, or this CPU runs none of them. */
export function packedProducts(ggml: Ggml): PackedProducts | undefined {
  let known = opened.get(ggml);
  if (!known) {
    const kernels = loadCpuKernels();
    known = { products: kernels && PackedProducts.open(ggml, kernels) };
    opened.set(ggml, known);
  }
  return known.products;
}

/** Buffer types of this CPU in which weights lie otherwise than in files: ours, then those of ggml. */
export function specialBufferTypes(ggml: Ggml): readonly Pointer[] {
  const ours = packedProducts(ggml)?.bufferType;
  return ours === undefined ? ggml.cpuExtraBufferTypes : [ours, ...ggml.cpuExtraBufferTypes];
}

/**
 * Rows of x times a matrix of weights, by the kernel of the layout in which the weights lie: ours, or one of ggml's.
 *
 * @param weights ne [k, n]
 * @param x F32, ne [k, m]
 * @param fixed_order sums of ours go in the same order for any m: slower for one row and quantized weights
 * @returns F32, ne [n, m]
 */
export function multiply(
  ggml: Ggml,
  context: Pointer,
  weights: Pointer,
  x: Pointer | null,
  fixed_order = false,
): Pointer {
  const packed = packedProducts(ggml);
  return packed?.holds(weights)
    ? packed.multiply(context, weights, x!, fixed_order)
    : ggml.ggml_mul_mat(context, weights, x)!;
}

/**
 * Some rows of a matrix of weights, wherever it lies.
 *
 * @param weights ne [k, n]
 * @param ids I32, ne [m]
 * @returns F32, ne [k, m]
 */
export function takeRows(ggml: Ggml, context: Pointer, weights: Pointer, ids: Pointer): Pointer {
  const packed = packedProducts(ggml);
  return packed?.holds(weights)
    ? packed.takeRows(context, weights, ids)
    : ggml.ggml_get_rows(context, weights, ids)!;
}

/**
 * Weights that engines multiply by these products. The library can pack more: F16 loses three bits there, and for one
 * row Q4_K and Q6_K are slower than ggml's.
 */
const takenTypes: ReadonlySet<number> = new Set([GgmlType.BF16, GgmlType.Q4_0, GgmlType.Q8_0]);

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

  /** What a proof or a measurement of these products depends on: the library's file and the instruction set. */
  get identity(): string {
    const { size, mtimeMs } = statSync(this.#kernels.path);
    return `${this.#kernels.path}:${size}:${mtimeMs}:${this.set.name}`;
  }

  /**
   * @param type of ggml
   * @param width elements of a row
   */
  canMultiply(type: number, width: number): boolean {
    return takenTypes.has(type) && this.#kernels.hk_can_pack(type, width) === 1;
  }

  /** Whether a tensor lies in this layout. */
  holds(tensor: Pointer): boolean {
    const buffer = koffi.decode(tensor, tensorLayout.buffer, 'void *') as Pointer | null;
    return buffer !== null && this.#ggml.ggml_backend_buffer_get_type(buffer) === this.bufferType;
  }

  /**
   * @param weights that lie in this layout: ne [k, n]
   * @param x F32, ne [k, m]; its rows may be apart
   * @param fixed_order see `multiply` above
   * @returns F32, ne [n, m]; the last of two operations
   */
  multiply(context: Pointer, weights: Pointer, x: Pointer, fixed_order: boolean): Pointer {
    const [k, n] = [extent(weights, 0), extent(weights, 1)];
    const m = extent(x, 1);
    const bytes = Number(this.#kernels.hk_activation_bytes(m, k));
    const { packOperator, multiplyOperator } = this.#kernels;
    const apart = !fixed_order && Number(koffi.decode(weights, 0, 'int32_t')) !== GgmlType.BF16;
    const set = this.set.bit | (apart ? one_row_apart : 0);
    const packed = this.#custom(context, GgmlType.I8, [bytes, 1], [x], packOperator, set);
    return this.#custom(context, GgmlType.F32, [n, m], [weights, packed], multiplyOperator, set);
  }

  /** See `takeRows` above. */
  takeRows(context: Pointer, weights: Pointer, ids: Pointer): Pointer {
    const shape = [extent(weights, 0), extent(ids, 0)] as const;
    const { rowsOperator } = this.#kernels;
    return this.#custom(context, GgmlType.F32, shape, [weights, ids], rowsOperator, this.set.bit);
  }

  #custom(
    context: Pointer,
    type: number,
    [ne0, ne1]: readonly [number, number],
    sources: readonly Pointer[],
    operator: Pointer,
    set: number,
  ): Pointer {
    const list = BigUint64Array.from(sources);
    const args = [list, sources.length, operator, all_threads, BigInt(set)] as const;
    return this.#ggml.ggml_custom_4d(context, type, ne0, ne1, 1, 1, ...args)!;
  }
}

function extent(tensor: Pointer, index: number): number {
  return Number(koffi.decode(tensor, tensorLayout.ne + 8 * index, 'int64_t'));
}
