import { alwaysOnReplicas } from '../../solver/locality/always-on-floor.ts';
import { type ScalingDecision, type ScalingSettings, scale } from '../../solver/scaling/scale.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { PlannedLaunch, PlannedWorkload } from '../../spec/plan.ts';
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
import { newLaunch, superseded } from '../state/launch-transitions.ts';
import { DemandWatch } from './demand-watch.ts';
import { asItRuns, awake, changedTo, launchesToRemove, replicasOf, serves } from './replicas.ts';
import { factsHere } from './sites/site-facts.ts';
import { SiteRooms } from './sites/site-room.ts';
import { SitesScaler, shareHere } from './sites/sites-scaler.ts';
import { withSleep } from './sites/sleep.ts';
import { slotsOf } from './slots.ts';

/** Demand is averaged over so long before it counts, ms; on a short reclamation window over less. */
const average_ms = 15_000;
/** After a plan that found no place: until the next one is tried, ms. */
const retry_ms = 30_000;
/** A better plan of some replicas is not looked for any longer. */
const search_ms = 500;

/**
 * Gives models more or fewer replicas as they are asked for: looks at demand, lets `solver/scaling` decide, plans what
 * is to be added as `deploy` does, and writes it into the deployment's state. The reconciler submits and ends jobs.
 */
export class Scaler {
  readonly #operations: Operations;
  readonly #emit: (event: ProgressEvent) => void;
  readonly #watch: DemandWatch;
  readonly #sites: SitesScaler;
  readonly #rooms: SiteRooms;
  /** What gateways measured of each model, as of this round. */
  #measured: ReadonlyMap<string, PlannedWorkload> | undefined;
  /** By deployment and model: when to try again what found no place. */
  readonly #retry_ms = new Map<string, number>();

  constructor(operations: Operations, emit: (event: ProgressEvent) => void) {
    this.#operations = { ...operations, emit: () => {} };
    this.#emit = emit;
    this.#watch = new DemandWatch(operations.store.layout);
    this.#sites = new SitesScaler(this.#operations);
    this.#rooms = new SiteRooms(this.#operations);
  }

  /** Reads what gateways say, and hears other sites; once before the deployments of a round. */
  readDemand(states: readonly DeploymentState[]): void {
    this.#sites.read(states);
    const windows = states.flatMap(({ spec }) =>
      spec.models.flatMap(({ scaling }) => (scaling ? [1000 * scaling.window_s] : [])),
    );
    if (windows.length === 0) return;
    this.#watch.read(this.#operations.now_ms(), Math.max(...windows));
    this.#measured = measuredWorkloads(this.#operations.store.layout.root);
  }

