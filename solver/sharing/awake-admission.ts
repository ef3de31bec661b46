/**
 * Would a request for one of several engines that take turns on a device break a promise, its own or another's? The
 * turns are run ahead with `nextAwake`, which decides them live, on what answers took so far (shadow validation,
 * LLM-Mesh §5.3, where a turn is as long as an engine is awake).
 */
import { awake_changes_min, nextAwake, type Sleeper } from './awake-turn.ts';
import { type RequestSlo, type TimedRequest, tokenDeadline } from './slo.ts';

/** An engine that takes turns, with what its answers take. */
export interface TimedSleeper extends Omit<Sleeper, 'running'> {
  /** Expected until each of the requests that it computes is answered, ms. */
  left_ms: readonly number[];
  /** From when a request is passed on to its first token, ms: as loaded as the engine is now. */
  first_token_ms: number;
  /** The same, to the end of its answer. */
  answer_ms: number;
}

export type TurnVerdict =
  | { admit: true }
  | {
      admit: false;
      because: string;
      /** From now until it would be let in, were nothing else to come, ms. */
      retry_after_ms: number;
    };

/** As of `attainableSlo`: what is promised, where an idle device does not keep the SLO, of what it takes there. */
const stretch = 2;
const tolerance_ms = 1e-6;

/**
 * What is promised to a request: its SLO from when its engine is awake, and twice what its first token takes where the
 * engine is idle, if that is more. A sleeping engine's waking is not counted, as loads of native models are not: a
 * request for one whose waking takes longer than its SLO would never be let in.
 * @param idle_first_token_ms a loaded engine's would let promises grow with the load
 */
export function promisedOnTurn(
  slo: RequestSlo,
  { awake, change_ms }: Pick<TimedSleeper, 'awake' | 'change_ms'>,
  idle_first_token_ms: number,
): RequestSlo {
  const ttft_ms = Math.max(slo.ttft_ms, stretch * idle_first_token_ms) + (awake ? 0 : change_ms);
  return { ...slo, ttft_ms };
}

/** A change that is under way, once the one that was awake has answered what it was given. */
export interface ChangeUnderWay {
  /** Who is awake after it; absent: one that starts on the device, and takes no turns yet. */
  id?: string | undefined;
  /** Still expected of it, ms. */
  left_ms: number;
}

/**
 * Whether `newcomer`, a request for `id` that something is promised to, may wait for its turn. The first for one that
 * sleeps may be late itself: who is refused is not seen to wait, and a neighbour that is always asked would never give
 * the device up. It moves the turn, and those that follow are measured by it.
 * @param sleepers without it
 */
export function admitToTurn(
  sleepers: readonly TimedSleeper[],
  id: string,
  newcomer: TimedRequest,
  now_ms: number,
  change?: ChangeUnderWay,
): TurnVerdict {
  const without = firstTokens(sleepers, now_ms, change);
  const joined = sleepers.map((one) =>
    one.id === id ? { ...one, waiting: [...one.waiting, newcomer] } : one,
  );
  const first_ms = firstTokens(joined, now_ms, change);
  const own_late_ms = latenessOf(newcomer, first_ms);
  const own = sleepers.find((one) => one.id === id)!;
  const movesTurn = !own.awake && own.waiting.length === 0;
  if (!movesTurn && own_late_ms > tolerance_ms)
    return {
      admit: false,
      because: `its first token would come ${whole(own_late_ms)} ms late: others have their turns before`,
      retry_after_ms: own_late_ms,
    };
  for (const { id: other, waiting, promised } of sleepers)
    for (const request of promised ? waiting : []) {
      const late_ms = latenessOf(request, first_ms);
      // One that is late without the newcomer, too, is broken already, and keeps nobody out.
      if (late_ms <= tolerance_ms || latenessOf(request, without) > tolerance_ms) continue;
      return {
        admit: false,
        because: `a request of ${other} would get its first token ${whole(late_ms)} ms late`,
        retry_after_ms: without.get(request)! - now_ms,
      };
    }
  return { admit: true };
}

function latenessOf(request: TimedRequest, first_ms: ReadonlyMap<TimedRequest, number>): number {
  return first_ms.get(request)! - tokenDeadline(request);
}

interface Simulated extends Omit<TimedSleeper, 'left_ms' | 'waiting' | 'awake_since_ms'> {
  waiting: TimedRequest[];
  /** When what it computes is answered. */
  ends_ms: number[];
  awake_since_ms: number;
}

/** When each request that waits gets its first token, were nothing else to come. */
function firstTokens(
  sleepers: readonly TimedSleeper[],
  start_ms: number,
  change?: ChangeUnderWay,
): Map<TimedRequest, number> {
  const all = sleepers.map(
    ({ left_ms, waiting, awake_since_ms = start_ms, ...one }): Simulated => ({
      ...one,
      waiting: [...waiting],
      ends_ms: left_ms.map((left) => start_ms + left),
      awake_since_ms,
    }),
  );
  const first_ms = new Map<TimedRequest, number>();
  let now_ms = start_ms;
  const handOver = (next: Simulated): void => {
    for (const request of next.waiting.splice(0)) {
      first_ms.set(request, now_ms + next.first_token_ms);
      next.ends_ms.push(now_ms + next.answer_ms);
    }
  };
  if (change) {
    now_ms = changed(all, change.id, change.left_ms, now_ms);
    // Whoever is awake now gets what waits for it before it is looked again whose turn it is.
    const next = all.find(({ id }) => id === change.id);
    if (next) handOver(next);
  }
  for (;;) {
    const seen = all.map((one) => ({ ...one, running: one.ends_ms.filter((end) => end > now_ms).length }));
    const turn = nextAwake(seen, now_ms);
    if (turn === undefined) return first_ms;
    const next = all.find(({ id }) => id === turn.id)!;
    const isAwake = next.awake;
    if (!isAwake) now_ms = changed(all, next.id, next.change_ms, now_ms);
    handOver(next);
    if (isAwake) now_ms = nextLook(next, all, now_ms);
  }
}

/** The one that is awake answers what it was given, and sleeps; then another is awake. @returns when */
function changed(
  all: readonly Simulated[],
  id: string | undefined,
  change_ms: number,
  now_ms: number,
): number {
  let then_ms = now_ms;
  for (const one of all) {
    if (!one.awake) continue;
    then_ms = Math.max(then_ms, ...one.ends_ms);
    one.awake = false;
    one.ends_ms = [];
  }
  then_ms += change_ms;
  const next = all.find((one) => one.id === id);
  if (next) {
    next.awake = true;
    next.awake_since_ms = then_ms;
  }
  return then_ms;
}

/** When the turn of the one that is awake may be over: its least length, or the end of what it computes. */
function nextLook({ awake_since_ms, ends_ms }: Simulated, all: readonly Simulated[], now_ms: number): number {
  const turns_ms = all
    .filter(({ waiting }) => waiting.length > 0)
    .map(({ change_ms }) => awake_since_ms + awake_changes_min * change_ms);
  const to_come = [...turns_ms, Math.max(now_ms, ...ends_ms)].filter((at_ms) => at_ms > now_ms);
  // At least a millisecond, so that rounding keeps no turn for ever.
  return Math.max(now_ms + 1, Math.min(...to_come, Number.MAX_SAFE_INTEGER / 2));
}

function whole(ms: number): string {
  return Math.ceil(ms).toString();
}
