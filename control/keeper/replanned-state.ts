/** A deployment before and after it is planned again, as its state has it. Pure. */
import type { KeptPlace } from '../../solver/keeping/rearrange.ts';
import type { StandingLaunch } from '../../solver/keeping/replan.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import { type PoolName, plannedNameOf } from '../../spec/model-pools.ts';
import type { DeploymentSpec, ModelSpec } from '../../spec/model-yaml.ts';
import type { PlannedLaunch, PlannedModel } from '../../spec/plan.ts';
import type { LaunchStatus } from '../reconcile/decide.ts';
import {
  type DeploymentState,
  forgetOldest,
  liveLaunches,
  wantedLaunches,
} from '../state/deployment-state.ts';
import { digestOf } from '../state/digest.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { newLaunch, superseded, yielding } from '../state/launch-transitions.ts';

/** A kind whose job Slurm refused is not asked for again so soon, ms: limits pass, rules do not. */
export const refused_ms = 15 * 60_000;

/** Where jobs go was not left to the plan. */
export function isSaidWhere({ spec: { slurm } }: DeploymentState): boolean {
  return [slurm.partition, slurm.reservation, slurm.constraint, slurm.nodelist].some(
    (said) => said !== undefined,
  );
}

/** An earlier change is under way: its replicas come or go. */
export function isChanging(state: DeploymentState): boolean {
  return liveLaunches(state).some(({ superseded: leaves, instead_of }) => leaves || instead_of !== undefined);
}

/** What was tried and given up stays as it is until it is deployed again. */
export function isGivenUp(state: DeploymentState): boolean {
  return wantedLaunches(state).some(({ given_up }) => given_up !== undefined);
}

/** Launches that the deployment is to consist of, as the decision sees them. */
export function standingLaunches(
  state: DeploymentState,
  statuses: ReadonlyMap<string, LaunchStatus>,
): StandingLaunch[] {
  return wantedLaunches(state).map((launch) => {
    const job =
      launch.phase === 'submitted' ? (statuses.get(launch.launch_id)?.job ?? launch.last) : undefined;
    const { launch_id, planned } = launch;
    if (launch.phase === 'ended') return { launch_id, planned, phase: 'ended' };
    return { launch_id, planned, phase: job?.phase === 'running' ? 'running' : 'waiting' };
  });
}

/** Those that go on if nothing is changed, what serves first: it is kept before others. */
export function keptPlaces(state: DeploymentState, lost: ReadonlySet<string>): KeptPlace[] {
  const places = wantedLaunches(state).filter(
    ({ launch_id, phase }) => phase !== 'ended' && !lost.has(launch_id),
  );
  return places.sort((a, b) => Number(b.served_at_ms !== undefined) - Number(a.served_at_ms !== undefined));
}

/**
 * What is asked of the new plan: model.yaml, with as many replicas as there are to be of models that follow demand;
 * those that sleep are left out.
 */
export function replannedSpec(state: DeploymentState): DeploymentSpec {
  const models = state.spec.models.flatMap((model): ModelSpec[] => {
    if (!model.scaling) return [model];
    const replicas = replicasOf(wantedLaunches(state), model.name);
    if (replicas === 0) return [];
    return [{ ...model, replicas, min_stable_replicas: Math.min(replicas, model.min_stable_replicas) }];
  });
  return { ...state.spec, models };
}

/** The same for what these launches had alone. */
export function lostSpec(state: DeploymentState, lost: ReadonlySet<string>): DeploymentSpec {
  const launches = state.launches.filter(({ launch_id }) => lost.has(launch_id));
  const stable = launches.filter(({ planned }) => planned.tier === 'stable');
  const models = state.spec.models.flatMap((model): ModelSpec[] => {
    const replicas = replicasOf(launches, model.name);
    if (replicas === 0) return [];
    if (model.pools)
      return [
        withPoolsOf(
          model,
          launches.flatMap(({ planned }) => planned.units),
        ),
      ];
    // What must be stable was planned on stable nodes, and is again.
    const min_stable_replicas = model.min_stable_replicas > 0 ? replicasOf(stable, model.name) : 0;
    return [{ ...model, replicas, min_stable_replicas }];
  });
  return { ...state.spec, models };
}