  /** Tells other sites how this one stands; once after the deployments of a round. */
  tellSites(): void {
    this.#sites.publish();
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
      const isChanged = shareHere(state, model)
        ? await this.#scaleOverSites(state, observation, model, spent)
        : await this.#scaleAlone(state, observation, model, spent);
      changed ||= isChanged;
    }
    return changed;
  }

  async #scaleAlone(
    state: DeploymentState,
    observation: Observation,
    model: ModelSpec,
    spent: boolean,
  ): Promise<boolean> {
    // What was tried and given up is not tried again under another name.
    if (hasGivenUp(state, model)) return false;
    const { have, serving } = replicasOf(state, observation, model.name);
    const wakes = serving > 0 && state.scaled?.[model.name]?.asleep_since_ms !== undefined;
    if (wakes)
      await this.#update(state.name, (current) => awake(current, model.name, this.#operations.now_ms()));
    const { replicas, because } = this.#decide(state, observation, model, have, serving);
    if (replicas === have || (spent && replicas > have)) return wakes;
    return (await this.#change(state, model, { from: have, to: replicas, because })) || wakes;
  }

  /** This site's part of what all of them decide. */
  async #scaleOverSites(
    state: DeploymentState,
    observation: Observation,
    model: ModelSpec,
    spent: boolean,
  ): Promise<boolean> {
    const now_ms = this.#operations.now_ms();
    const { have } = replicasOf(state, observation, model.name);
    const found = await this.#rooms.roomFor(state, model, have, shareHere(state, model)!);
    const full = (because: string): typeof found => ({ ...found, limit: have, ready: have, because });
    const room = spent
      ? full('the budget of GPU-hours is used up')
      : hasGivenUp(state, model)
        ? full('a replica was given up')
        : found;
    const facts = factsHere(state, observation, model, {
      now_ms,
      demand: this.#watch.demandOf([model.name, ...model.aliases]),
      settings: settingsOf(model),
      slots: slotsOf(state, observation, model, this.#measured?.get(model.name)),
      room,
    });
    const { act, because, all } = this.#sites.decide(state, model, facts, room.because);
    const isTold = !all || withSleep(state, model.name, all, now_ms) === undefined;
    const told = isTold
      ? undefined
      : await this.#update(state.name, (current) => withSleep(current, model.name, all, now_ms));
    if (act === undefined) return told !== undefined;
    const changed = await this.#change(state, model, { from: have, to: act, because });
    return changed || told !== undefined;
  }

  /** @returns whether replicas came or went */
  async #change(
    state: DeploymentState,
    model: ModelSpec,
    { from, to, because }: { from: number; to: number; because: string },
  ): Promise<boolean> {
    const done =
      to > from ? await this.#add(state, model, to - from) : await this.#remove(state, model, from - to);
    if (!done) return false;
    this.#emit({
      at_ms: this.#operations.now_ms(),
      kind: 'scaled',
      deployment: state.name,
      model: model.name,
      from,
      to: done.replicas,
      because,
    });
    return true;
  }

  #decide(
    state: DeploymentState,
    observation: Observation,
    model: ModelSpec,
    have: number,
    serving: number,
  ): ScalingDecision {
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
      settings: settingsOf(model),
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
    const spec = {
      ...state.spec,
      models: [{ ...asItRuns(state, model), replicas: count, min_stable_replicas: 0 }],
    };
    try {
      const { plan, fingerprint } = await planNow(this.#operations, spec, state.spec_file, { search_ms });
      requireFeasible(plan);
      this.#retry_ms.delete(key);
      return await this.#changeReplicas(state, model, (current) => ({
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
      const because = `${[error.message, ...error.because].join(': ')} [${error.code}]`;
      // Over several sites another one is to have it meanwhile.
      this.#rooms.refused(state, model, replicasOf(state, undefined, model.name).have, because);
      this.#emit({
        at_ms: now_ms(),
        kind: 'warning',
        message: `${model.name} of ${state.name} needs ${count} more replica(s): ${because}`,
      });
      return undefined;
    }
  }

  #remove(
    state: DeploymentState,
    model: ModelSpec,
    count: number,
  ): Promise<{ replicas: number } | undefined> {
    return this.#changeReplicas(state, model, (current) => {
      const leaving = launchesToRemove(current, model.name, count);
      return leaving.length === 0 ? undefined : replaceLaunches(current, leaving.map(superseded));
    });
  }

  /** @returns how many replicas the model has then; undefined where nothing was changed */
  async #changeReplicas(
    state: DeploymentState,
    model: ModelSpec,
    change: (state: DeploymentState) => DeploymentState | undefined,
  ): Promise<{ replicas: number } | undefined> {
    const { now_ms } = this.#operations;
    const over_sites = shareHere(state, model) !== undefined;
    const after = await this.#update(state.name, (current) => {
      const changed = change(current);
      return changed && changedTo(changed, model.name, now_ms(), over_sites);
    });
    return after && { replicas: replicasOf(after, undefined, model.name).have };
  }

  /** Changes the state as it is under the lock, if it is still to be kept. */
  #update(
    name: string,
    change: (state: DeploymentState) => DeploymentState | undefined,
  ): Promise<DeploymentState | undefined> {
    const writer = { ...this.#operations, lock_wait_ms: lockWait_ms.service };
    return this.#operations.store.update(name, writer, (state) => {
      const next = isKept(state) ? change(state) : undefined;
      return next && forgetOldest(next);
    });
  }
}

/**
 * How many replicas there are is as model.yaml has it and not as the question had it; all else is as it was planned.
 */
function asPartOf({ replicas, min_stable_replicas }: ModelSpec, planned: PlannedLaunch): PlannedLaunch {
  const units = planned.units.map((unit) => ({
    ...unit,
    model: { ...unit.model, replicas, min_stable_replicas },
  }));
  return { ...planned, units };
}

function settingsOf({ scaling }: ModelSpec): ScalingSettings {
  const { max, target, window_s } = scaling!;
  const window_ms = 1000 * window_s;
  return {
    replicas_min: alwaysOnReplicas(scaling!),
    replicas_max: max,
    target,
    window_ms,
    average_ms: Math.min(average_ms, window_ms / 4),
  };
}

function hasGivenUp(state: DeploymentState, { name }: ModelSpec): boolean {
  return wantedLaunches(state).some((launch) => launch.given_up !== undefined && serves(launch, name));
}
