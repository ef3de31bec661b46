/**
 * Whether an answer whose prompt a replica of the prefill pool computes goes on at a replica of the decode pool, and at
 * which. Pure: what is known is given, and nothing is remembered.
 *
 * What is computed of the prompt travels in parts while the next ones are computed, so that the client waits for the
 * last part alone, or for what a slow link has left over (DistServe §4.3 and Splitwise §4.3, there by layers):
 *
 *     computes   ├─ part 1 ─┼─ part 2 ─┼─ part 3 ─┤ first token
 *     sends                 ├─ 1 ─┤    ├─ 2 ─┤    ├─ 3 ─┤ the decode replica goes on
 *                                                 └pause┘
 *
 * It is handed over where the decode replica would take longer to compute the prompt itself, with the sequences that
 * decode there standing still meanwhile, than the client waits for the handover.
 */

/** Parts in which the KV of a prompt travels, at most: each names all tokens before it. Higher: a shorter last part. */
const parts_max = 16;
/** Steps in which the least prompt is looked for. Lower: a finer answer; higher: less to try. */
const step_factor = 1.05;
/** Shorter prompts are of no use to a cache of KV either, which keeps whole blocks. */
const tokens_min = 16;
/** An answer that may have fewer is over before it goes on elsewhere. Lower: more are handed over in vain. */
const answer_tokens_min = 4;

/** What a transfer to a peer takes: a time for each, and one for its bytes. */
export interface PeerLink {
  transfer_s: number;
  bytes_per_s: number;
}

/** A replica of the decode pool. */
export interface DecodePeer extends PeerLink {
  id: string;
  /** Sequences that it would take now. */
  places: number;
  /** Tokens of KV that no sequence uses there. */
  kv_tokens: number;
  /** One iteration of those that decode there; undefined: not measured. */
  step_s?: number | undefined;
}

/** What is known of the replica that computes prompts. */
export interface PrefillPace {
  /** Keys and values of a token over all layers. */
  kv_token_bytes: number;
  /** Prompt tokens of one iteration. */
  chunk_tokens: number;
  /** Undefined: not measured yet. */
  prefill_tokens_per_s: number | undefined;
}

export interface AskedPrompt {
  /** Of the prompt, with those of an answer that goes on. */
  tokens: number;
  /** Tokens that may follow, at most. */
  answer_tokens: number;
}

export type HandoverDecision =
  | { do: 'hand_over'; peer: string; pause_s: number }
  | { do: 'keep'; reason: 'short' | 'no_peer' | 'no_room'; because: string };

/** @param refused_by peers that did not take it */
export function decideHandover(
  { tokens, answer_tokens }: AskedPrompt,
  pace: PrefillPace,
  peers: readonly DecodePeer[],
  refused_by: readonly string[] = [],
): HandoverDecision {
  if (answer_tokens < answer_tokens_min)
    return {
      do: 'keep',
      reason: 'short',
      because: `an answer of at most ${answer_tokens} tokens ends first`,
    };
  const left = peers.filter(({ id }) => !refused_by.includes(id));
  if (left.length === 0) {
    const because =
      peers.length === 0 ? 'no replica of the decode pool is known' : 'no replica of the decode pool took it';
    return { do: 'keep', reason: 'no_peer', because };
  }
  const roomy = left.filter(({ places, kv_tokens }) => places > 0 && kv_tokens > tokens);
  if (roomy.length === 0)
    return {
      do: 'keep',
      reason: 'no_room',
      because: `no replica of the decode pool has a place and KV for ${tokens} tokens`,
    };
  const worth = roomy.filter((peer) => isWorth(tokens, pace, peer));
  const [best] = worth.sort(emptiestFirst);
  if (best) return { do: 'hand_over', peer: best.id, pause_s: handoverPause_s(tokens, pace, best) };
  const { prefill_tokens_per_s } = pace;
  const least = Math.min(...roomy.map((peer) => handoverPause_s(tokens, pace, peer)));
  const because =
    prefill_tokens_per_s === undefined || tokens < tokens_min
      ? `${tokens} tokens are no whole block of KV`
      : `${tokens} tokens are computed in ${milliseconds(tokens / prefill_tokens_per_s)}, and a handover takes ${milliseconds(least)}`;
  return { do: 'keep', reason: 'short', because };
}

/**
 * Prompts of fewer tokens are not worth a handover, to none of these links; gateways send them to the decode pool at
 * once.
 * @param tokens_max longest prompt there is; one more: none is worth it
 */
export function leastHandover_tokens(
  pace: PrefillPace,
  links: readonly Omit<DecodePeer, 'id' | 'places' | 'kv_tokens'>[],
  tokens_max: number,
): number {
  for (let tokens = tokens_min; tokens <= tokens_max; tokens = Math.ceil(tokens * step_factor))
    if (links.some((link) => isWorth(tokens, pace, link))) return tokens;
  return tokens_max + 1;
}

/** Prompt tokens that travel at once, at least; the rest goes when the prompt is computed to its end. */
export function partSize_tokens(tokens: number, chunk_tokens: number): number {
  return Math.max(chunk_tokens, Math.ceil(tokens / parts_max));
}

/** How long an answer stands still: from the end of its prompt until the peer has all of its KV. */
export function handoverPause_s(
  tokens: number,
  { kv_token_bytes, chunk_tokens, prefill_tokens_per_s }: PrefillPace,
  { transfer_s, bytes_per_s }: PeerLink,
): number {
  const part = Math.min(tokens, partSize_tokens(tokens, chunk_tokens));
  // The last one is smaller where it does not come out even: so is what is left of it to send.
  const parts = tokens / part;
  const sends_s = transfer_s + (part * kv_token_bytes) / bytes_per_s;
  const computes_s =
    prefill_tokens_per_s === undefined ? Number.POSITIVE_INFINITY : part / prefill_tokens_per_s;
  // A link that keeps up is free when the last part is there; else the parts before it are still on their way.
  return sends_s <= computes_s ? sends_s : parts * sends_s - (parts - 1) * computes_s;
}

function isWorth(
  tokens: number,
  pace: PrefillPace,
  peer: Pick<DecodePeer, 'transfer_s' | 'bytes_per_s' | 'step_s'>,
): boolean {
  if (tokens < tokens_min) return false;
  if (pace.prefill_tokens_per_s === undefined) return true;
  // One token is computed there once more: it takes an iteration that others share.
  return tokens / pace.prefill_tokens_per_s > handoverPause_s(tokens, pace, peer) + (peer.step_s ?? 0);
}

/** Most KV that is free, then most places, then the shortest way. */
function emptiestFirst(a: DecodePeer, b: DecodePeer): number {
  return (
    b.kv_tokens - a.kv_tokens ||
    b.places - a.places ||
    b.bytes_per_s - a.bytes_per_s ||
    (a.id < b.id ? -1 : 1)
  );
}

function milliseconds(seconds: number): string {
  return `${Number((1000 * seconds).toPrecision(2))} ms`;
}
