import { kindsWithRoom, overdue, startAtOnce, type WaitingLaunch } from '../../solver/keeping/waiting.ts';
import { asDecided } from '../../solver/placement/decided-model.ts';
import { bestLenders, lentElsewhere } from '../../solver/placement/lent-job.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import { plannedNameOf, poolNames } from '../../spec/model-pools.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import { defaultPlacementSettings, isLent, type NodeKindOffer, type PlannedLaunch } from '../../spec/plan.ts';
import { liveFacts } from '../plan/live-facts.ts';
import { planNow } from '../plan/plan-now.ts';
import { offersOf } from '../plan/site-offers.ts';
import type { Observation } from '../reconcile/observe.ts';
import type { Operations } from '../runner/operations.ts';
import { type DeploymentState, forgetOldest, isKept, wantedLaunches } from '../state/deployment-state.ts';
import { lockWait_ms } from '../state/deployment-store.ts';
import { digestOf } from '../state/digest.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { newLaunch } from '../state/launch-transitions.ts';
import { isSaidWhere, refused_ms, withPoolsOf } from './replanned-state.ts';

/** After a plan that found no other place: until the next at most, ms. */
const retry_ms_max = 60_000;
/** A better plan of some replicas is not looked for any longer. */
const search_ms = 500;

/** Gives a launch that waits in the queue another place, where nodes of another kind that suit it are free. */
export class PendingJobMigrator {
  readonly #operations: Operations;
  readonly #emit: (event: ProgressEvent) => void;
  /** By launch: when to plan again. */
  readonly #retry_from_ms = new Map<string, number>();

  constructor(operations: Operations, emit: (event: ProgressEvent) => void) {
    this.#operations = { ...operations, emit: () => {} };
    this.#emit = emit;
  }

  /**
   * Looks after one deployment: at most one launch is moved at a time.
   * @returns whether its state was changed: it is time for a pass of the reconciler
   */
  async move(state: DeploymentState, observation: Observation): Promise<boolean> {
    const { now_ms, loaded } = this.#operations;
    const patience_ms = 1000 * loaded.site.keeper.move_after_s;
    if (patience_ms === 0 || this.#operations.slurm === undefined || isSaidWhere(state)) return false;
    const now = now_ms();
    const due = overdue(waitingLaunches(state, observation), now, patience_ms).find(
      ({ launch_id }) => now >= (this.#retry_from_ms.get(launch_id) ?? 0),
    );
    if (due === undefined) return false;
    this.#retry_from_ms.set(due.launch_id, now + Math.min(patience_ms, retry_ms_max));
    const launch = state.launches.find(({ launch_id }) => launch_id === due.launch_id)!;
    const elsewhere = isLent(launch.planned)
      ? await this.#lendElsewhere(state, launch)
      : await this.#planElsewhere(state, launch);
    if (elsewhere === undefined) return false;
    const because = `it has waited for ${Math.round((now - due.submitted_at_ms) / 1000)} s; ${kindsOf(elsewhere)} is free`;
    if (!(await this.#write(state.name, launch, elsewhere))) return false;
    this.#emit({
      at_ms: now_ms(),
      kind: 'kept',
      deployment: state.name,
      do: 'move',
      launch_id: launch.launch_id,
      because,
    });
    return true;
  }

  /** Stages that are lent by another kind of nodes, which are free now, as they are cut; undefined: none suits them. */
  async #lendElsewhere(
    state: DeploymentState,
    { launch_id, planned, fingerprint }: LaunchRecord,
  ): Promise<(PlannedLaunch & { fingerprint: string })[] | undefined> {
    const offers = await this.#offers();
    const like = offers.find(({ node_kind }) => node_kind === planned.node_kind);
    if (like === undefined) return undefined;
    const kinds = this.#kindsLeft(state, launch_id, planned, offers);
    const lenders = bestLenders(
      offers.filter(({ node_kind }) => kinds.includes(node_kind)),
      like,
    );
    for (const lender of lenders) {
      const there = lentElsewhere(planned, like, lender, defaultPlacementSettings);
      // The same to another deploy, which leaves it where it is.
      if (there && startAtOnce([there], offers)) return [{ ...there, fingerprint }];
    }
    return undefined;
  }

  async #offers(): Promise<NodeKindOffer[]> {
    const { loaded, facts } = this.#operations;
    return offersOf(loaded.site, await liveFacts(this.#operations), facts.environment);
  }

  /** Of other nodes than it waits for, and where Slurm has not refused it lately. */
  #kindsLeft(
    state: DeploymentState,
    launch_id: string,
    { node_kind }: PlannedLaunch,
    offers: readonly NodeKindOffer[],
  ): string[] {
    const now = this.#operations.now_ms();
    const refused = replacementsOf(state, launch_id)
      .filter(({ last, ended_at_ms = 0 }) => last?.state === 'REFUSED' && now - ended_at_ms < refused_ms)
      .map((launch) => launch.planned.node_kind);
    return kindsWithRoom(offers, node_kind).filter((kind) => !refused.includes(kind));
  }

  /** The same replicas where there is room now; undefined where there is none that suits them. */
  async #planElsewhere(
    state: DeploymentState,
    { launch_id, planned }: LaunchRecord,
  ): Promise<(PlannedLaunch & { fingerprint: string })[] | undefined> {
    const offers = await this.#offers();
    const room = this.#kindsLeft(state, launch_id, planned, offers);
    const models = state.spec.models.flatMap((model): ModelSpec[] => {
      const replicas = planned.units.filter((unit) => unit.model.name === model.name).length;
      const asked = model.devices.node_kinds;
      const node_kinds = asked.length > 0 ? asked.filter((kind) => room.includes(kind)) : room;
      // What must be stable was planned on stable nodes, and stays on such.
      const tier = planned.tier === 'stable' ? planned.tier : model.tier;
      if (replicas > 0 && model.pools) return withRoom(withPoolsOf({ ...model, tier }, planned.units), room);
      if (replicas === 0 || node_kinds.length === 0) return [];
      const devices = { ...model.devices, node_kinds };
      return [{ ...model, replicas, min_stable_replicas: 0, tier, devices }];
    });
    if (planned.units.some(({ model }) => !models.some(({ name }) => name === model.name))) return undefined;
    try {
      const spec = { ...state.spec, models };
      const { plan, fingerprint } = await planNow(this.#operations, spec, state.spec_file, { search_ms });
      if (plan.unplaced.length > 0 || !startAtOnce(plan.launches, offers)) return undefined;
      return plan.launches.map((launch) => ({ ...launch, fingerprint: fingerprint(launch) }));
    } catch (error) {
      // A model file that is gone keeps nothing from waiting.
      if (error instanceof HpcserveError && error.code.startsWith('E_MODEL_')) return undefined;
      throw error;
    }
  }

  /** Writes the replacements down, if it still waits. @returns whether it did */
  async #write(
    name: string,
    { launch_id }: LaunchRecord,
    elsewhere: readonly (PlannedLaunch & { fingerprint: string })[],
  ): Promise<boolean> {
    const writer = { ...this.#operations, lock_wait_ms: lockWait_ms.service };
    const written = await this.#operations.store.update(name, writer, (state) => {
      const at = state.launches.findIndex((each) => each.launch_id === launch_id);
      const before = state.launches[at];
      if (!isKept(state) || !before) return undefined;
      if (before.superseded || before.phase !== 'submitted' || before.last?.phase !== 'pending')
        return undefined;
      if (replacementsOf(state, launch_id).some(({ phase }) => phase !== 'ended')) return undefined;
      const launches = state.launches.toSpliced(at, 0, ...inPlaceOf(state, before, elsewhere));
      return forgetOldest({ ...state, launches });
    });
    return written !== undefined;
  }
}

