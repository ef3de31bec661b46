/** Keys and values of a sequence in host memory, while its blocks serve others: byte for byte, and checked. */
import { crc32 } from 'node:zlib';
import { memoryAt } from '../../native/ggml.ts';
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
  copy(kv, blocks, tokens, (offset, memory) => rows.set(memory, offset));
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
  copy(kv, blocks, tokens, (offset, memory) => memory.set(rows.subarray(offset, offset + memory.length)));
}

/** Calls with each run of rows that lie side by side in the cache, and where they are in the parked bytes. */
function copy(
  kv: KvMemory,
  blocks: readonly number[],
  tokens: number,
  each: (offset: number, memory: Uint8Array) => void,
): void {
  const runs: { token: number; row: number; count: number }[] = [];
  for (let token = 0; token < tokens; token += kv_block_tokens) {
    const row = blocks[token / kv_block_tokens]! * kv_block_tokens;
    const count = Math.min(kv_block_tokens, tokens - token);
    const last = runs.at(-1);
    if (last && last.row + last.count === row) last.count += count;
    else runs.push({ token, row, count });
  }
  let matrix = 0;
  for (const { keys_address, values_address } of kv.layers.values())
    for (const address of [keys_address, values_address]) {
      for (const { token, row, count } of runs) {
        const memory = memoryAt(BigInt(address + row * kv.row_bytes), count * kv.row_bytes);
        each((matrix * tokens + token) * kv.row_bytes, memory);
      }
      matrix++;
    }
}
