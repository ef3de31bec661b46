import type { AttentionSegment, PagedAttention } from '../../native/paged-attention.ts';
import type { Pointer } from '../../native/signature.ts';

/** Kinds of batches that our attention was found quicker for. */
export interface AttentionWins {
  /** One row of every sequence. */
  decode: boolean;
  /** Several rows of some sequence. */
  prompts: boolean;
}

/** Room for a batch in a kept graph. */
export interface AttentionRoom {
  /** Of a plan, in words. */
  words: number;
  /** Parts of sequences whose sums are kept until they are added. */
  partials: number;
}

/** Rows of one sequence in a batch. */
interface BatchRows {
  past_tokens: number;
  rows: number;
  blocks: ArrayLike<number>;
}

/** Least words of a plan. Lower: more graphs are built while sequences grow; higher: nothing but some memory. */
const words_min = 128;

/** Our attention for the batches of one stage: which of them it serves, and what it is told of each. */
export class BatchAttention {
  readonly #paged: PagedAttention;
  readonly #wins: AttentionWins;

  constructor(paged: PagedAttention, wins: AttentionWins) {
    this.#paged = paged;
    this.#wins = wins;
  }

  /** Whether it serves batches of every kind, so that ggml's serves none. */
  get servesAll(): boolean {
    return this.#wins.decode && this.#wins.prompts;
  }

  serves(segments: readonly BatchRows[]): boolean {
    return segments.every(({ rows }) => rows === 1) ? this.#wins.decode : this.#wins.prompts;
  }

  /** @returns room for a batch: few distinct sizes, so that graphs are used again while sequences grow */
  roomFor(segments: readonly BatchRows[]): AttentionRoom {
    const whole = this.#paged.needs(segments.map(asAttention));
    const last = this.#paged.needs(segments.map(lastRow));
    const partials = Math.max(whole.partials, last.partials);
    const words = Math.max(words_min, whole.words, last.words);
    return { words: powerOfTwo(words), partials: partials === 0 ? 0 : powerOfTwo(partials) };
  }

  /** @param narrow sequences whose last rows alone are attended, in order; absent: all rows of all */
  fill(
    plan: Int32Array,
    segments: readonly BatchRows[],
    block_rows: Int32Array,
    narrow?: readonly number[],
  ): void {
    const listed = narrow ? narrow.map((index) => lastRow(segments[index]!)) : segments.map(asAttention);
    this.#paged.writePlan(plan, listed, block_rows);
  }

  attend(
    context: Pointer,
    tensors: { queries: Pointer; keys: Pointer; values: Pointer; plan: Pointer },
    rows: number,
    room: AttentionRoom,
  ): Pointer {
    return this.#paged.attend(context, tensors, rows, room.partials);
  }
}

function asAttention({ past_tokens, rows, blocks }: BatchRows): AttentionSegment {
  return { rows, position: past_tokens, blocks };
}

function lastRow({ past_tokens, rows, blocks }: BatchRows): AttentionSegment {
  return { rows: 1, position: past_tokens + rows - 1, blocks };
}

function powerOfTwo(count: number): number {
  return 2 ** Math.ceil(Math.log2(count));
}
