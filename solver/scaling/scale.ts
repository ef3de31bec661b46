/**
 * How many replicas a model is to have, from what it was asked lately: more at once where they are needed, fewer only
 * when they were not for a whole window, none where that is allowed and nobody asks. Pure: the keeper and the
 * simulation call it.
 */

/** What gateways saw at one time. */
export interface DemandSample {
  at_ms: number;
  /** Requests in computation and waiting, on average since the sample before. */
  concurrency: number;
}

export interface ScalingSettings {
  /** Always on; 0: the model may sleep. */
  replicas_min: number;
  replicas_max: number;
  /** Share of a replica's sequences that is to be in use. Lower: shorter waits; higher: fewer replicas. */
  target: number;
  /**
   * Reclamation window: a replica goes when it was not needed for so long, ms. Lower: fewer idle hours, more starts.
   */
  window_ms: number;
  /** Demand is averaged over so long before it counts, ms. Lower: reacts sooner, also to bursts that are over soon. */
  average_ms: number;
}

/** Hysteresis: a replica goes only if the others would then be in use by no more than this share of the target. */
export const down_share = 0.8;
/**
 * An objective that is missed is not the fault of too few replicas where these are less in use than this share of the
 * target.
 */
export const busy_share = 0.5;

export interface ScalingQuestion {
  now_ms: number;
  /** Replicas that are wanted now; of them, those that serve. */
  replicas: number;
  serving: number;
  /** Sequences that one replica computes at once. */
  slots: number;
  /** Oldest first; they must reach back for a whole window before anything is taken away. */
  samples: readonly DemandSample[];
  /** When the model was last asked; absent: never. */
  asked_ms?: number;
  /** When the number of replicas last changed. */
  changed_ms: number;
  /** Measured time to first token, and what is promised. */
  ttft_ms?: number;
  slo_ttft_ms?: number;
  settings: ScalingSettings;
}

export interface ScalingDecision {
  replicas: number;
  because: string;
}

export function scale(question: ScalingQuestion): ScalingDecision {
  const { now_ms, replicas, slots, samples, settings } = question;
  const { replicas_min, replicas_max, target, window_ms } = settings;
  const bounded = (wanted: number): number => Math.max(replicas_min, Math.min(replicas_max, wanted));
  const asked = question.asked_ms !== undefined && question.asked_ms > now_ms - window_ms;
  const { mean: load, peak: most, seen } = demandOver(samples, now_ms, settings);

  const wanted = Math.max(need(load, target * slots), Number(asked), missesObjective(question, load));
  const up = bounded(wanted);
  if (up > replicas) return { replicas: up, because: upBecause(question, load, wanted) };

  const down = bounded(Math.max(need(most, down_share * target * slots), Number(asked)));
  const settled = question.changed_ms <= now_ms - window_ms;
  if (down >= replicas || !seen || !settled) return { replicas, because: 'as many as are needed' };
  const window_s = Math.round(window_ms / 1000);
  return {
    replicas: down,
    because:
      most === 0
        ? `nobody has asked for ${window_s} s`
        : `at most ${figure(most)} requests at once in ${window_s} s`,
  };
}

export interface DemandSeen {
  /** Requests at once, on average of late, and the most of a window's averages. */
  mean: number;
  peak: number;
  /** Samples reach back for a whole window. */
  seen: boolean;
}

/** What samples come to. */
export function demandOver(
  samples: readonly DemandSample[],
  now_ms: number,
  settings: Pick<ScalingSettings, 'window_ms' | 'average_ms'>,
): DemandSeen {
  const means = averages(samples, now_ms, settings);
  const seen = (samples[0]?.at_ms ?? now_ms) <= now_ms - settings.window_ms;
  return { mean: means.at(-1) ?? 0, peak: Math.max(0, ...means), seen };
}

function need(concurrency: number, per_replica: number): number {
  // A rounding error must not start a replica.
  return Math.ceil(concurrency / per_replica - 1e-9);
}

/** One more where the objective is missed, all replicas serve, and they are busy enough for that to help. */
function missesObjective(
  { ttft_ms, slo_ttft_ms, replicas, serving, slots, settings }: ScalingQuestion,
  load: number,
): number {
  if (ttft_ms === undefined || slo_ttft_ms === undefined || ttft_ms <= slo_ttft_ms) return 0;
  const busy = load >= busy_share * settings.target * slots * replicas;
  return serving >= replicas && busy ? replicas + 1 : 0;
}

function upBecause({ replicas, ttft_ms, slots }: ScalingQuestion, load: number, wanted: number): string {
  if (wanted === 0) return 'so many are always on';
  if (replicas === 0) return 'a request came';
  if (need(load, slots) <= replicas && wanted === replicas + 1 && ttft_ms !== undefined)
    return `${figure(load)} requests at once, first tokens after ${Math.round(ttft_ms)} ms`;
  return `${figure(load)} requests at once, and a replica computes ${slots}`;
}

/** Means of demand over spans of `average_ms` within the window, the current span last. */
function averages(
  samples: readonly DemandSample[],
  now_ms: number,
  { window_ms, average_ms }: Pick<ScalingSettings, 'window_ms' | 'average_ms'>,
): number[] {
  const sums = new Map<number, { sum: number; count: number }>();
  for (const { at_ms, concurrency } of samples) {
    const age_ms = now_ms - at_ms;
    if (age_ms < 0 || age_ms > window_ms) continue;
    const span = Math.floor(age_ms / average_ms);
    const { sum, count } = sums.get(span) ?? { sum: 0, count: 0 };
    sums.set(span, { sum: sum + concurrency, count: count + 1 });
  }
  return [...sums].sort(([a], [b]) => b - a).map(([, { sum, count }]) => sum / count);
}

export function figure(value: number): string {
  return value.toFixed(value < 10 ? 1 : 0);
}
