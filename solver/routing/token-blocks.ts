/** Names of blocks of tokens, the same for gateways and agents: hashes of all tokens up to a block's end. */
import { mix } from './hash.ts';

/** Hashes are whole numbers below this: in 47 bits there is room beside one for a sign. */
export const tokenHash_end = 2 ** 47;
const high_bits = 0x7fff;
const low_range = 2 ** 32;

/**
 * @param parent of the block before it; 0: it is the first
 * @param start, end in `tokens`
 */
export function tokenHash(parent: number, tokens: ArrayLike<number>, start: number, end: number): number {
  let low = parent % low_range;
  let high = Math.floor(parent / low_range);
  for (let index = start; index < end; index++) {
    low = mix(low, tokens[index]!);
    high = mix(high, low ^ 0x5bd1e995);
  }
  // 0 stands for "no block".
  return (high & high_bits) * low_range + (low >>> 0) || 1;
}

/** Hashes of the full blocks of a prompt, in their order. */
export function tokenHashes(tokens: ArrayLike<number>, block_tokens: number): Float64Array {
  const hashes = new Float64Array(Math.floor(tokens.length / block_tokens));
  let parent = 0;
  for (let block = 0; block < hashes.length; block++) {
    parent = tokenHash(parent, tokens, block * block_tokens, (block + 1) * block_tokens);
    hashes[block] = parent;
  }
  return hashes;
}
