import { estimateLoad_s } from '../reuse/affinity.ts';
import { placeRank, type RequestPlace } from '../sharing/candidates.ts';
import { defaultSharingSettings } from '../sharing/settings.ts';
import { type Candidate, type RoutedRequest, type RoutingPolicy, requestsAt } from './candidate.ts';
import { leastOf } from './least-load.ts';
import { byMissCost } from './miss-cost.ts';
import { byPrefix } from './prefix-affinity.ts';
import { durationsTaken } from './service-time.ts';

/**
 * The order of the design. Replicas whose job ends before the answer is expected to come last; before that
 *
 * 1. native replicas in whose batch the request fits, in the order of `placeRank`: those with an instance before those
 *    where the model would have to be loaded; on CPUs first, which leaves GPUs to what needs them; and of those the
 *    fullest batch, since a sequence more in a batch costs less than a second batch, and devices that have nothing to
 *    do can be given to other models; where weights are streamed and no batch has begun, the device whose time and
 *    link have most room, and one whose budgets of them do not hold the request after all others;
 * 2. wrapped engines with a free place: the one on which the prompt costs least, by what it has and what it has to do
 *    (`missCost_s`); short prompts by load;
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

/** Of a replica whose engine sleeps. Lower: woken sooner; higher: others are fuller before. */
const asleep_load = 0.5;

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
      return placeRank(placeAt(candidate), defaultSharingSettings);
    },
    seed,
  );
  if (fitting) return fitting;
  const { prompt, view } = request;
  if (view ? view.tokens >= long_tokens_min : prompt) {
    const wrapped = candidates.filter((candidate) => !candidate.native);
    // Who knew it forgot it in its sleep.
    const awake = wrapped.filter((candidate) => !candidate.asleep);
    const free = awake.filter((candidate) => requestsAt(candidate) < candidate.max_sequences);
    const known = view ? byMissCost(free, awake, view, request) : byPrefix(free, wrapped, prompt!);
    if (known) return known;
  }
  return leastOf(
    candidates,
    (candidate) => {
      if (!hasPlace(candidate, queue_length)) return undefined;
      const own = requestsAt(candidate) / candidate.max_sequences;
      // To wake one takes its device from another: it is asked where others are half full.
      const load = candidate.asleep ? Math.max(asleep_load, own) : own;
      // A native replica that does not fit would let the request wait, however few sequences it computes.
      return candidate.native ? Math.max(1, load) : load;
    },
    seed,
  );
}

/**
 * Prompts of fewer tokens take less to compute than to wait for a busier replica. Lower: shorter common beginnings are
 * found; higher: they scatter.
 */
const long_tokens_min = 256;

/** A replica as a place for a request. One that rests and was asked already is on its way: requests share its load. */
function placeAt(candidate: Candidate): RequestPlace {
  const { cpu, too_slow, weights, device_taken, device_fullness, budget_load } = candidate;
  const requests = requestsAt(candidate);
  if (!weights?.resting || requests > 0) return { cpu, too_slow, stands: true, requests, budget_load };
  const load_s = estimateLoad_s(weights);
  const [taken, fullness] = [device_taken === true, device_fullness ?? 0];
  return { cpu, too_slow, stands: false, load_s, taken, fullness };
}

function isIn(excluded: readonly string[], { session_id }: Candidate): boolean {
  return excluded.includes(session_id);
}

/** Whether a request may at least wait there. */
function hasPlace(candidate: Candidate, queue_length: number): boolean {
  return requestsAt(candidate) < candidate.max_sequences + queue_length;
}

/** Its wait there included. */
function lasts(candidate: Candidate, { now_ms, expected_ms }: RoutedRequest): boolean {
  const { job_end_time_ms, max_sequences } = candidate;
  if (job_end_time_ms === undefined) return true;
  return job_end_time_ms >= now_ms + expected_ms * durationsTaken(requestsAt(candidate), max_sequences);
}

/** A free sequence, and keys and values enough for what is expected; its worker has the last word. */
function fits(candidate: Candidate, { expected_tokens }: RoutedRequest): boolean {
  if (requestsAt(candidate) >= candidate.max_sequences) return false;
  const { kv_tokens_total, kv_tokens_used, unreported } = candidate;
  if (kv_tokens_total === 0) return true;
  return kv_tokens_used + (Math.max(0, unreported) + 1) * expected_tokens <= kv_tokens_total;
}
