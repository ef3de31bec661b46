/** Load and affinity on one scale: time. */
import { type Candidate, type RoutedRequest, requestsAt } from './candidate.ts';
import type { PromptView } from './model-prefixes.ts';
import { type AffinityBound, isWithin, prefixWeight } from './prefix-affinity.ts';

/**
 * What is computed again costs more than the time until this first token: everybody behind it waits as long, and what
 * it takes of the cache is given up by others, who miss it in their turn. Lower: first tokens of this moment come
 * sooner; higher: more is found, and queues grow longer beside idle replicas. Chosen by replay (`-- prefix`).
 */
const miss_weight = 12;
/**
 * What it costs beside that to compute a whole prompt again, as a share of an answer's time: a conversation that moves
 * has its next turns there, too, and its keys and values lie in two caches. Lower: loads are even; higher: short
 * prompts stay where they are. Chosen by replay.
 */
const move_weight = 0.3;
/**
 * What a sequence more delays the answers of all that run beside it, as a share of an answer's time over the places of
 * its replica. Lower: more prompts find their beginning; higher: batches are evenly full. Chosen by replay.
 */
const load_weight = 0.05;
/**
 * Replicas within this share of what the whole prompt would cost are equals: then the one takes it that every gateway
 * would choose. Lower: loads are even; higher: other gateways find more of what this one had computed.
 */
const equal_share = 0.02;

/**
 * How full a replica may become for what it holds. Without a bound one beginning that all prompts share has all of
 * them, up to the thousand sequences that an engine takes on a large GPU, while the others have nothing to do: each
 * sequence slows all others there down, and the prompt is computed once on each replica. Chosen by replay.
 */
const byCost: AffinityBound = { over_mean: 1.5, always_share: 0.5, always_max: 16 };

/**
 * What a prompt costs on a replica, seconds: the prompts that it was sent before, and what it has not computed of this
 * one, at the speed that it shows, the latter `miss_weight` times; that a conversation moves; and what one more
 * sequence costs all others there.
 *
 * @param is_home where hashing has the prompt: other gateways may have sent it there
 */
export function missCost_s(
  candidate: Candidate,
  view: PromptView,
  { expected_ms }: Pick<RoutedRequest, 'expected_ms'>,
  is_home = false,
): number {
  const { session_id, max_sequences } = candidate;
  const { pending_tokens = 0, tokens_per_s = view.prefill_tokens_per_s } =
    view.prefills.get(session_id) ?? {};
  const uncached_tokens = Math.max(0, view.tokens - (view.held_tokens.get(session_id) ?? 0));
  const likely_tokens = uncached_tokens * (is_home ? 1 - view.elsewhere : 1);
  const load = requestsAt(candidate) / max_sequences;
  const moved = view.tokens > 0 ? likely_tokens / view.tokens : 0;
  return (
    (pending_tokens + miss_weight * likely_tokens) / tokens_per_s +
    ((move_weight * moved + load_weight * load) * expected_ms) / 1000
  );
}

/**
 * The candidate on which the prompt costs least, of those that are not much fuller than the mean. Of those that are
 * about as good, the one that rendezvous hashing has for the prompt's beginning: where nobody knows it, gateways agree
 * without a word between them.
 *
 * @param free those with room for one more
 * @param ofAll all that share the load, whether or not they have room
 */
export function byMissCost<T extends Candidate>(
  free: readonly T[],
  ofAll: readonly Candidate[],
  view: PromptView,
  request: Pick<RoutedRequest, 'expected_ms' | 'prompt'>,
): T | undefined {
  const { prompt } = request;
  const even = free.filter(isWithin(byCost, ofAll));
  const candidates = even.length > 0 ? even : free;
  const weights = candidates.map((candidate) => (prompt ? prefixWeight(candidate, prompt.prefix) : 0));
  const home = Math.max(...weights);
  const costs_s = candidates.map((candidate, index) =>
    missCost_s(candidate, view, request, prompt !== undefined && weights[index] === home),
  );
  const bound_s = Math.min(...costs_s) + (equal_share * view.tokens) / view.prefill_tokens_per_s;
  let best: T | undefined;
  let weight = -1;
  for (const [index, candidate] of candidates.entries()) {
    if (costs_s[index]! > bound_s || weights[index]! <= weight) continue;
    best = candidate;
    weight = weights[index]!;
  }
  return best;
}
