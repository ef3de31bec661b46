/** How many replicas a model has in a deployment's state, and how that is written down. Pure. */
import { lyingSo, residencyOf, residencyOfMost } from '../../solver/placement/decided-model.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { Observation } from '../reconcile/observe.ts';
import { type DeploymentState, wantedLaunches } from '../state/deployment-state.ts';
import type { LaunchRecord } from '../state/launch-record.ts';

/** Taken for the time of a start until one was measured, s. */
const wake_s_default = 60;

type Scaled = NonNullable<DeploymentState['scaled']>[string];

/** Whole jobs of this model alone, `count` replicas at most: those that do not serve first, then the youngest. */
export function launchesToRemove(state: DeploymentState, model: string, count: number): LaunchRecord[] {
  const own = wantedLaunches(state).filter(
    ({ planned, given_up }) =>
      given_up === undefined &&
      // A job with stages of a replica of another model answers for no unit.
      planned.part === undefined &&
      planned.units.every((unit) => unit.model.name === model),
  );
  own.sort(
    (a, b) =>
      Number(a.served_at_ms !== undefined) - Number(b.served_at_ms !== undefined) ||
      (b.submitting_since_ms ?? Number.POSITIVE_INFINITY) -
        (a.submitting_since_ms ?? Number.POSITIVE_INFINITY),
  );
  let left = count;
  return own.filter(({ planned: { units } }) => {
    if (units.length > left) return false;
    left -= units.length;
    return true;
  });
}

export function serves({ planned }: LaunchRecord, model: string): boolean {
  return planned.units.some((unit) => unit.model.name === model);
}

/** Replicas that are wanted, ended ones that get a successor included, and those that serve. */
export function replicasOf(
  state: DeploymentState,
  observation: Observation | undefined,
  name: string,
): { have: number; serving: number } {
  let have = 0;
  let serving = 0;
  for (const launch of wantedLaunches(state)) {
    if (launch.given_up !== undefined) continue;
    const units = launch.planned.units.filter((unit) => unit.model.name === name);
    const now = observation?.launches.get(launch.launch_id)?.serving_units ?? [];
    have += units.length;
    serving += units.filter(({ unit }) => now.includes(unit)).length;
  }
  return { have, serving };
}

/** With its weights where those of its replicas lie, where that was left to the plan: further ones are like them. */
export function asItRuns(state: DeploymentState, model: ModelSpec): ModelSpec {
  if (model.weights !== 'auto') return model;
  const units = wantedLaunches(state)
    .filter(({ given_up }) => given_up === undefined)
    .flatMap(({ planned }) => planned.units.filter((unit) => unit.model.name === model.name));
  const weights = residencyOfMost(units.map((unit) => ({ weights: residencyOf(unit), replicas: 1 })));
  return weights === undefined ? model : lyingSo(model, weights);
}

/**
 * The new number written down, with what it means for those who ask.
 * @param over_sites whether it sleeps is said of all sites: see `withSleep`
 */
export function changedTo(
  state: DeploymentState,
  model: string,
  now_ms: number,
  over_sites: boolean,
): DeploymentState {
  const { have: replicas } = replicasOf(state, undefined, model);
  const before = state.scaled?.[model];
  const scaled: Scaled = { changed_ms: now_ms, wake_s: wakeTime_s(state, model) };
  const models = state.models.map((each) => (each.model === model ? { ...each, replicas } : each));
  if (over_sites) return { ...state, scaled: { ...state.scaled, [model]: { ...before, ...scaled } }, models };
  if (replicas === 0) scaled.asleep_since_ms = now_ms;
  else if (before?.asleep_since_ms !== undefined) {
    scaled.asleep_since_ms = before.asleep_since_ms;
    scaled.waking_since_ms = now_ms;
  }
  return { ...state, scaled: { ...state.scaled, [model]: scaled }, models };
}

export function awake(state: DeploymentState, model: string, now_ms: number): DeploymentState {
  const before = state.scaled?.[model];
  const scaled: Scaled = {
    changed_ms: before?.changed_ms ?? now_ms,
    wake_s: wakeTime_s(state, model),
  };
  return { ...state, scaled: { ...state.scaled, [model]: scaled } };
}

/** From submission to serving, the longest of the launches that are remembered. */
function startTime_s(state: DeploymentState, model: string): number | undefined {
  const times_s = state.launches.flatMap(({ planned, submitting_since_ms, served_at_ms }) =>
    planned.units.some((unit) => unit.model.name === model) &&
    submitting_since_ms !== undefined &&
    served_at_ms !== undefined
      ? [(served_at_ms - submitting_since_ms) / 1000]
      : [],
  );
  return times_s.length === 0 ? undefined : Math.max(1, ...times_s);
}

/** How long a start is expected to take, s. */
export function wakeTime_s(state: DeploymentState, model: string): number {
  return startTime_s(state, model) ?? state.scaled?.[model]?.wake_s ?? wake_s_default;
}
