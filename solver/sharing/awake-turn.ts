/**
 * Engines that take turns on one device: one is awake, the others wait in host memory. LLM-Mesh's order by headroom
 * (§5), where a turn is not an iteration but as long as an engine is awake, for waking moves all of its weights.
 */
import { headroom, type TimedRequest } from './slo.ts';

export interface Sleeper {
  id: string;
  awake: boolean;
  /** Requests that it computes. */
  running: number;
  /** Requests that it was not given yet. */
  waiting: readonly TimedRequest[];
  /** Its deployment has an SLO; others take turns in time that no promise needs. */
  promised: boolean;
  /** Until it is awake: what sleeps before it included. Of the one that is awake it says nothing. */
  change_ms: number;
  /** Of the one that is awake: since when. */
  awake_since_ms?: number | undefined;
}

/**
 * An engine that has requests stays awake for so many times what a change takes. Lower: others wait less; higher: less
 * of the device's time goes into changes, at most 1/(1 + n) of it.
 */
export const awake_changes_min = 4;

export interface AwakeTurn {
  /** Whose turn it is: it is woken where it sleeps, once the one that is awake has answered what it was given. */
  id: string;
  because: string;
}

/**
 * Whose turn it is: of those with waiting requests the one whose most urgent has the least headroom, what waking takes
 * counted in; those whose requests are promised something before all others. The one that is awake goes on while its
 * turn is short, unless it keeps a promise waiting and is bound by none itself.
 * @returns undefined where nobody waits
 */
export function nextAwake(sleepers: readonly Sleeper[], now_ms: number): AwakeTurn | undefined {
  const asked = sleepers
    .filter(({ waiting }) => waiting.length > 0)
    .map((sleeper) => {
      const least = Math.min(...sleeper.waiting.map((request) => headroom(request, now_ms)));
      return { sleeper, headroom_ms: sleeper.awake ? least : least - sleeper.change_ms };
    })
    .sort((a, b) => Number(b.sleeper.promised) - Number(a.sleeper.promised) || a.headroom_ms - b.headroom_ms);
  const [first] = asked;
  if (first === undefined) return undefined;
  const { sleeper, headroom_ms } = first;
  const due = `its most urgent request has ${Math.round(headroom_ms)} ms left`;
  if (sleeper.awake) return { id: sleeper.id, because: due };
  const awake = sleepers.find((one) => one.awake);
  const isAsked = awake !== undefined && (awake.running > 0 || awake.waiting.length > 0);
  const turn_ms = awake_changes_min * sleeper.change_ms;
  const isSpared = isAsked && (awake.promised || !sleeper.promised);
  if (isSpared && now_ms - (awake.awake_since_ms ?? now_ms) < turn_ms)
    return {
      id: awake.id,
      because: `it is awake for less than ${awake_changes_min} times what a change takes`,
    };
  return { id: sleeper.id, because: due };
}
