import type { PoolName } from '../../spec/model-pools.ts';

/** What of a replica says for which part of an answer it is. */
export interface PoolMember {
  /** Absent: it computes prompts and answers. */
  readonly pool?: PoolName | undefined;
  /** See `ModelLoad.handover_tokens_min`. */
  readonly handover_tokens_min?: number | undefined;
}

/**
 * Replicas by the pool that a request belongs to, those it is to be asked of first; the others compute it all the same,
 * where none of the first has a place. A prompt is computed in the prefill pool, unless it is so short that computing
 * it where it is decoded takes no longer than bringing its KV there.
 * @param prompt_tokens as far as that is known
 * @returns one group where there are no pools
 */
export function byPool<T extends PoolMember>(
  candidates: readonly T[],
  prompt_tokens: number | undefined,
): { pool: PoolName | undefined; members: readonly T[] }[] {
  const prefill = candidates.filter(({ pool }) => pool === 'prefill');
  if (prefill.length === 0) return [{ pool: undefined, members: candidates }];
  const decode = candidates.filter(({ pool }) => pool !== 'prefill');
  const least = Math.min(...prefill.map((each) => each.handover_tokens_min ?? 0));
  const isShort = prompt_tokens !== undefined && prompt_tokens < least;
  const groups = [
    { pool: 'prefill' as const, members: prefill },
    { pool: 'decode' as const, members: decode },
  ];
  return (isShort ? groups.reverse() : groups).filter(({ members }) => members.length > 0);
}
