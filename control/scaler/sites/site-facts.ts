/** What a site says of itself, from what its keeper sees. Pure. */
import { type DemandSample, demandOver, type ScalingSettings } from '../../../solver/scaling/scale.ts';
import type { ModelSpec } from '../../../spec/model-yaml.ts';
import type { Observation } from '../../reconcile/observe.ts';
import { type DeploymentState, wantedLaunches } from '../../state/deployment-state.ts';
import { replicasOf, serves, wakeTime_s } from '../replicas.ts';
import type { SiteRoom } from './site-room.ts';
import type { SiteFacts } from './sites-scaler.ts';

/**
 * A replica that does not serve after so many times a usual start, and after so long at least, is not counted on.
 * Lower: other sites step in sooner; higher: fewer replicas that start in vain because a queue was long.
 */
const stuck_factor = 3;
const stuck_s_min = 120;

export interface SeenHere {
  now_ms: number;
  demand: { samples: readonly DemandSample[]; asked_ms?: number; ttft_ms?: number };
  settings: Pick<ScalingSettings, 'window_ms' | 'average_ms'>;
  slots: number;
  room: SiteRoom;
}

export function factsHere(
  state: DeploymentState,
  observation: Observation,
  { name, slo }: ModelSpec,
  { now_ms, demand, settings, slots, room }: SeenHere,
): SiteFacts {
  const { mean, peak, seen } = demandOver(demand.samples, now_ms, settings);
  const { window_ms } = settings;
  const wake_s = wakeTime_s(state, name);
  const before_ms = now_ms - 1000 * Math.max(stuck_factor * wake_s, stuck_s_min);
  return {
    mean: rounded(mean),
    peak: rounded(Math.max(mean, peak)),
    asked: demand.asked_ms !== undefined && demand.asked_ms > now_ms - window_ms,
    late: demand.ttft_ms !== undefined && slo.ttft_ms !== undefined && demand.ttft_ms > slo.ttft_ms,
    seen,
    settled: (state.scaled?.[name]?.changed_ms ?? 0) <= now_ms - window_ms,
    ...replicasOf(state, observation, name),
    stuck: stuckOf(state, observation, name, before_ms),
    limit: room.limit,
    ready: room.ready,
    cost: room.cost,
    slots,
    wake_s,
  };
}

/** Replicas submitted before then that do not serve. */
function stuckOf(state: DeploymentState, observation: Observation, model: string, before_ms: number): number {
  let stuck = 0;
  for (const launch of wantedLaunches(state)) {
    const { given_up, submitting_since_ms = Number.POSITIVE_INFINITY } = launch;
    if (given_up !== undefined || !serves(launch, model) || submitting_since_ms > before_ms) continue;
    const serving = observation.launches.get(launch.launch_id)?.serving_units ?? [];
    stuck += launch.planned.units.filter(
      ({ unit, model: { name } }) => name === model && !serving.includes(unit),
    ).length;
  }
  return stuck;
}

/** Two digits say enough, and most statements are then what the one before was. */
function rounded(value: number): number {
  return Number(value.toPrecision(2));
}
