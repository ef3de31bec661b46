import { statSync } from 'node:fs';
import koffi from 'koffi';
import { type CpuKernels, type KernelSet, loadCpuKernels } from './cpu-kernels.ts';
import { type Ggml, GgmlType, tensorLayout } from './ggml.ts';
import type { Pointer } from './signature.ts';

/** GGML_N_TASKS_MAX: every thread of the pool takes its share. */
const all_threads = -1;

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
 * @param fixed_order sums of ours go in the same order for any m: slower for one row and quantized weights on AMX
 * @param packed our products: those of another instruction set than the fastest, where that is measured
 * @returns F32, ne [n, m]
 */
export function multiply(
  ggml: Ggml,
  context: Pointer,
  weights: Pointer,
  x: Pointer | null,
  fixed_order = false,
  packed = packedProducts(ggml),
): Pointer {
  return packed?.holds(weights)
    ? packed.multiply(context, weights, x!, fixed_order)
    : ggml.ggml_mul_mat(context, weights, x)!;
}

/**
 * Rows of x times the matrices of the experts that were chosen for each row, by the kernels of the layouts in which the
 * matrices lie.
 *
 * @param matrices that read the same x: each ne [k, n, experts]
 * @param x F32, ne [k, 1 or used, m]
 * @param ids I32, ne [used, m]: experts
 * @param fixed_order, packed as above
 * @returns for each of `matrices` F32, ne [n, used, m]
 */
export function multiplyExperts(
  ggml: Ggml,
  context: Pointer,
  matrices: readonly Pointer[],
  x: Pointer,
  ids: Pointer,
  fixed_order = false,
  packed = packedProducts(ggml),
): Pointer[] {
  const products = packed && new ExpertProducts(packed, context, x, ids, fixed_order);
  return matrices.map((weights) =>
    packed?.holds(weights) ? products!.multiply(weights) : ggml.ggml_mul_mat_id(context, weights, x, ids)!,
  );
}

/**
 * Rows of x times a small matrix of F32 in plain memory of the CPU, with sums in one order for any m.
 *
 * @param weights F32, ne [k, n], as model files have it
 * @param x F32, ne [k, m]
 * @returns F32, ne [n, m]; undefined where there are no products of ours
 */
