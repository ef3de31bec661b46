import type { MemoryPiece } from '../../native/fabric/memory.ts';
import type { BlockList } from './kv-block-allocator.ts';
import type { KvMemory } from './kv-memory.ts';
import { type KvRange, kvPieces, kvRuns } from './kv-runs.ts';
import type { Sequence } from './sequence.ts';

/** Blocks of a sequence that nobody else gets before `release`. */
export interface HeldKv {
  readonly kv: KvMemory;
  readonly blocks: readonly number[];
  /** Computed so far. */
  readonly tokens: number;
  /** Prompt and answer so far. */
  readonly all: Int32Array;
  release(): void;
}

/** A sequence that no engine computes, and its KV: on its way from one engine to another, or back. */
export class DetachedSequence {
  readonly sequence: Sequence;
  readonly blocks: BlockList;
  readonly #kv: KvMemory;

  constructor(sequence: Sequence, blocks: BlockList, kv: KvMemory) {
    this.sequence = sequence;
    this.blocks = blocks;
    this.#kv = kv;
  }

  /** Whose keys and values are in its blocks. */
  get computed_tokens(): number {
    return this.sequence.n_computed;
  }

  /** Prompt and answer so far. */
  get tokens(): Int32Array {
    return this.sequence.tokens.all();
  }

  get prompt_tokens(): number {
    return this.sequence.n_prompt;
  }

  /** In which parts tokens travel best from here. */
  runs(tokens: KvRange): KvRange[] {
    return kvRuns(this.#kv, this.blocks.blocks, tokens);
  }

  /**
   * Where rows lie in the memory of the pool.
   * @throws Error: the engine's KV is in no pool that others can address
   */
  pieces(tokens: KvRange, layers: KvRange): MemoryPiece[] {
    const pieces = kvPieces(this.#kv, this.blocks.blocks, tokens, layers);
    if (!pieces) throw new Error('the KV of this engine is in no pool that others can address');
    return pieces;
  }
}
