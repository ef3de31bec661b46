/** Routers to compare with. */
import { PrefixTree } from '../routing/prefix-tree.ts';
import type { ReplayedRouter, SeenReplica } from './replay.ts';

export function roundRobin(): ReplayedRouter {
  let next = 0;
  return { choose: (_request, replicas) => next++ % replicas.length };
}

export function leastRequests(): ReplayedRouter {
  return { choose: (_request, replicas) => shortest(replicas) };
}

export interface CacheAwareSettings {
  /** Least share of a prompt that a replica must have for it to go there. */
  cache_threshold: number;
  /** Loads further apart than both of these are evened out, whatever is cached. */
  balance_abs_threshold: number;
  balance_rel_threshold: number;
  /** Where nobody has enough of a prompt. */
  fallback: 'smallest-tree' | 'least-load';
}

/**
 * SGLang's router with its policy `cache_aware`, as its documentation describes it (docs/router/router.md of
 * sgl-project/sglang): a tree of each worker's prompts, which is not told of evictions. Loads that are far apart are
 * evened out; else the worker with the longest match has the prompt if that is long enough. If it is not, the worker
 * with the smallest tree has it, and in later versions (docs/concepts/routing/cache-aware.md of its successor, smg) the
 * one with the least load. Its trees are not bounded here: none of the traces fills the 2^24 nodes that it allows.
 */
export function cacheAware(settings: CacheAwareSettings): ReplayedRouter {
  const { cache_threshold, balance_abs_threshold, balance_rel_threshold } = settings;
  const tree = new PrefixTree(Number.POSITIVE_INFINITY);
  const names = new Map<string, number>();
  const choose = (blocks: Uint32Array, replicas: readonly SeenReplica[]): number => {
    const loads = replicas.map(loadOf);
    const [most, least] = [Math.max(...loads), Math.min(...loads)];
    if (most - least > balance_abs_threshold && most > balance_rel_threshold * least)
      return shortest(replicas);
    let best = -1;
    let length = 0;
    for (const [name, held] of tree.match(blocks).held) {
      if (held.blocks <= length) continue;
      length = held.blocks;
      best = names.get(name)!;
    }
    if (best >= 0 && length / blocks.length > cache_threshold) return best;
    if (settings.fallback === 'least-load') return shortest(replicas);
    const sizes = replicas.map((_, index) => tree.blocksOf(`${index}`));
    return sizes.indexOf(Math.min(...sizes));
  };
  return {
    choose({ blocks }, replicas, at_s) {
      for (const index of replicas.keys()) names.set(`${index}`, index);
      const chosen = choose(blocks, replicas);
      tree.insert(`${chosen}`, blocks, 1000 * at_s);
      return chosen;
    },
  };
}

function loadOf({ running, waiting }: SeenReplica): number {
  return running + waiting;
}

function shortest(replicas: readonly SeenReplica[]): number {
  const loads = replicas.map(loadOf);
  return loads.indexOf(Math.min(...loads));
}
