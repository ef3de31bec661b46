/** Requests of a trace through a router to simulated replicas: what caches find, and how long first tokens take. */
import type { ReplayedRequest, ReplayedTrace } from './requests.ts';
import { type ReplicaSpeed, type RunningRequest, SimulatedReplica } from './simulated-replica.ts';

/** What a router sees of a replica. */
export interface SeenReplica {
  readonly running: number;
  readonly waiting: number;
}

/** A router under replay. It is told what a real one sees, when it sees it. */
export interface ReplayedRouter {
  /** @returns the replica's index */
  choose(request: ReplayedRequest, replicas: readonly SeenReplica[], at_s: number): number;
  firstToken?(request: ReplayedRequest, at_s: number): void;
  ended?(request: ReplayedRequest, at_s: number): void;
}

export interface ReplayOutcome {
  requests: number;
  prompt_tokens: number;
  cached_tokens: number;
  /** In the order of the trace. */
  ttft_s: Float64Array;
}

/** @param routers several: requests come to them in turn, and they know nothing of each other */
export function replay(
  trace: ReplayedTrace,
  routers: readonly ReplayedRouter[],
  replicas: number,
  speed: ReplicaSpeed,
): ReplayOutcome {
  const { requests, block_tokens } = trace;
  const ttft_s = new Float64Array(requests.length);
  const indexOf = new Map(requests.map((request, index) => [request, index]));
  const routerOf = (request: ReplayedRequest): ReplayedRouter =>
    routers[indexOf.get(request)! % routers.length]!;
  let prompt_tokens = 0;
  let cached_tokens = 0;
  const events = {
    firstToken({ request, arrived_s, cached_tokens: found }: RunningRequest, at_s: number): void {
      ttft_s[indexOf.get(request)!] = at_s - arrived_s;
      prompt_tokens += request.input_tokens;
      cached_tokens += found;
      routerOf(request).firstToken?.(request, at_s);
    },
    ended({ request }: RunningRequest, at_s: number): void {
      routerOf(request).ended?.(request, at_s);
    },
  };
  const all = Array.from({ length: replicas }, () => new SimulatedReplica(speed, block_tokens, events));
  const next = (): SimulatedReplica =>
    all.reduce((soonest, one) => (one.next_s < soonest.next_s ? one : soonest));
  for (const request of requests) {
    for (let one = next(); one.next_s <= request.at_s; one = next()) one.step();
    const chosen = routerOf(request).choose(request, all, request.at_s);
    all[chosen]!.arrive(request, request.at_s);
  }
  for (let one = next(); one.next_s !== Number.POSITIVE_INFINITY; one = next()) one.step();
  return { requests: requests.length, prompt_tokens, cached_tokens, ttft_s };
}

/** @param share 0.5: the median */
export function quantile(values: Float64Array, share: number): number {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!;
}
