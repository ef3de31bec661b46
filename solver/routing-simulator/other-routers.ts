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

/** Replicas that are as good as each other to a router, and why; never none. */
export interface EqualReplicas {
  why: 'loads' | 'match' | 'fallback';
  replicas: number[];
}

/**
 * SGLang's router with its policy `cache_aware`, as its documentation describes it (docs/router/router.md of
 * sgl-project/sglang): a tree of each worker's prompts, which is not told of evictions. Loads that are far apart are
 * evened out; else the worker with the longest match has the prompt if that is long enough. If it is not, the worker
 * with the smallest tree has it, and in later versions (docs/concepts/routing/cache-aware.md of its successor, smg) the
 * one with the least load. Its trees are not bounded here: none of the traces fills the 2^24 nodes that it allows.
 */
export class CacheAwareModel {
  readonly #settings: CacheAwareSettings;
  readonly #tree = new PrefixTree(Number.POSITIVE_INFINITY);

  constructor(settings: CacheAwareSettings) {
    this.#settings = settings;
  }

  /** Where it would send a prompt. */
  candidates(blocks: Uint32Array, replicas: readonly SeenReplica[]): EqualReplicas {
    const { cache_threshold, balance_abs_threshold, balance_rel_threshold, fallback } = this.#settings;
    const loads = replicas.map(loadOf);
    const [most, least] = [Math.max(...loads), Math.min(...loads)];
    if (most - least > balance_abs_threshold && most > balance_rel_threshold * least)
      return { why: 'loads', replicas: leastOf(loads) };
    const matches = [...this.#tree.match(blocks).held];
    const length = Math.max(0, ...matches.map(([, held]) => held.blocks));
    if (length / blocks.length > cache_threshold) {
      const longest = matches.filter(([, held]) => held.blocks === length);
      return { why: 'match', replicas: longest.map(([name]) => Number(name)) };
    }
    const sizes = replicas.map((_, index) => this.#tree.blocksOf(`${index}`));
    return { why: 'fallback', replicas: leastOf(fallback === 'least-load' ? loads : sizes) };
  }

  /** A replica was sent it. */
  sent(replica: number, blocks: Uint32Array, at_s: number): void {
    this.#tree.insert(`${replica}`, blocks, 1000 * at_s);
  }
}

export function cacheAware(settings: CacheAwareSettings): ReplayedRouter {
  const model = new CacheAwareModel(settings);
  return {
    choose({ blocks }, replicas, at_s) {
      const chosen = model.candidates(blocks, replicas).replicas[0]!;
      model.sent(chosen, blocks, at_s);
      return chosen;
    },
  };
}

function loadOf({ running, waiting }: SeenReplica): number {
  return running + waiting;
}

function shortest(replicas: readonly SeenReplica[]): number {
  return leastOf(replicas.map(loadOf))[0]!;
}

/** Where the least of the values stands. */
function leastOf(values: readonly number[]): number[] {
  const least = Math.min(...values);
  return [...values.keys()].filter((index) => values[index] === least);
}