/** Its pools with as many replicas as these are; a pool without any is not asked for. */
export function withPoolsOf(model: ModelSpec, units: readonly UnitSpec[]): ModelSpec {
  const { pools } = model;
  if (pools === undefined) return model;
  const of = (pool: PoolName): NonNullable<ModelSpec['pools']>[PoolName] => ({
    ...pools[pool],
    replicas: units.filter((unit) => unit.pool === pool && unit.model.name === model.name).length,
  });
  return { ...model, pools: { prefill: of('prefill'), decode: of('decode') } };
}

function replicasOf(launches: readonly LaunchRecord[], model: string): number {
  return launches.reduce(
    (sum, { planned }) => sum + planned.units.filter((unit) => unit.model.name === model).length,
    0,
  );
}

/** Kinds where Slurm refused a job of this deployment lately. */
export function refusedKinds({ launches }: DeploymentState, now_ms: number): string[] {
  return launches
    .filter(({ last, ended_at_ms = 0 }) => last?.state === 'REFUSED' && now_ms - ended_at_ms < refused_ms)
    .map(({ planned }) => planned.node_kind);
}

/** What a new plan changes. */
export interface PlanChange {
  starting: readonly PlannedLaunch[];
  leaving: ReadonlySet<string>;
  lost: ReadonlySet<string>;
  /** What leaves goes on until its successors serve. */
  overlap: boolean;
  models: readonly PlannedModel[];
  fingerprint: (launch: PlannedLaunch) => string;
  planning: NonNullable<DeploymentState['planning']>;
}

/** @param tries launches in the place of those that are lost that came to nothing, by launch */
export function replannedState(
  state: DeploymentState,
  change: PlanChange,
  tries: ReadonlyMap<string, number>,
): DeploymentState {
  const { starting, leaving, lost, overlap, planning } = change;
  const { planned_ms } = planning;
  const added = starting.map((planned, index) => {
    const launch_id = digestOf({ replanned: state.name, planned_ms, index, planned }).slice(0, 16);
    const names = planned.units.map(plannedNameOf);
    const before = state.launches.filter(
      ({ launch_id: id, planned: { units } }) =>
        lost.has(id) && units.some((unit) => names.includes(plannedNameOf(unit))),
    );
    const most = Math.max(0, ...before.map((launch) => tries.get(launch.launch_id) ?? launch.tries ?? 0));
    return newLaunch(launch_id, change.fingerprint(planned), planned, { tries: most });
  });
  const left = state.launches.map((launch) => {
    if (lost.has(launch.launch_id)) return superseded(launch);
    if (!leaving.has(launch.launch_id)) return launch;
    return overlap ? superseded(launch) : yielding(launch);
  });
  const models = state.models.map(
    (model) => change.models.find((each) => each.model === model.model) ?? model,
  );
  return forgetOldest({ ...state, models, planning, launches: [...added, ...left] });
}

/** What starts and what goes, in words: `1 × m on a100 starts; 1 × m on gh200 goes`. */
export function describeChange(starting: readonly PlannedLaunch[], going: readonly PlannedLaunch[]): string {
  const starts = describeReplicas(starting);
  const goes = describeReplicas(going);
  return [starts && `${starts} starts`, goes && `${goes} goes`].filter((words) => words !== '').join('; ');
}

function describeReplicas(launches: readonly PlannedLaunch[]): string {
  const counts = new Map<string, number>();
  for (const { node_kind, units } of launches)
    for (const unit of units) {
      const words = `${plannedNameOf(unit)} on ${node_kind}`;
      counts.set(words, (counts.get(words) ?? 0) + 1);
    }
  return [...counts].map(([words, count]) => `${count} × ${words}`).join(', ');
}
