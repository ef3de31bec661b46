/** Keys and values of a sequence in host memory, while its blocks serve others: byte for byte, and checked. */
import { crc32 } from 'node:zlib';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { KvMemory } from './kv-memory.ts';
import { kv_block_tokens } from './kv-storage.ts';

export interface SwappedKv {
  readonly tokens: number;
  /** Per layer keys, then values, each as rows [tokens, row_bytes]. */
  readonly rows: Uint8Array;
  readonly checksum: number;
}

/** Copies the rows of so many tokens out of their blocks. */
export function swapOutKv(kv: KvMemory, blocks: readonly number[], tokens: number): SwappedKv {
  const rows = new Uint8Array(tokens * kv.token_bytes);
  for (const { matrix, row, begin, end } of runs(kv, blocks, tokens))
    kv.readRows(matrix, row, rows.subarray(begin, end));
  return { tokens, rows, checksum: crc32(rows) };
}

/**
 * Copies the rows into blocks that are long enough for them.
 * @throws HpcserveError E_ENGINE_COMPUTE: the bytes are not those that were parked
 */
export function swapInKv(
  kv: KvMemory,
  blocks: readonly number[],
  { tokens, rows, checksum }: SwappedKv,
): void {
  if (crc32(rows) !== checksum)
    throw new HpcserveError('E_ENGINE_COMPUTE', {
      what: 'keys and values that were parked in host memory have changed there',
      because: 'their checksum is another',
    });
  for (const { matrix, row, begin, end } of runs(kv, blocks, tokens))
    kv.writeRows(matrix, row, rows.subarray(begin, end));
}

interface Run {
  matrix: number;
  /** The first of it. */
  row: number;
  /** Bytes [begin, end) of what is parked. */
  begin: number;
  end: number;
}

/** Runs of rows that lie side by side in the cache, of every matrix. */
function* runs(kv: KvMemory, blocks: readonly number[], tokens: number): Generator<Run> {
  const found: { token: number; row: number; count: number }[] = [];
  for (let token = 0; token < tokens; token += kv_block_tokens) {
    const row = kv.rowOf(blocks, token);
    const count = Math.min(kv_block_tokens, tokens - token);
    const last = found.at(-1);
    if (last && last.row + last.count === row) last.count += count;
    else found.push({ token, row, count });
  }
  for (let matrix = 0; matrix < kv.n_matrices; matrix++)
    for (const { token, row, count } of found) {
      const begin = (matrix * tokens + token) * kv.row_bytes;
      yield { matrix, row, begin, end: begin + count * kv.row_bytes };
    }
}
