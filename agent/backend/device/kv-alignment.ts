import { HpcserveError } from '../../../spec/errors/error.ts';
import { kv_block_tokens } from '../../engine/kv-storage.ts';

/** Rows after which an address is aligned again. */
export function alignedStep_rows(alignment: number, row_bytes: number): number {
  return alignment / commonDivisor(alignment, row_bytes);
}

/**
 * Attention reads sequences in place, from their first block on.
 * @throws HpcserveError E_ENGINE_OPTIONS: not every block begins at an address that the device reads from
 */
export function requireAlignedBlocks(alignment: number, row_bytes: number): void {
  if (kv_block_tokens % alignedStep_rows(alignment, row_bytes) === 0) return;
  throw new HpcserveError('E_ENGINE_OPTIONS', {
    what: `KV rows of ${row_bytes} bytes cannot be addressed on this device`,
    because: `blocks of ${kv_block_tokens} rows do not begin at multiples of ${alignment} bytes`,
    try: 'use kv_type f16',
  });
}

function commonDivisor(a: number, b: number): number {
  return b === 0 ? a : commonDivisor(b, a % b);
}
