import type { KvExhausted } from '../../spec/engine-contract.ts';
import type { KvBlockAllocator } from './kv-block-allocator.ts';
import type { Sequence } from './sequence.ts';
import { blocksFor, byAge } from './sequence-queue.ts';

/**
 * A block for the next token of every sequence that decodes. One that has lost rows as its pipeline changed computes
 * them as it does a prompt, up to a token for which nobody has given it a block yet. The oldest may exceed the budget,
 * so that something always ends. Sequences keep the blocks that they were given before one found none: each needs its
 * own in any case.
 * @param decode whether sequences that decode have their turn
 * @returns who found none
 */
export function takeNextBlocks(
  running: readonly Sequence[],
  blocks: KvBlockAllocator,
  decode: boolean,
): KvExhausted | undefined {
  if (running.length === 0) return undefined;
  const [oldest, youngest] = byAge(running);
  for (const sequence of running) {
    const isBehind = sequence.n_generated > 0 && sequence.pending > 1;
    if (sequence.decodes ? !decode : !isBehind) continue;
    const needed = blocksFor(sequence.tokens.length);
    if (blocks.grow(sequence.kv!, needed, sequence === oldest)) continue;
    return {
      id: sequence.id,
      bytes: blocks.missing_bytes(sequence.kv!, needed),
      youngest: youngest.id,
    };
  }
  return undefined;
}
