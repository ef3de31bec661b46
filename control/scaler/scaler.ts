import { type ScalingDecision, scale } from '../../solver/scaling/scale.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { PlannedLaunch, PlannedWorkload } from '../../spec/plan.ts';
import { alwaysOn } from '../../spec/scaling.ts';
import { measuredWorkloads } from '../plan/measured-workload.ts';
import { planNow } from '../plan/plan-now.ts';
import { requireFeasible } from '../plan/planning.ts';
import type { Observation } from '../reconcile/observe.ts';
import type { Operations } from '../runner/operations.ts';
import {
  type DeploymentState,
  forgetOldest,
  isKept,
  replaceLaunches,
  wantedLaunches,
} from '../state/deployment-state.ts';
import { lockWait_ms } from '../state/deployment-store.ts';
import { digestOf } from '../state/digest.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { newLaunch, superseded } from '../state/launch-transitions.ts';
import { DemandWatch } from './demand-watch.ts';
import { slotsOf } from './slots.ts';

/** Demand is averaged over so long before it counts, ms; on a short reclamation window over less. */
const average_ms = 15_000;
/** Taken for the time of a start until one was measured, s. */
const wake_s_default = 60;
/** After a plan that found no place: until the next one is tried, ms. */
const retry_ms = 30_000;
/** A better plan of some replicas is not looked for any longer. */
const search_ms = 500;

type Scaled = NonNullable<DeploymentState['scaled']>[string];

/**
 * Gives models more or fewer replicas as they are asked for: looks at demand, lets `solver/scaling` decide, plans what
 * is to be added as `deploy` does, and writes it into the deployment's state. The reconciler submits and ends jobs.
 */
export class Scaler {
  readonly #operations: Operations;
  readonly #emit: (event: ProgressEvent) => void;
  readonly #watch: DemandWatch;
  /** What gateways measured of each model, as of this round. */
  #measured: ReadonlyMap<string, PlannedWorkload> | undefined;
  /** By deployment and model: when to try again what found no place. */
  readonly #retry_ms = new Map<string, number>();

  constructor(operations: Operations, emit: (event: ProgressEvent) => void) {
    this.#operations = { ...operations, emit: () => {} };
    this.#emit = emit;
    this.#watch = new DemandWatch(operations.store.layout);
  }

  /** Reads what gateways say; once before the deployments of a round. */
  readDemand(states: readonly DeploymentState[]): void {
    const windows = states.flatMap(({ spec }) =>
      spec.models.flatMap(({ scaling }) => (scaling ? [1000 * scaling.window_s] : [])),
    );
    if (windows.length === 0) return;
    this.#watch.read(this.#operations.now_ms(), Math.max(...windows));
    this.#measured = measuredWorkloads(this.#operations.store.layout.root);
  }

