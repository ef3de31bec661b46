/** The decision that gateways take, over simulated replicas. */
import { byEngine } from '../routing/by-engine.ts';
import type { Candidate } from '../routing/candidate.ts';
import { emptyHash, mix } from '../routing/hash.ts';
import { ModelPrefixes, type SentPrompt } from '../routing/model-prefixes.ts';
import type { ReplayedRouter, SeenReplica } from './replay.ts';
import type { ReplayedRequest } from './requests.ts';

export interface LiveRouterSettings {
  block_tokens: number;
  kv_tokens: number;
  max_sequences: number;
  /** Whether it has a tree of prefixes; without, prompts go by hashing. */
  tree: boolean;
  /** That take turns in being asked. */
  gateways: number;
}

const bytes_max = 64 * 2 ** 20;
/** As hashing has it: the largest power of two of blocks that a prompt fills. */
function prefixKey(blocks: Uint32Array): number {
  const count = 2 ** Math.floor(Math.log2(Math.max(1, blocks.length)));
  return mix(emptyHash, blocks[count - 1] ?? 0);
}

/** Units of text are tokens here. */
export function liveRouter({
  block_tokens,
  kv_tokens,
  max_sequences,
  tree,
  gateways,
}: LiveRouterSettings): ReplayedRouter {
  const policy = byEngine(Number.POSITIVE_INFINITY);
  const prefixes = new ModelPrefixes({ bytes_max, units_per_block: block_tokens });
  prefixes.gateways = gateways;
  const sent = new Map<ReplayedRequest, SentPrompt>();
  const began_s = new Map<ReplayedRequest, number>();
  /** Mean of answers, as a gateway measures it. */
  let expected_ms = 10_000;
  return {
    choose(request, replicas, at_s) {
      const now_ms = 1000 * at_s;
      const prompt = { blocks: request.blocks, units: request.input_tokens };
      const view = prefixes.view(prompt, now_ms);
      const conversation = mix(emptyHash, request.blocks[Math.min(1, request.blocks.length - 1)] ?? 0);
      const candidates = replicas.map((replica, index) => candidateOf(replica, index, max_sequences));
      const chosen = policy.choose(
        candidates,
        {
          now_ms,
          expected_ms,
          expected_tokens: view.tokens,
          prompt: { prefix: prefixKey(request.blocks), conversation },
          view: tree ? view : undefined,
        },
        [],
        Math.floor(now_ms),
      );
      const index = candidates.indexOf(chosen!);
      const { session_id } = candidates[index]!;
      sent.set(request, prefixes.sent(session_id, prompt, view, { now_ms, streams: true, kv_tokens }));
      began_s.set(request, at_s);
      return index;
    },
    firstToken(request, at_s) {
      prefixes.began(sent.get(request)!, 1000 * at_s);
    },
    ended(request, at_s) {
      prefixes.ended(sent.get(request)!, request.input_tokens);
      expected_ms += 0.1 * (1000 * (at_s - began_s.get(request)!) - expected_ms);
      sent.delete(request);
      began_s.delete(request);
    },
  };
}

function candidateOf({ running, waiting }: SeenReplica, index: number, max_sequences: number): Candidate {
  return {
    session_id: `replica-${index}`,
    running,
    waiting,
    max_sequences,
    unreported: 0,
    unanswered: 0,
    kv_tokens_total: 0,
    kv_tokens_used: 0,
    native: false,
    cpu: false,
  };
}
