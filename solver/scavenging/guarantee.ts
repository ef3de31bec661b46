/**
 * How many replicas on idle nodes may be counted on, and for how much of the time: from how long they served before
 * they had to leave, and how long it took until others served in their place.
 */
import { shareAtLeast } from './preemption-history.ts';

export interface PresenceHistory {
  /** Replicas that left: preempted, at a time limit, with their node; withdrawn ones are no matter. */
  departures: number;
  /** Hours that replicas served, all together. */
  serving_hours: number;
  /** Departures after which others served, or not yet, and the seconds without them. */
  absences: number;
  absent_s: number;
}

/**
 * Taken for seen before anything was: one departure in so many hours, and one absence of so many seconds: a load, and
 * the wait for a hole.
 */
const prior_serving_hours = 8;
const prior_absent_s = 300;
/** A number of replicas is stated that is there for this share of the time; a smaller share only for the first. */
const stated_min = 0.95;

export interface Guarantee {
  /** Of so many replicas at least so many are there. */
  replicas: number;
  at_least: number;
  /** Share of the time, 0 to 1. */
  probability: number;
}

/** Share of the time that one replica serves: mean time to leave over that and the mean absence. */
export function availability({ departures, serving_hours, absences, absent_s }: PresenceHistory): number {
  const serving_s = (3600 * (serving_hours + prior_serving_hours)) / (departures + 1);
  return serving_s / (serving_s + (absent_s + prior_absent_s) / (absences + 1));
}

/**
 * The largest number of replicas that is there for 0.95 of the time, were they to leave independently: where a large
 * job takes several at once it is less. `replicas` is at least 1.
 */
export function guaranteeOf(replicas: number, history: PresenceHistory): Guarantee {
  const p = availability(history);
  let least = replicas;
  while (least > 1 && shareAtLeast(least, replicas, p) < stated_min) least--;
  return { replicas, at_least: least, probability: shareAtLeast(least, replicas, p) };
}