  /**
   * Decides on one deployment.
   * @param spent its budget of GPU-hours is used up: nothing is added
   * @returns whether its state was changed: it is time for a pass of the reconciler
   */
  async scale(state: DeploymentState, observation: Observation, spent: boolean): Promise<boolean> {
    let changed = false;
    for (const model of state.spec.models) {
      if (!model.scaling) continue;
      // What was tried and given up is not tried again under another name.
      if (wantedLaunches(state).some((launch) => launch.given_up !== undefined && serves(launch, model.name)))
        continue;
      const { have, serving } = replicasOf(state, observation, model.name);
      if (serving > 0 && state.scaled?.[model.name]?.asleep_since_ms !== undefined) {
        await this.#update(state.name, (current) => awake(current, model.name, this.#operations.now_ms()));
        changed = true;
      }
      const decided = this.#decide(state, observation, model, have, serving);
      if (decided.replicas === have || (spent && decided.replicas > have)) continue;
      const done =
        decided.replicas > have
          ? await this.#add(state, model, decided.replicas - have)
          : await this.#remove(state, model, have - decided.replicas);
      if (!done) continue;
      changed = true;
      this.#emit({
        at_ms: this.#operations.now_ms(),
        kind: 'scaled',
        deployment: state.name,
        model: model.name,
        from: have,
        to: done.replicas,
        because: decided.because,
      });
    }
    return changed;
  }

  #decide(
    state: DeploymentState,
    observation: Observation,
    model: ModelSpec,
    have: number,
    serving: number,
  ): ScalingDecision {
    const scaling = model.scaling!;
    const window_ms = 1000 * scaling.window_s;
    const { samples, asked_ms, ttft_ms } = this.#watch.demandOf([model.name, ...model.aliases]);
    return scale({
      now_ms: this.#operations.now_ms(),
      replicas: have,
      serving,
      slots: slotsOf(state, observation, model, this.#measured?.get(model.name)),
      samples,
      changed_ms: state.scaled?.[model.name]?.changed_ms ?? 0,
      asked_ms,
      ttft_ms,
      slo_ttft_ms: model.slo.ttft_ms,
      settings: {
        replicas_min: alwaysOn(scaling),
        replicas_max: scaling.max,
        target: scaling.target,
        window_ms,
        average_ms: Math.min(average_ms, window_ms / 4),
      },
    });
  }

  /** Plans the further replicas alone: those that serve stay where they are. */
  async #add(
    state: DeploymentState,
    model: ModelSpec,
    count: number,
  ): Promise<{ replicas: number } | undefined> {
    const { now_ms } = this.#operations;
    const key = JSON.stringify([state.name, model.name]);
    if (now_ms() < (this.#retry_ms.get(key) ?? 0)) return undefined;
    const spec = { ...state.spec, models: [{ ...model, replicas: count, min_stable_replicas: 0 }] };
    try {
      const { plan, fingerprint } = await planNow(this.#operations, spec, state.spec_file, { search_ms });
      requireFeasible(plan);
      this.#retry_ms.delete(key);
      return await this.#changeReplicas(state.name, model.name, (current) => ({
        ...current,
        launches: [
          ...plan.launches.map((planned, index) =>
            newLaunch(
              digestOf({ name: state.name, planned, index, at_ms: now_ms() }).slice(0, 16),
              fingerprint(planned),
              asPartOf(model, planned),
            ),
          ),
          ...current.launches,
        ],
      }));
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      this.#retry_ms.set(key, now_ms() + retry_ms);
      this.#emit({
        at_ms: now_ms(),
        kind: 'warning',
        message: `${model.name} of ${state.name} needs ${count} more replica(s): ${[error.message, ...error.because].join(': ')} [${error.code}]`,
      });
      return undefined;
    }
  }

  #remove(
    { name }: DeploymentState,
    model: ModelSpec,
    count: number,
  ): Promise<{ replicas: number } | undefined> {
    return this.#changeReplicas(name, model.name, (current) => {
      const leaving = launchesToRemove(current, model.name, count);
      return leaving.length === 0 ? undefined : replaceLaunches(current, leaving.map(superseded));
    });
  }

  /** @returns how many replicas the model has then; undefined where nothing was changed */
  async #changeReplicas(
    name: string,
    model: string,
    change: (state: DeploymentState) => DeploymentState | undefined,
  ): Promise<{ replicas: number } | undefined> {
    const { now_ms } = this.#operations;
    const after = await this.#update(name, (state) => {
      const changed = change(state);
      return changed && changedTo(changed, model, now_ms());
    });
    return after && { replicas: replicasOf(after, undefined, model).have };
  }

  /** Changes the state as it is under the lock, if it is still to be kept. */
  #update(
    name: string,
    change: (state: DeploymentState) => DeploymentState | undefined,
  ): Promise<DeploymentState | undefined> {
    const writer = { ...this.#operations, lock_wait_ms: lockWait_ms.service };
    return this.#operations.store.update(name, writer, (state) => {
      const next = isKept(state) ? change(state) : undefined;
      return next && { ...next, launches: forgetOldest(next.launches) };
    });
  }
}

/** How many replicas there are is as model.yaml has it and not as the question had it; all else is as it was planned. */
function asPartOf({ replicas, min_stable_replicas }: ModelSpec, planned: PlannedLaunch): PlannedLaunch {
  const units = planned.units.map((unit) => ({
    ...unit,
    model: { ...unit.model, replicas, min_stable_replicas },
  }));
  return { ...planned, units };
}

/** Whole jobs of this model alone, `count` replicas at most: those that do not serve first, then the youngest. */
function launchesToRemove(state: DeploymentState, model: string, count: number): LaunchRecord[] {
  const own = wantedLaunches(state).filter(
    ({ planned, given_up }) =>
      given_up === undefined && planned.units.every((unit) => unit.model.name === model),
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

function serves({ planned }: LaunchRecord, model: string): boolean {
  return planned.units.some((unit) => unit.model.name === model);
}

/** Replicas that are wanted, ended ones that get a successor included, and those that serve. */
function replicasOf(
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

/** The new number written down, with what it means for those who ask. */
function changedTo(state: DeploymentState, model: string, now_ms: number): DeploymentState {
  const { have: replicas } = replicasOf(state, undefined, model);
  const before = state.scaled?.[model];
  const scaled: Scaled = {
    changed_ms: now_ms,
    wake_s: startTime_s(state, model) ?? before?.wake_s ?? wake_s_default,
  };
  if (replicas === 0) scaled.asleep_since_ms = now_ms;
  else if (before?.asleep_since_ms !== undefined) {
    scaled.asleep_since_ms = before.asleep_since_ms;
    scaled.waking_since_ms = now_ms;
  }
  return {
    ...state,
    scaled: { ...state.scaled, [model]: scaled },
    models: state.models.map((each) => (each.model === model ? { ...each, replicas } : each)),
  };
}

function awake(state: DeploymentState, model: string, now_ms: number): DeploymentState {
  const before = state.scaled?.[model];
  const scaled: Scaled = {
    changed_ms: before?.changed_ms ?? now_ms,
    wake_s: startTime_s(state, model) ?? before?.wake_s ?? wake_s_default,
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