function waitingLaunches(state: DeploymentState, { launches }: Observation): WaitingLaunch[] {
  return wantedLaunches(state).flatMap(({ launch_id, phase, planned, submitting_since_ms }) => {
    const job = launches.get(launch_id)?.job;
    if (phase !== 'submitted' || job?.phase !== 'pending') return [];
    // The other parts of its pipeline are where they are; stages that are lent may come from anywhere.
    if (planned.part !== undefined && !isLent(planned)) return [];
    const { estimated_start_ms } = job;
    const { node_kind } = planned;
    return [{ launch_id, node_kind, submitted_at_ms: submitting_since_ms, estimated_start_ms }];
  });
}

/** What is or was tried in the place of a launch. */
function replacementsOf({ launches }: DeploymentState, launch_id: string): LaunchRecord[] {
  return launches.filter(({ instead_of }) => instead_of === launch_id);
}

/** The same replicas by name, as model.yaml has their models. */
function inPlaceOf(
  { name: deployment, launches }: DeploymentState,
  before: LaunchRecord,
  elsewhere: readonly (PlannedLaunch & { fingerprint: string })[],
): LaunchRecord[] {
  const left = [...before.planned.units];
  const known = new Set(launches.map(({ launch_id }) => launch_id));
  // Derived, so that a keeper that died between deciding and writing decides the same again.
  const newId = (index: number): string => {
    for (let attempt = 0; ; attempt++) {
      const what: Record<string, unknown> = { moved: before.launch_id, deployment, index };
      if (attempt > 0) what.attempt = attempt;
      const id = digestOf(what).slice(0, 16);
      if (!known.has(id)) return id;
    }
  };
  return elsewhere.map(({ fingerprint, ...planned }, index) => {
    const units = planned.units.map((unit) => {
      const [own] = left.splice(
        left.findIndex((each) => plannedNameOf(each) === plannedNameOf(unit)),
        1,
      );
      return { ...unit, unit: own!.unit, model: asDecided(own!.model, unit) };
    });
    const { launch_id: instead_of, tries } = before;
    return newLaunch(newId(index), fingerprint, { ...planned, units }, { instead_of, tries });
  });
}

/** Its pools on kinds with room alone; nothing where one that has replicas may be on none of these. */
function withRoom(model: ModelSpec, room: readonly string[]): ModelSpec[] {
  const pools = structuredClone(model.pools!);
  for (const pool of poolNames) {
    const { devices = model.devices, replicas } = pools[pool];
    const node_kinds =
      devices.node_kinds.length > 0 ? devices.node_kinds.filter((kind) => room.includes(kind)) : [...room];
    if (node_kinds.length === 0 && replicas > 0) return [];
    pools[pool].devices = { ...devices, node_kinds };
  }
  return [{ ...model, pools }];
}

function kindsOf(launches: readonly PlannedLaunch[]): string {
  return [...new Set(launches.map(({ node_kind }) => node_kind))].join(' and ');
}
