/**
 * Conversations replayed through the gateway's routing decision (`solver/routing`) and those of others, over simulated
 * replicas whose caches together hold half of what is alive: what is found in caches, and how long first tokens take.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { liveRouter } from '../../solver/routing-simulator/live-router.ts';
import {
  CacheAwareModel,
  cacheAware,
  leastRequests,
  roundRobin,
} from '../../solver/routing-simulator/other-routers.ts';
import {
  quantile,
  type ReplayedRouter,
  type ReplayOutcome,
  replay,
} from '../../solver/routing-simulator/replay.ts';
import {
  aliveSize_tokens,
  drawConversations,
  parseMooncake,
  type ReplayedTrace,
  workingSet_tokens,
} from '../../solver/routing-simulator/requests.ts';
import type { ReplicaSpeed } from '../../solver/routing-simulator/simulated-replica.ts';
import { MissingNeed } from '../need.ts';
import type { Bench, BenchResult } from '../result.ts';
import { routersHere } from '../routers/peers.ts';
import { compareChoices, describeAgreement } from './real-router.ts';
import { policyOf, RunningRouter } from './running-router.ts';

/** What prompts would take of the replicas' time if nothing were found; their speed follows from it. */
const load_without_hits = 0.5;
const replica_counts = [2, 4] as const;
const held_share = 0.5;
/** Of what there is to find: what an LRU cache of the working set finds. */
const working_share = 0.9;
/** The policy's weights were chosen on Mooncake's trace with four replicas, and on these with two. */
const seeds = [7, 11] as const;

/** As the documentation of SGLang's router has them. */
const documented = {
  cache_threshold: 0.5,
  balance_abs_threshold: 32,
  balance_rel_threshold: 1.0001,
} as const;
/** With `--real-router`: of each trace, and in front of so many servers that only count. */
const real_requests = 1500;
const real_replicas = 4;

/** What the caches of all replicas hold together. */
interface Held {
  words: string;
  tokens: number;
}

export const prefixBench: Bench = {
  name: 'prefix',
  describe:
    'conversations replayed against replicas whose caches hold half of what is alive: prompt tokens found, simulated first tokens, by router (--trace FILE: Mooncake’s conversations)',
  async run({ log, args }) {
    const mooncake = readMooncake(args);
    if (args.includes('--real-router')) {
      await besideRealRouter([mooncake, drawnFor(real_replicas, seeds[0])], log);
      return [];
    }
    return replica_counts.flatMap((replicas) => {
      const drawn = seeds.map((seed) => drawnFor(replicas, seed));
      return [mooncake, ...drawn].flatMap((trace) =>
        heldBy(trace).flatMap((held) => compare(trace, replicas, held, log)),
      );
    });
  },
};

function drawnFor(replicas: number, seed: number): ReplayedTrace {
  return drawConversations({
    seed,
    conversations: 1200 * replicas,
    per_s: 0.7 * replicas,
    system_prompts: 12,
  });
}

/**
 * Whether SGLang's router chooses as it is modelled here, with either of what its documentations say of prompts that
 * nobody has enough of.
 * @throws MissingNeed
 */
async function besideRealRouter(
  traces: readonly ReplayedTrace[],
  log: (line: string) => void,
): Promise<void> {
  const peer = routersHere(log).find(({ name }) => name === 'sglang-router');
  if (!peer) throw new MissingNeed('sglang-router is not here', 'npm run engines -- routers');
  for (const trace of traces) {
    const part = { ...trace, requests: trace.requests.slice(0, real_requests) };
    const blocks_max = Math.floor(heldBy(part)[1]!.tokens / real_replicas / part.block_tokens);
    log(
      `${trace.name}, the first ${part.requests.length} requests, ${real_replicas} replicas, beside sglang-router:`,
    );
    for (const fallback of ['smallest-tree', 'least-load'] as const) {
      const settings = { ...documented, fallback };
      await using router = await RunningRouter.start(peer, real_replicas, policyOf(settings));
      const seen = await compareChoices(
        router,
        part,
        new CacheAwareModel(settings),
        cacheAware(settings),
        blocks_max,
      );
      for (const line of describeAgreement(fallback, seen)) log(`  ${line}`);
    }
  }
}

