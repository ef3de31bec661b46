/** What is asked of `decideGranularity` for one pipeline that serves: its share of what gateways measure. */
import type { ArrivalStatistics, ArrivalWindow } from './arrival-windows.ts';
import { congestedStages, type StageQueue } from './congested-stages.ts';
import {
  type ControlMemory,
  type GranularityQuestion,
  type GranularitySettings,
  granularity_settings,
} from './control.ts';
import type { Granularity } from './granularity.ts';

export interface LivePipeline {
  stages: number;
  /** Those it may have, each with its stages on as many devices, the coarsest first; the present one among them. */
  granularities: readonly Granularity[];
  /** Largest stage of each, by the order of `granularities`. */
  stage_bytes: readonly number[];
  /** At which weights come to a device that lacks them. */
  load_bytes_per_s: number;
  /** Of one request: a token of its answer, or a chunk of its prompt. */
  passes_per_request: number;
  /** By what its stages take, another cut into as many is faster; absent: not, or nothing was measured. */
  uneven?: boolean;
}

export interface LiveLoad {
  /** Of the model, over all gateways. */
  arrivals: ArrivalStatistics;
  /** Requests that are at gateways or in a pipeline. */
  in_flight: number;
  /** Pipelines of the model that serve: each has an even share. */
  replicas: number;
  /** First tokens are due within so long. */
  deadline_s: number;
  changing: boolean;
  /** Answers of the model stall (`StallMonitor`). */
  stalled: boolean;
  /** Of its stages, in their order, as its coordinator says; absent: it does not. */
  queues?: readonly StageQueue[] | undefined;
}

export function liveQuestion(
  now_ms: number,
  pipeline: LivePipeline,
  load: LiveLoad,
  memory: ControlMemory | undefined,
): GranularityQuestion {
  const { stages, granularities, stage_bytes, load_bytes_per_s } = pipeline;
  const own = granularities.find((each) => each.stages === stages);
  const batch_max = own?.batch_max ?? 1;
  return {
    now_ms,
    // A pipeline stays one pipeline: further ones are replicas, of which the scaler decides.
    options: granularities.map((granularity, index) => ({
      granularity,
      devices_max: granularity.stages,
      load_s: granularity.stages === stages ? 0 : stage_bytes[index]! / load_bytes_per_s,
    })),
    current: { stages, instances: 1 },
    changing: load.changing,
    arrivals: shareOf(load.arrivals, load.replicas),
    passes_per_request: pipeline.passes_per_request,
    waiting_requests: Math.max(0, load.in_flight / load.replicas - batch_max),
    waiting_max: batch_max,
    // What was measured last stays as it is while nothing is computed.
    stalled: load.stalled && load.in_flight > 0,
    congested: load.in_flight > 0 ? congestedStages(load.queues ?? []) : [],
    uneven: pipeline.uneven ?? false,
    deadline_s: load.deadline_s,
    settings: settingsFor(granularities),
    memory,
  };
}

/**
 * The coarsest is best for even arrivals and where nothing waits (Eq. 11), the finest where a full queue meets
 * bursts.
 */
function settingsFor(granularities: readonly Granularity[]): GranularitySettings {
  const [coarsest, finest] = [granularities[0]!.stages, granularities.at(-1)!.stages];
  return {
    ...granularity_settings,
    // A change costs a pause, and reads weights: what is only chance is no reason for one.
    rate_errors: 2,
    consolidate_margin: 1.25,
    stages_at_one: coarsest,
    scaling: { ...granularity_settings.scaling, stages_max: finest, offset: finest / coarsest - 1 },
  };
}

function shareOf(arrivals: ArrivalStatistics, replicas: number): ArrivalStatistics {
  return {
    ...arrivals,
    windows: arrivals.windows.map((window) => ({ ...window, rate_per_s: window.rate_per_s / replicas })),
    rate_per_s: arrivals.rate_per_s / replicas,
    rate_peak_per_s: arrivals.rate_peak_per_s / replicas,
    gradient_per_s2: arrivals.gradient_per_s2 / replicas,
  };
}

/**
 * What several gateways see together: rates add up, also those of peaks, which may not have been at once; the CV is
 * that of the gateway that sees most.
 */
export function combineArrivals(all: readonly ArrivalStatistics[]): ArrivalStatistics | undefined {
  const [first] = [...all].sort((a, b) => gapsOf(b) - gapsOf(a));
  if (first === undefined) return undefined;
  const sum = (of: (each: ArrivalStatistics) => number): number =>
    all.reduce((total, each) => total + of(each), 0);
  return {
    windows: first.windows.map(
      (window, index): ArrivalWindow => ({
        ...window,
        gaps: sum(({ windows }) => windows[index]?.gaps ?? 0),
        rate_per_s: sum(({ windows }) => windows[index]?.rate_per_s ?? 0),
      }),
    ),
    rate_per_s: sum(({ rate_per_s }) => rate_per_s),
    rate_peak_per_s: sum(({ rate_peak_per_s }) => rate_peak_per_s),
    peak_seen: all.every(({ peak_seen }) => peak_seen),
    cv: first.cv,
    gradient_per_s2: sum(({ gradient_per_s2 }) => gradient_per_s2),
  };
}

function gapsOf({ windows }: ArrivalStatistics): number {
  return windows.at(-1)?.gaps ?? 0;
}
