/** Rows of a sequence as ranges of the pool, for transfers: what travels, in which order, and where it lies. */
import { joinMemoryPieces, type MemoryPiece } from '../../native/fabric/memory.ts';
import type { KvMemory, RowRun } from './kv-memory.ts';
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
  const extents = extentsOf(kv, blocks, tokens);
  const pieces: MemoryPiece[] = [];
  for (const matrix of kv.matricesOf(layers))
    for (const { row, count } of extents)
      pieces.push({ offset: storage.poolOffset(matrix, row), bytes: count * row_bytes });
  return joinMemoryPieces(pieces);
}

/** The same rows in the same order, and where the host has them: in `host` from its beginning on. */
export function* kvRowRuns(
  kv: KvMemory,
  blocks: readonly number[],
  tokens: KvRange,
  layers: KvRange,
  host: Uint8Array,
): Generator<RowRun> {
  const extents = rowExtents(kv, blocks, tokens);
  let at = 0;
  for (const matrix of kv.matricesOf(layers))
    for (const { row, count } of extents) {
      const bytes = count * kv.row_bytes;
      yield { matrix, row, host: host.subarray(at, at + bytes) };
      at += bytes;
    }
}

interface Extent {
  row: number;
  count: number;
}

/** Of every block the rows of these tokens. */
function extentsOf(kv: KvMemory, blocks: readonly number[], { begin, end }: KvRange): Extent[] {
  const extents: Extent[] = [];
  for (let token = begin; token < end; ) {
    const next = Math.min(end, (Math.floor(token / kv_block_tokens) + 1) * kv_block_tokens);
    extents.push({ row: kv.rowOf(blocks, token), count: next - token });
    token = next;
  }
  return extents;
}

/** Rows of these tokens, in order; those that lie side by side are one. */
export function rowExtents(kv: KvMemory, blocks: readonly number[], tokens: KvRange): Extent[] {
  const found: Extent[] = [];
  for (const { row, count } of extentsOf(kv, blocks, tokens)) {
    const last = found.at(-1);
    if (last && last.row + last.count === row) last.count += count;
    else found.push({ row, count });
  }
  return found;
}
