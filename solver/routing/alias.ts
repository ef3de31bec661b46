/** An alias that several models give: which of them answers. */
import { type Candidate, requestsAt } from './candidate.ts';

/** One model of an alias, with those of its replicas that may answer. */
export interface AliasMember<T extends Candidate> {
  model: string;
  candidates: readonly T[];
  /** What its deployment promises; absent: nothing. */
  slo?: { ttft_ms?: number | undefined; tpot_ms?: number | undefined } | undefined;
  /** Means of recent answers; absent where none was measured. */
  ttft_ms?: number | undefined;
  tpot_ms?: number | undefined;
  duration_ms?: number | undefined;
}

/**
 * The models in the order in which to ask them: those first that are expected to keep their objectives, and among
 * each kind by load. A model that promises nothing, or of which nothing is known yet, is taken to keep what it
 * promises: otherwise it would never be asked, and nothing would ever be known.
 */
export function orderMembers<T extends Candidate>(members: readonly AliasMember<T>[]): AliasMember<T>[] {
  return members
    .map((member) => ({ member, keeps: keepsObjectives(member), load: loadOf(member.candidates) }))
    .sort(
      (a, b) =>
        Number(b.keeps) - Number(a.keeps) || a.load - b.load || (a.member.model < b.member.model ? -1 : 1),
    )
    .map(({ member }) => member);
}

function keepsObjectives<T extends Candidate>(member: AliasMember<T>): boolean {
  const { slo, ttft_ms, tpot_ms } = member;
  if (slo?.tpot_ms !== undefined && tpot_ms !== undefined && tpot_ms > slo.tpot_ms) return false;
  if (slo?.ttft_ms === undefined) return true;
  return (ttft_ms ?? 0) + expectedWait(member.candidates, member.duration_ms ?? 0) <= slo.ttft_ms;
}

/** Requests over places, of all replicas together. */
function loadOf(candidates: readonly Candidate[]): number {
  let requests = 0;
  let places = 0;
  for (const candidate of candidates) {
    requests += requestsAt(candidate);
    places += candidate.max_sequences;
  }
  return places === 0 ? Number.POSITIVE_INFINITY : requests / places;
}

/**
 * Until the best of the replicas begins with one more request: one that computes c sequences at once, each for D,
 * ends c/D a second (Little's law), so (requests − c + 1) · D / c.
 *
 * @param duration D, in the unit of the result
 */
export function expectedWait(candidates: readonly Candidate[], duration: number): number {
  let least = Number.POSITIVE_INFINITY;
  for (const candidate of candidates) {
    const ahead = requestsAt(candidate) - candidate.max_sequences + 1;
    least = Math.min(least, (Math.max(0, ahead) * duration) / candidate.max_sequences);
  }
  return least;
}
