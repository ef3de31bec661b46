/** Who serves the bursts: the live decision, single pipelines that stay as they are, and systems like the paper's. */
import { granularity_settings } from '../../solver/granularity/control.ts';
import { passRate_per_s } from '../../solver/granularity/granularity.ts';
import { alwaysOnDevices, floor_settings } from '../../solver/locality/always-on-floor.ts';
import {
  adaptivePolicy,
  alpaServeLike,
  muxServeLike,
  reservedPolicy,
  serverlessLlmLike,
  staticPolicy,
  tetrisLike,
} from '../../solver/pipeline-simulator/policies.ts';
import type { PipelinePolicy } from '../../solver/pipeline-simulator/policy.ts';
import { opt66b, passes_mean } from './opt-66b.ts';

/** In which most answers have to be there, for Eq. 12. */
const deadline_s = 4;
/** Stages of the pipelines of others: what AlpaServe's plan for the mean rate comes to. */
const stages = 4;

/** Devices of the coarsest pipeline that carries the surges: the peak, of which a share is always on. */
function peakDevices(peak_per_s: number): number {
  const { utilization_max } = granularity_settings;
  const carries = opt66b.find(
    (granularity) => utilization_max * passRate_per_s(granularity) >= peak_per_s * passes_mean,
  );
  return carries?.stages ?? opt66b.at(-1)!.stages;
}

/** Made anew for every run: policies remember. */
export function contestants(
  rate_per_s: number,
  peak_per_s: number,
  on_change: (now_ms: number, because: string) => void,
): PipelinePolicy[] {
  const planned = alpaServeLike(opt66b, rate_per_s * passes_mean);
  const { instances } = planned.first;
  const floor = alwaysOnDevices(peakDevices(peak_per_s), stages * instances, floor_settings);
  const first = { stages, instances: Math.floor(floor / stages) };
  return [
    adaptivePolicy({
      settings: granularity_settings,
      first,
      always_on_devices: stages * first.instances,
      passes_per_request: passes_mean,
      deadline_s,
      on_change,
    }),
    staticPolicy(4),
    staticPolicy(8),
    staticPolicy(16),
    planned,
    muxServeLike(stages, 2 * instances, { period_ms: 60_000, busy_part: 0.4, share: 0.5 }),
    serverlessLlmLike(stages, 8),
    tetrisLike(stages, 8),
    reservedPolicy(stages, instances, 8),
  ];
}