/** @throws MissingNeed */
function readMooncake(args: readonly string[]): ReplayedTrace {
  const at = args.indexOf('--trace');
  const folder = process.env.HPCSERVE_TRACES ?? join(packageRoot, '..', 'shared', 'traces');
  const file = at < 0 ? join(folder, 'mooncake_conversation.jsonl') : (args[at + 1] ?? '');
  if (!existsSync(file))
    throw new MissingNeed(
      `Mooncake's conversations are not there: ${file}`,
      'name the file with --trace, or its folder with HPCSERVE_TRACES (mooncake_conversation.jsonl of kvcache-ai/Mooncake, FAST ’25, Apache-2.0)',
    );
  return parseMooncake(readFileSync(file, 'utf8'), 'Mooncake');
}

function heldBy(trace: ReplayedTrace): Held[] {
  return [
    { words: 'half of what is alive', tokens: held_share * aliveSize_tokens(trace) },
    { words: 'half of the working set', tokens: held_share * workingSet_tokens(trace, working_share) },
  ];
}

function replicaFor({ requests }: ReplayedTrace, replicas: number, { tokens }: Held): ReplicaSpeed {
  const input_tokens = requests.reduce((sum, request) => sum + request.input_tokens, 0);
  const whole_s = requests.at(-1)!.at_s - requests[0]!.at_s;
  return {
    prefill_tokens_per_s: input_tokens / whole_s / replicas / load_without_hits,
    iteration_s: 0.01,
    sequence_s: 0.0002,
    max_sequences: 64,
    batch_tokens: 1024,
    kv_tokens: tokens / replicas,
  };
}

function compare(
  trace: ReplayedTrace,
  replicas: number,
  held: Held,
  log: (line: string) => void,
): BenchResult[] {
  const speed = replicaFor(trace, replicas, held);
  const { block_tokens, name } = trace;
  const { kv_tokens, max_sequences, prefill_tokens_per_s } = speed;
  log(
    `${name}: ${trace.requests.length} requests to ${replicas} replicas of ${Math.round(kv_tokens)} tokens of KV (${held.words}) and ${Math.round(prefill_tokens_per_s)} tokens of prompts a second`,
  );
  const run = (words: string, make: () => ReplayedRouter, routers = 1): ReplayOutcome => {
    const outcome = replay(trace, Array.from({ length: routers }, make), replicas, speed);
    log(`  ${words.padEnd(44)} ${describeOutcome(outcome)}`);
    return outcome;
  };
  const live =
    (tree: boolean, gateways = 1) =>
    (): ReplayedRouter =>
      liveRouter({ block_tokens, kv_tokens, max_sequences, tree, gateways });
  run('round robin', roundRobin);
  run('fewest requests', leastRequests);
  const peer = run('cache-aware (0.5, 32, 1.0001, smallest tree)', () =>
    cacheAware({ ...documented, fallback: 'smallest-tree' }),
  );
  run('cache-aware (0.3, 64, 1.5, least load)', () =>
    cacheAware({
      cache_threshold: 0.3,
      balance_abs_threshold: 64,
      balance_rel_threshold: 1.5,
      fallback: 'least-load',
    }),
  );
  run('hpcserve, hashing alone', live(false));
  run('hpcserve, two gateways', live(true, 2), 2);
  const ours = run('hpcserve', live(true));
  return judged(`${name}, ${replicas} replicas, ${held.words}`, ours, peer);
}

function judged(what: string, ours: ReplayOutcome, peer: ReplayOutcome): BenchResult[] {
  const found = (of: ReplayOutcome): number => (100 * of.cached_tokens) / of.prompt_tokens;
  const row = (
    words: string,
    unit: string,
    read: (of: ReplayOutcome) => number,
    more: boolean,
  ): BenchResult => {
    const [own, theirs] = [read(ours), read(peer)];
    const ratio = more ? own / theirs : theirs / own;
    return {
      what: `${what}: ${words}`,
      unit,
      ours: own,
      peer: 'cache-aware',
      theirs,
      ratio,
      bar: 'ratio ≥ 1',
      holds: ratio >= 1,
    };
  };
  const ttft_ms = (share: number) => (of: ReplayOutcome) => 1000 * quantile(of.ttft_s, share);
  return [
    row('prompt tokens found', '%', found, true),
    row('first token, p50', 'ms', ttft_ms(0.5), false),
    row('first token, p90', 'ms', ttft_ms(0.9), false),
  ];
}

function describeOutcome({ cached_tokens, prompt_tokens, ttft_s }: ReplayOutcome): string {
  const share = ((100 * cached_tokens) / prompt_tokens).toFixed(1);
  const [p50, p90, p99] = [0.5, 0.9, 0.99].map((at) => (1000 * quantile(ttft_s, at)).toFixed(0));
  return `${share} % found; first token p50 ${p50} ms, p90 ${p90} ms, p99 ${p99} ms`;
}
