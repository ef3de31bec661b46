import { statSync } from 'node:fs';
import type { CpuKernels, KernelSet } from './cpu-kernels.ts';
import { type Ggml, GgmlType } from './ggml.ts';
import type { Pointer } from './signature.ts';

/** GGML_N_TASKS_MAX: every thread of the pool takes its share. */
const all_threads = -1;

/** Consecutive rows of one sequence in a batch. */
export interface AttentionSegment {
  rows: number;
  /** Position of the first row in its sequence. */
  position: number;
  /** KV blocks of the sequence in order, enough for position + rows. */
  blocks: ArrayLike<number>;
}

export interface AttentionHeads {
  /** ggml type of keys and values. */
  kv_type: number;
  n_head: number;
  n_head_kv: number;
  head_dim: number;
}

/** Tokens of a KV block: HK_KV_BLOCK. */
const block_tokens = 16;
/** Words of `struct plan` and `struct segment` in native/kernels/attention-operator.c. */
const header_words = 4;
const segment_words = 6;

/**
 * Our attention over block tables in graphs of ggml: one operator for all rows of a batch, which reads keys and values
 * where they lie. What it computes stands in a plan, an input of the graph, so that a graph serves any sequences.
 */
export class PagedAttention {
  /** The instruction set that computes. */
  readonly set: KernelSet;
  readonly #kernels: CpuKernels;
  readonly #ggml: Pick<Ggml, 'ggml_custom_4d' | 'ggml_view_2d'>;
  readonly #heads: AttentionHeads;
  readonly #part_tokens: number;

  private constructor(ggml: Ggml, kernels: CpuKernels, set: KernelSet, heads: AttentionHeads) {
    this.#ggml = ggml;
    this.#kernels = kernels;
    this.set = set;
    this.#heads = heads;
    this.#part_tokens = kernels.hk_attention_part_tokens();
  }

  /** @returns undefined where this CPU has none of the instruction sets, or these heads are not ours */
  static open(
    ggml: Ggml,
    kernels: CpuKernels,
    heads: AttentionHeads,
    set: KernelSet | undefined = kernels.sets[0],
  ): PagedAttention | undefined {
    const { kv_type, n_head, n_head_kv, head_dim } = heads;
    if (!set || kernels.hk_can_attend(set.bit, kv_type, n_head, n_head_kv, head_dim) !== 1) return undefined;
    return new PagedAttention(ggml, kernels, set, heads);
  }

  /** What a proof or a measurement of it depends on: the library's file and the instruction set. */
  get identity(): string {
    const { size, mtimeMs } = statSync(this.#kernels.path);
    return `${this.#kernels.path}:${size}:${mtimeMs}:${this.set.name}`;
  }

  /** Words of a plan, and parts of sequences whose sums are kept until they are added. */
  needs(segments: readonly AttentionSegment[]): { words: number; partials: number } {
    let words = header_words + segment_words * segments.length;
    let partials = 0;
    for (const segment of segments) {
      words += blocksOf(segment);
      partials += this.#partialsOf(segment);
    }
    return { words, partials };
  }

  /** @param block_rows by number of a block, its first KV row */
  writePlan(plan: Int32Array, segments: readonly AttentionSegment[], block_rows: Int32Array): void {
    let row = 0;
    let partial = 0;
    let table = header_words + segment_words * segments.length;
    for (const [index, segment] of segments.entries()) {
      const at = header_words + segment_words * index;
      const parts = this.#partialsOf(segment);
      plan[at] = row;
      plan[at + 1] = segment.rows;
      plan[at + 2] = segment.position;
      plan[at + 3] = table;
      plan[at + 4] = parts > 0 ? partial : -1;
      plan[at + 5] = 0;
      const blocks = blocksOf(segment);
      for (let block = 0; block < blocks; block++) plan[table + block] = block_rows[segment.blocks[block]!]!;
      row += segment.rows;
      partial += parts;
      table += blocks;
    }
    plan[0] = 0;
    plan[1] = 0;
    plan[2] = segments.length;
    plan[3] = row;
  }

  /**
   * @param queries F32, ne [head_dim, n_head, rows]; its rows may be apart
   * @param keys ne [n_head_kv × head_dim, KV rows]; values the same
   * @param plan I32, as `writePlan` makes it before each run
   * @param partials that there is room for
   * @returns F32, ne [n_head × head_dim, rows]; rows behind those of the plan are zero
   */
  attend(
    context: Pointer,
    { queries, keys, values, plan }: { queries: Pointer; keys: Pointer; values: Pointer; plan: Pointer },
    rows: number,
    partials: number,
  ): Pointer {
    const { n_head, head_dim } = this.#heads;
    const width = n_head * head_dim;
    const floats = partials * Number(this.#kernels.hk_attention_partial_floats(n_head, head_dim));
    const sources = BigUint64Array.from([queries, keys, values, plan]);
    const result = this.#ggml.ggml_custom_4d(
      context,
      GgmlType.F32,
      width,
      rows + Math.ceil(floats / width),
      1,
      1,
      sources,
      sources.length,
      this.#kernels.attendOperator,
      all_threads,
      BigInt(this.set.bit),
    )!;
    return this.#ggml.ggml_view_2d(context, result, width, rows, width * 4, 0)!;
  }

  /** Sums of how many parts are kept: a sequence of several rows, or of one part, needs none. */
  #partialsOf({ rows, position }: AttentionSegment): number {
    const parts = Math.ceil((position + rows) / this.#part_tokens);
    return rows > 1 || parts === 1 ? 0 : parts;
  }
}

function blocksOf({ position, rows }: AttentionSegment): number {
  return Math.ceil((position + rows) / block_tokens);
}
