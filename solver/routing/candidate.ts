import type { ModelWeights } from '../../spec/agent-state.ts';
import type { PromptView } from './model-prefixes.ts';

/** What a routing policy knows of one replica. Loads change with every request, the rest with the session's record. */
export interface Candidate {
  readonly session_id: string;
  /** Sequences in computation, and requests waiting, as the replica last said. */
  readonly running: number;
  readonly waiting: number;
  /** Most sequences the replica computes at once. */
  readonly max_sequences: number;
  /** Requests this gateway sent to it minus answers it had from it since the replica last said so. */
  readonly unreported: number;
  /** Requests this gateway sent to it of which nothing has come back: it has them, whatever it last said. */
  readonly unanswered: number;
  /** Room for keys and values, as the replica last said; 0 of 0 where it does not say. */
  readonly kv_tokens_total: number;
  readonly kv_tokens_used: number;
  /** Computed by hpcserve's own engine, which can batch and continue anything; else by a wrapped one. */
  readonly native: boolean;
  /** Runs on CPU devices alone; a CPU that stands in for a GPU counts as the GPU. */
  readonly cpu: boolean;
  /** Its device is too slow for the model's SLO, even without other work. */
  readonly too_slow?: boolean;
  /** Its engine sleeps while another has their device: a request wakes it when its turn comes. */
  readonly asleep?: boolean;
  /** What of the model lies in its device's memory; absent where it does not say. */
  readonly weights?: ModelWeights | undefined;
  /** Its device loads another model, for requests that came before. */
  readonly device_taken?: boolean;
  /** See `fullnessOf` of `solver/sharing`; absent where nothing is known of what else its device serves. */
  readonly device_fullness?: number;
  /**
   * Of a model whose weights are streamed there, see `requestLoad` of `solver/streaming`; absent where its device tells
   * nothing that says so.
   */
  readonly budget_load?: number | undefined;
  /** When its job ends, Unix ms; absent where nothing ends it. */
  readonly job_end_time_ms?: number | undefined;
}

export type CandidateRequests = Pick<Candidate, 'running' | 'waiting' | 'unreported' | 'unanswered'>;

/** What a routing policy knows of the request. */
export interface RoutedRequest {
  /** Unix ms. */
  now_ms: number;
  /** How long the answer is expected to take, and how long prompt and answer are expected to be. */
  expected_ms: number;
  expected_tokens: number;
  /** See `promptKeys`; absent: no replica is likelier than another to know the prompt's beginning. */
  prompt?: PromptKeys | undefined;
  /** What is known of the prompt and of who has computed some of it; absent: nothing. */
  view?: PromptView | undefined;
}

/** Two hashes of a prompt's beginning. */
export interface PromptKeys {
  /** Equal for prompts that begin alike: whose keys and values may be there already. */
  prefix: number;
  /** Equal for the requests of one conversation. */
  conversation: number;
}

/** Decides who answers. A pure function of what it is given: no clock, no randomness but the seed. */
export interface RoutingPolicy {
  /** Requests that may wait at one replica beyond those it computes. */
  readonly queue_length: number;
  /**
   * The candidate to send a request to; undefined where all are full or excluded.
   *
   * @param excluded candidates that were tried already, by session id
   * @param seed any 32-bit integer: the same one chooses the same way
   */
  choose<T extends Candidate>(
    candidates: readonly T[],
    request: RoutedRequest,
    excluded: readonly string[],
    seed: number,
  ): T | undefined;
}

/**
 * Requests that a candidate computes, has waiting, or is being sent. What it said of itself may be older than requests
 * on their way to it, which are counted by their sender.
 */
export function requestsAt({ running, waiting, unreported, unanswered }: CandidateRequests): number {
  return Math.max(unanswered, running + waiting + unreported);
}
