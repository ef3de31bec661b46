import type { KvExhausted } from '../../spec/engine-contract.ts';
import type { KvBlockAllocator } from './kv-block-allocator.ts';
import type { Sequence } from './sequence.ts';
import { blocksFor, byAge } from './sequence-queue.ts';

/**
 * A block for the next token of every sequence that decodes. The oldest may exceed the budget, so that something
 * always ends. Sequences keep the blocks that they were given before one found none: each needs its own in any case.
 * @returns who found none
 */
export function takeNextBlocks(
  running: readonly Sequence[],
  blocks: KvBlockAllocator,
): KvExhausted | undefined {
  if (running.length === 0) return undefined;
  const [oldest, youngest] = byAge(running);
  for (const sequence of running) {
    if (!sequence.decodes) continue;
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
