/**
 * The plan of one site as things are now: models are looked at, the cluster and its queue are asked, joined nodes
 * counted in.
 */
import { withoutExpected, withoutHeld } from '../../solver/keeping/expected-launches.ts';
import { residencyOf } from '../../solver/placement/decided-model.ts';
import { plannedNameOf } from '../../spec/model-pools.ts';
import type { DeploymentSpec, ModelSpec, Objective } from '../../spec/model-yaml.ts';
import type { PlacementModel, PlannedLaunch, RunningReplicas } from '../../spec/plan.ts';
import type { Operations } from '../runner/operations.ts';
import { type DeploymentState, wantedLaunches } from '../state/deployment-state.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { inspectModel } from './inspect-model.ts';
import { joinedOffers } from './joined-offers.ts';
import { type AskSlurm, factsToPlanWith } from './live-facts.ts';
import { measuredWorkloads } from './measured-workload.ts';
import { type PlannedDeployment, type PlanningInput, planDeployment } from './planning.ts';
import { withQueueWaits } from './queue-wait.ts';
import { searchDeadline } from './search-deadline.ts';
import { seenEngines } from './seen-engines.ts';
import { offersOf } from './site-offers.ts';

export interface PlanNowOptions {
  ask?: AskSlurm;
  /** Instead of the one in model.yaml. */
  objective?: Objective;
  /** How long a better plan is looked for, ms. */
  search_ms?: number;
  /** It is a plan made again: those kinds are not asked, such as where Slurm refused a job just now. */
  without_kinds?: readonly string[];
}

/** The search for a better plan ends after this long unless told otherwise; most end by proof in a tenth of it. */
export const search_ms = 5000;

/** Makes the plan for a specification as things are now. @throws E_MODEL_… before anything is submitted. */
export async function planNow(
  operations: Operations,
  spec: DeploymentSpec,
  specFile: string,
  options: PlanNowOptions = {},
): Promise<PlannedDeployment> {
  return planDeployment(await planningInput(operations, spec, specFile, options));
}

/** All that the plan of a specification is made from, as things are now. */
export async function planningInput(
  operations: Operations,
  spec: DeploymentSpec,
  specFile: string,
  options: PlanNowOptions,
): Promise<PlanningInput> {
  const { ask = 'must', objective, without_kinds } = options;
  const { loaded, facts, emit, now_ms, store } = operations;
  const checking = (what: string): void => emit({ at_ms: now_ms(), kind: 'checking', what });
  const inspect = async (model: ModelSpec, folder: string): Promise<PlacementModel> => {
    checking(`model ${model.name}: ${model.source}`);
    return (await inspectModel(model, folder, loaded.site, loaded.path, facts.environment)).placement;
  };
  if (operations.slurm && ask !== 'never') checking('what the nodes of the cluster offer');
  const { live, unasked } = await factsToPlanWith(operations, ask);
  if (unasked !== undefined)
    emit({
      at_ms: now_ms(),
      kind: 'warning',
      message: `Slurm was not asked; this is from the site config alone (${unasked})`,
    });
  const offline = unasked !== undefined;
  const offered = offersOf(loaded.site, live, facts.environment, spec.slurm?.reservation);
  const before = store.load(spec.name);
  const own = new Set(before?.launches.map(({ launch_id }) => launch_id));
  const expected =
    loaded.site.kind === 'local'
      ? withoutHeld(offered, localHolders(operations, spec.name))
      : withoutExpected(offered, expectedLaunches(operations, spec.name));
  const offers = [
    ...(offline && loaded.site.kind !== 'local' ? offered : await withQueueWaits(operations, expected)),
    ...joinedOffers(loaded.site, loaded.layout, facts.environment, own, now_ms()),
  ];
  const input: PlanningInput = {
    spec,
    spec_file: specFile,
    site: loaded.site,
    offers: offers.filter(({ node_kind }) => !without_kinds?.includes(node_kind)),
    kinds_may_lack: without_kinds !== undefined,
    inspect,
    now_ms: now_ms(),
    offline,
    limits: searchDeadline(options.search_ms ?? search_ms, () => performance.now()),
    measured: measuredWorkloads(store.layout.root),
  };
  if (objective) input.objective = objective;
  if (before?.desired === 'serving') {
    input.running = runningOf(before);
    input.seen = seenEngines(before, store);
  }
  return input;
}

/**
 * Launches of the other deployments that have no nodes yet: what is free for them is not free for this one. One that
 * was handed over a moment ago may have its nodes already; then what is free counts twice as taken, until it is polled.
 */
function expectedLaunches(operations: Operations, name: string): PlannedLaunch[] {
  return launchesOfOthers(operations, name).flatMap(({ planned, last }) =>
    last === undefined || last.phase === 'pending' ? [planned] : [],
  );
}

/** Launches of the other deployments on this machine, whose accelerators are taken. */
function localHolders(operations: Operations, name: string): PlannedLaunch[] {
  const launches = launchesOfOthers(operations, name);
  const holders = launches.filter(
    ({ planned: { devices_per_node } }) => devices_per_node.kind !== 'cpu' && !devices_per_node.emulated,
  );
  if (holders.length > 0) {
    const devices = holders.map(
      ({ planned, deployment }) =>
        `${planned.devices_per_node.count}× ${planned.devices_per_node.model} (${deployment})`,
    );
    const message = `other deployments have devices of this machine: ${devices.join(', ')}`;
    operations.emit({ at_ms: operations.now_ms(), kind: 'warning', message });
  }
  return holders.map(({ planned }) => planned);
}

/** Launches that the other deployments want, and that have not ended. */
function launchesOfOthers(
  { store }: Operations,
  name: string,
): (Pick<LaunchRecord, 'planned' | 'last'> & { deployment: string })[] {
  return store
    .list()
    .filter((other) => other !== name)
    .flatMap((other) => {
      const state = store.load(other);
      if (state?.desired !== 'serving') return [];
      return wantedLaunches(state)
        .filter(({ phase }) => phase !== 'ended')
        .map((launch) => ({ ...launch, deployment: other }));
    });
}

/** Replicas of a deployment that run or are on their way, by where they are. */
function runningOf(state: DeploymentState): RunningReplicas[] {
  return wantedLaunches(state)
    .filter((launch) => launch.phase !== 'ended')
    .flatMap(({ planned }) =>
      planned.units.map((unit) => ({
        model: plannedNameOf(unit),
        node_kind: planned.node_kind,
        replicas: 1,
        device_count: unit.device_count * (unit.nodes ?? 1),
        weights: residencyOf(unit),
      })),
    );
}
