/** Rows of a sequence as ranges of the pool, for transfers: what travels, in which order, and where it lies. */
import { joinMemoryPieces, type MemoryPiece } from '../../native/fabric/memory.ts';
import type { KvMemory } from './kv-memory.ts';
import { kv_block_tokens } from './kv-storage.ts';

/** Tokens, or layers, [begin, end). */
export interface KvRange {
  begin: number;
  end: number;
}

/**
 * Cuts tokens where their rows leave a slab: all rows of a whole slab lie side by side, of every layer, so that they
 * are one piece.
 */
export function kvRuns(kv: KvMemory, blocks: readonly number[], { begin, end }: KvRange): KvRange[] {
  const { block_rows, slab_rows } = kv.storage;
  const slabOf = (token: number): number =>
    Math.floor(block_rows[blocks[Math.floor(token / kv_block_tokens)]!]! / slab_rows);
  const runs: KvRange[] = [];
  for (let token = begin; token < end; ) {
    const next = Math.min(end, (Math.floor(token / kv_block_tokens) + 1) * kv_block_tokens);
    const last = runs.at(-1);
    if (last && slabOf(last.begin) === slabOf(token)) last.end = next;
    else runs.push({ begin: token, end: next });
    token = next;
  }
  return runs;
}

/**
 * Where rows lie in the pool: layer by layer keys, then values, each in the order of tokens; neighbours as one piece.
 * @returns undefined where the KV cache is in no pool that others can address
 */
export function kvPieces(
  kv: KvMemory,
  blocks: readonly number[],
  tokens: KvRange,
  layers: KvRange,
): MemoryPiece[] | undefined {
  const { storage, row_bytes } = kv;
  if (!storage.poolOffset) return undefined;
  const extents: { row: number; count: number }[] = [];
  for (let token = tokens.begin; token < tokens.end; ) {
    const next = Math.min(tokens.end, (Math.floor(token / kv_block_tokens) + 1) * kv_block_tokens);
    extents.push({ row: kv.rowOf(blocks, token), count: next - token });
    token = next;
  }
  const pieces: MemoryPiece[] = [];
  for (const matrix of kv.matricesOf(layers))
    for (const { row, count } of extents)
      pieces.push({ offset: storage.poolOffset(matrix, row), bytes: count * row_bytes });
  return joinMemoryPieces(pieces);
}