export function multiplyExactly(
  ggml: Ggml,
  context: Pointer,
  weights: Pointer,
  x: Pointer,
): Pointer | undefined {
  return packedProducts(ggml)?.multiplyExactly(context, weights, x);
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
   * @param fixed_order see `multiply` above
   * @returns F32, ne [n, m]; the last of two operations
   */
  multiply(context: Pointer, weights: Pointer, x: Pointer, fixed_order: boolean): Pointer {
    const [k, n] = [extent(weights, 0), extent(weights, 1)];
    const m = extent(x, 1);
    const { packOperator, multiplyOperator } = this.#kernels;
    const set = this.#setFor(weights, fixed_order);
    const bytes = Number(this.#kernels.hk_activation_bytes(set, m, k));
    const packed = this.#custom(context, GgmlType.I8, [bytes, 1], [x], packOperator, set);
    return this.#custom(context, GgmlType.F32, [n, m], [weights, packed], multiplyOperator, set);
  }

  /** See `multiplyExactly` above. */
  multiplyExactly(context: Pointer, weights: Pointer, x: Pointer): Pointer {
    const shape = [extent(weights, 1), extent(x, 1)] as const;
    return this.#custom(context, GgmlType.F32, shape, [weights, x], this.#kernels.exactOperator, 0);
  }

  /**
   * @param ids I32, ne [used, m]
   * @returns I32: pairs of a row and an expert, by expert
   */
  groupExperts(context: Pointer, ids: Pointer, experts: number): Pointer {
    const words = experts + 1 + extent(ids, 0) * extent(ids, 1);
    const { groupOperator } = this.#kernels;
    return this.#custom(context, GgmlType.I32, [words, 1], [ids], groupOperator, 0);
  }

  /**
   * @param like weights that are going to be multiplied: the same packed rows serve all with the same `packedFor`
   * @param x F32, ne [k, 1 or used, m]
   * @param pairs in all
   */
  packExperts(
    context: Pointer,
    like: Pointer,
    x: Pointer,
    groups: Pointer,
    pairs: number,
    fixed_order: boolean,
  ): Pointer {
    const { packExpertsOperator, hk_expert_activation_bytes } = this.#kernels;
    const set = this.#setFor(like, fixed_order);
    const bytes = Number(hk_expert_activation_bytes(set, pairs, extent(like, 2), extent(like, 0)));
    return this.#custom(context, GgmlType.I8, [bytes, 1], [x, groups, like], packExpertsOperator, set);
  }

  /** What rows are packed for: kinds of weights that are told apart. */
  packedFor(weights: Pointer, fixed_order: boolean): number {
    return this.#setFor(weights, fixed_order);
  }

  /** @returns F32, ne [n, used, m] */
  multiplyExperts(
    context: Pointer,
    weights: Pointer,
    packed: Pointer,
    groups: Pointer,
    [used, m]: readonly [number, number],
    fixed_order: boolean,
  ): Pointer {
    const { multiplyExpertsOperator } = this.#kernels;
    const shape = [extent(weights, 1), used, m] as const;
    const set = this.#setFor(weights, fixed_order);
    return this.#custom(
      context,
      GgmlType.F32,
      shape,
      [weights, packed, groups],
      multiplyExpertsOperator,
      set,
    );
  }

  /** Whether sums with such weights, which lie in this layout, go in one order though it was not asked for. */
  isFixedUnasked(weights: Pointer): boolean {
    return this.#setFor(weights, false) === this.#setFor(weights, true);
  }

  /** The instruction set, and what the type of the weights asks for beside it. */
  #setFor(weights: Pointer, fixed_order: boolean): number {
    const type = koffi.decode(weights, 0, 'int32_t') as number;
    return this.#kernels.hk_set_for(this.set.bit, type, fixed_order ? 1 : 0);
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
    [ne0, ne1, ne2 = 1]: readonly [number, number, number?],
    sources: readonly Pointer[],
    operator: Pointer,
    set: number,
  ): Pointer {
    const list = BigUint64Array.from(sources);
    const args = [list, sources.length, operator, all_threads, BigInt(set)] as const;
    return this.#ggml.ggml_custom_4d(context, type, ne0, ne1, ne2, 1, ...args)!;
  }
}

/** Products of several matrices with the same rows and choices of experts: rows are packed once for all of them. */
class ExpertProducts {
  readonly #packed: PackedProducts;
  readonly #context: Pointer;
  readonly #x: Pointer;
  readonly #ids: Pointer;
  readonly #fixed_order: boolean;
  readonly #rows = new Map<number, Pointer>();
  #groups: Pointer | undefined;

  constructor(packed: PackedProducts, context: Pointer, x: Pointer, ids: Pointer, fixed_order: boolean) {
    this.#packed = packed;
    this.#context = context;
    this.#x = x;
    this.#ids = ids;
    this.#fixed_order = fixed_order;
  }

  /** @param weights ne [k, n, experts], in our layout */
  multiply(weights: Pointer): Pointer {
    const [used, m] = [extent(this.#ids, 0), extent(this.#ids, 1)];
    this.#groups ??= this.#packed.groupExperts(this.#context, this.#ids, extent(weights, 2));
    const kind = this.#packed.packedFor(weights, this.#fixed_order);
    let rows = this.#rows.get(kind);
    if (rows === undefined) {
      const pairs = used * m;
      rows = this.#packed.packExperts(
        this.#context,
        weights,
        this.#x,
        this.#groups,
        pairs,
        this.#fixed_order,
      );
      this.#rows.set(kind, rows);
    }
    return this.#packed.multiplyExperts(
      this.#context,
      weights,
      rows,
      this.#groups,
      [used, m],
      this.#fixed_order,
    );
  }
}

function extent(tensor: Pointer, index: number): number {
  return Number(koffi.decode(tensor, tensorLayout.ne + 8 * index, 'int64_t'));
}
