import { affinityCost } from '../reuse/affinity.ts';
import { type Candidate, type RoutedRequest, type RoutingPolicy, requestsAt } from './candidate.ts';
import { leastOf } from './least-load.ts';
import { byPrefix } from './prefix-affinity.ts';

/**
 * The order of the design. Replicas whose job ends before the answer is expected to come last; before that
 *
 * 1. native replicas in whose batch the request fits: on CPUs first, which leaves GPUs to what needs them, and of
 *    those the fullest batch, since a sequence more in a batch costs less than a second batch, and devices that have
 *    nothing to do can be given to other models; behind those with an instance those where the model would have to be
 *    loaded, in the order of `affinityCost`;
 * 2. wrapped engines with a free place: the one that knows the prompt's beginning, else the least load;
 * 3. of all others the least load, where requests then wait.
 *
 * @param queue_length as in `leastLoad`
 */
export function byEngine(queue_length: number): RoutingPolicy {
  return {
    queue_length,
    choose(candidates, request, excluded, seed) {
      const left = excluded.length === 0 ? candidates : candidates.filter((one) => !isIn(excluded, one));
      if (left.length <= 1) return left[0] && hasPlace(left[0], queue_length) ? left[0] : undefined;
      const lasting = left.filter((candidate) => lasts(candidate, request));
      return (
        inOrder(lasting, request, queue_length, seed) ??
        (lasting.length === left.length
          ? undefined
          : inOrder(
              left.filter((candidate) => !lasts(candidate, request)),
              request,
              queue_length,
              seed,
            ))
      );
    },
  };
}

function inOrder<T extends Candidate>(
  candidates: readonly T[],
  request: RoutedRequest,
  queue_length: number,
  seed: number,
): T | undefined {
  const fitting = leastOf(
    candidates,
    (candidate) => {
      if (!candidate.native || !fits(candidate, request)) return undefined;
      // In [0, 2) on CPUs, in [2, 4) elsewhere, in [4, 6) where the SLO cannot be kept.
      const kind = candidate.too_slow ? 4 : candidate.cpu ? 0 : 2;
      const { weights, device_taken } = candidate;
      // One that was asked already is on its way, and requests for it share one load.
      if (weights?.resting && requestsAt(candidate) === 0)
        return kind + 1 + affinityCost(weights, device_taken === true);
      // Less is fuller.
      return kind + 1 - (requestsAt(candidate) + 1) / candidate.max_sequences;
    },
    seed,
  );
  if (fitting) return fitting;
  if (request.prompt) {
    const wrapped = candidates.filter((candidate) => !candidate.native);
    const free = wrapped.filter((candidate) => requestsAt(candidate) < candidate.max_sequences);
    const known = byPrefix(free, wrapped, request.prompt);
    if (known) return known;
  }
  return leastOf(
    candidates,
    (candidate) => {
      if (!hasPlace(candidate, queue_length)) return undefined;
      const load = requestsAt(candidate) / candidate.max_sequences;
      // A native replica that does not fit would let the request wait, however few sequences it computes.
      return candidate.native ? Math.max(1, load) : load;
    },
    seed,
  );
}

function isIn(excluded: readonly string[], { session_id }: Candidate): boolean {
  return excluded.includes(session_id);
}

/** Whether a request may at least wait there. */
function hasPlace(candidate: Candidate, queue_length: number): boolean {
  return requestsAt(candidate) < candidate.max_sequences + queue_length;
}

function lasts({ job_end_time_ms }: Candidate, { now_ms, expected_ms }: RoutedRequest): boolean {
  return job_end_time_ms === undefined || job_end_time_ms >= now_ms + expected_ms;
}

/** A free sequence, and keys and values enough for what is expected; its worker has the last word. */
function fits(candidate: Candidate, { expected_tokens }: RoutedRequest): boolean {
  if (requestsAt(candidate) >= candidate.max_sequences) return false;
  const { kv_tokens_total, kv_tokens_used, unreported } = candidate;
  if (kv_tokens_total === 0) return true;
  return kv_tokens_used + (Math.max(0, unreported) + 1) * expected_tokens <= kv_tokens_total;
}
