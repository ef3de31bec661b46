/** A model whose replicas come and go by `scale`, under arrivals that rise and fall: the judge of its settings. */

import { type DemandSample, type ScalingSettings, scale } from '../../../solver/scaling/scale.ts';
import { exponential, seededRandom } from '../../../solver/simulator/random.ts';

export interface ScalingWorld {
  seed: number;
  seconds: number;
  /** Requests a second that arrive at a time, and the highest there is. */
  rate_per_s: (at_s: number) => number;
  rate_max_per_s: number;
  /** How long a request is computed, and how many a replica computes at once. */
  service_s: number;
  slots: number;
  /** From the decision until a replica serves. */
  lead_s: number;
  /** Between two looks. */
  tick_s: number;
  settings: ScalingSettings;
}

export interface ScalingOutcome {
  /** Of each request, in order of arrival: how long it waited for a place, seconds. */
  waits_s: number[];
  /** Replicas × seconds that were paid for. */
  replica_s: number;
  /** Number of replicas after each change, with its time. */
  changes: { at_s: number; replicas: number }[];
}

/** Requests are taken in order of arrival; a replica that goes ends its requests first, as a drain does. */
export function simulateScaling(world: ScalingWorld): ScalingOutcome {
  const { seconds, slots, service_s, lead_s, tick_s, settings } = world;
  const arrivals = poisson(world);
  const outcome: ScalingOutcome = { waits_s: [], replica_s: 0, changes: [] };
  /** When each replica serves; the newest last. */
  let ready_s: number[] = Array.from({ length: settings.replicas_min }, () => 0);
  let changed_s = 0;
  let asked_s: number | undefined;
  let next = 0;
  const waiting: number[] = [];
  let running: number[] = [];
  const samples: DemandSample[] = [];
  for (let now_s = 0; now_s < seconds; now_s += tick_s) {
    running = running.filter((end_s) => end_s > now_s);
    for (; next < arrivals.length && arrivals[next]! <= now_s; next++) {
      waiting.push(arrivals[next]!);
      asked_s = arrivals[next]!;
    }
    const serving = ready_s.filter((at_s) => at_s <= now_s).length;
    while (waiting.length > 0 && running.length < serving * slots) {
      outcome.waits_s.push(now_s - waiting.shift()!);
      running.push(now_s + service_s);
    }
    samples.push({ at_ms: 1000 * now_s, concurrency: running.length + waiting.length });
    if (samples[0]!.at_ms < 1000 * (now_s - tick_s) - settings.window_ms) samples.shift();
    const decided = scale({
      now_ms: 1000 * now_s,
      replicas: ready_s.length,
      serving,
      slots,
      samples,
      asked_ms: asked_s === undefined ? undefined : 1000 * asked_s,
      changed_ms: 1000 * changed_s,
      settings,
    });
    if (decided.replicas !== ready_s.length) {
      ready_s =
        decided.replicas < ready_s.length
          ? ready_s.slice(0, decided.replicas)
          : [...ready_s, ...Array.from({ length: decided.replicas - ready_s.length }, () => now_s + lead_s)];
      changed_s = now_s;
      outcome.changes.push({ at_s: now_s, replicas: decided.replicas });
    }
    outcome.replica_s += ready_s.length * tick_s;
  }
  return outcome;
}

/** Arrivals of a Poisson process whose rate changes, by thinning one of the highest rate. */
function poisson({ seed, seconds, rate_per_s, rate_max_per_s }: ScalingWorld): number[] {
  const random = seededRandom(seed);
  const times: number[] = [];
  for (let at_s = exponential(random) / rate_max_per_s; at_s < seconds; ) {
    if (random() * rate_max_per_s < rate_per_s(at_s)) times.push(at_s);
    at_s += exponential(random) / rate_max_per_s;
  }
  return times;
}
