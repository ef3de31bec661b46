/**
 * Which running answers leave a worker that is about to end with their keys and values (KV), whereto, and in which
 * order; the rest goes by tokens, and is computed again. Pure: what is known is given, and nothing is remembered.
 *
 * Answers with most progress come first: theirs is the most work to lose. Of two that have come equally far, the one
 * with fewer bytes. One link carries one transfer after the other, and all of them leave by one interface, so that
 * bytes add up whichever peer they go to. An answer that does not fit into the time is passed over, and a later and
 * smaller one may.
 */

/** A running answer. */
export interface LeavingAnswer {
  id: number;
  model: string;
  /** Tokens of its answer, or answers, so far. */
  generated_tokens: number;
  /** Tokens with KV, prompt included. 0: it waits, and nothing of it would be lost. */
  computed_tokens: number;
  /** Tokens that it needs KV for where it goes on. */
  kv_tokens: number;
  kv_bytes: number;
  /** Sequences: one for each of its choices. */
  sequences: number;
  /** A gateway can have it continued; else it ends here or is asked anew. */
  continuable: boolean;
  /** Peers that refused it, or did not take it. */
  refused_by: readonly string[];
}

/** A worker that answers can go to. */
export interface EvacuationPeer {
  id: string;
  /** By model: what it could take now. */
  rooms: ReadonlyMap<string, { places: number; kv_tokens: number }>;
  /** Of the link to it, as measured or supposed. */
  bytes_per_s: number;
}

export interface EvacuationLimits {
  /** Until nothing more can be sent. */
  left_s: number;
  /** Of each transfer beside its bytes: asking, stopping the sequence, opening a way. Higher: fewer go by KV. */
  transfer_s: number;
  /** Most of the time is used at most: estimates are estimates. Lower: fewer begin that do not end. */
  used_share: number;
}

export const evacuationDefaults = { transfer_s: 0.05, used_share: 0.8 } as const;

export type EvacuationStep =
  | { id: number; by: 'kv'; peer: string; ends_s: number }
  /** `at_once`: nothing of it is computed, and somebody has a place for it. */
  | { id: number; by: 'tokens'; at_once: boolean; because: string };

/** @returns a step for each answer, those by KV first, in the order in which they are to leave */
export function planEvacuation(
  answers: readonly LeavingAnswer[],
  peers: readonly EvacuationPeer[],
  limits: EvacuationLimits,
): EvacuationStep[] {
  const rooms = new Rooms(peers);
  const budget_s = limits.left_s * limits.used_share;
  const byKv: EvacuationStep[] = [];
  const byTokens: EvacuationStep[] = [];
  let used_s = 0;
  for (const answer of [...answers].sort(mostProgressFirst)) {
    const tokens = (because: string, at_once = false): void =>
      void byTokens.push({ id: answer.id, by: 'tokens', at_once, because });
    if (!answer.continuable) {
      tokens('its client cannot have it continued');
      continue;
    }
    if (answer.computed_tokens === 0) {
      const place = rooms.best(answer);
      if (place) rooms.take(place, answer);
      tokens('nothing of it is computed', place !== undefined);
      continue;
    }
    const peer = rooms.best(answer);
    if (!peer) {
      tokens(rooms.whyNone(answer));
      continue;
    }
    const took_s = limits.transfer_s + answer.kv_bytes / peer.bytes_per_s;
    if (used_s + took_s > budget_s) {
      tokens(`${round(took_s)} s are needed for it, and ${round(Math.max(0, budget_s - used_s))} s are left`);
      continue;
    }
    used_s += took_s;
    rooms.take(peer, answer);
    byKv.push({ id: answer.id, by: 'kv', peer: peer.id, ends_s: used_s });
  }
  return [...byKv, ...byTokens];
}

function mostProgressFirst(a: LeavingAnswer, b: LeavingAnswer): number {
  return (
    b.generated_tokens - a.generated_tokens ||
    b.computed_tokens - a.computed_tokens ||
    a.kv_bytes - b.kv_bytes ||
    a.id - b.id
  );
}

/** What is left at each peer while answers are given to them. */
class Rooms {
  readonly #peers: readonly EvacuationPeer[];
  readonly #left = new Map<string, { places: number; kv_tokens: number }>();

  constructor(peers: readonly EvacuationPeer[]) {
    this.#peers = peers;
    for (const { id, rooms } of peers)
      for (const [model, { places, kv_tokens }] of rooms)
        this.#left.set(keyOf(id, model), { places, kv_tokens });
  }

  /** Of those that have room the one with the fastest link; of equally fast ones the emptiest. */
  best(answer: LeavingAnswer): EvacuationPeer | undefined {
    const fitting = this.#peers.filter((peer) => this.#fits(peer, answer));
    const placesAt = ({ id }: EvacuationPeer): number => this.#left.get(keyOf(id, answer.model))!.places;
    return fitting.sort(
      (a, b) => b.bytes_per_s - a.bytes_per_s || placesAt(b) - placesAt(a) || (a.id < b.id ? -1 : 1),
    )[0];
  }

  take({ id }: EvacuationPeer, { model, sequences, kv_tokens }: LeavingAnswer): void {
    const left = this.#left.get(keyOf(id, model))!;
    left.places -= sequences;
    left.kv_tokens -= kv_tokens;
  }

  whyNone({ model, refused_by }: LeavingAnswer): string {
    const serving = this.#peers.filter(({ rooms }) => rooms.has(model));
    if (serving.length === 0) return `nobody else serves ${model}`;
    if (serving.every(({ id }) => refused_by.includes(id))) return 'all that serve its model refused it';
    return `nobody who serves ${model} has room for it`;
  }

  #fits({ id }: EvacuationPeer, { model, sequences, kv_tokens, refused_by }: LeavingAnswer): boolean {
    const left = this.#left.get(keyOf(id, model));
    if (!left || refused_by.includes(id)) return false;
    return left.places >= sequences && left.kv_tokens >= kv_tokens;
  }
}

function keyOf(id: string, model: string): string {
  return `${id} ${model}`;
}

function round(seconds: number): number {
  return Math.round(seconds * 100) / 100;
}
