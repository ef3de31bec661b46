import { judgePlan, type ReplanVerdict } from '../../solver/keeping/judge-plan.ts';
import { rearrange, startInRoomOf, unitNames } from '../../solver/keeping/rearrange.ts';
import {
  assumptions,
  decideReplan,
  type ReplanDecision,
  type ReplanSettings,
} from '../../solver/keeping/replan.ts';
import { startAtOnce } from '../../solver/keeping/waiting.ts';
import { arrangementCost } from '../../solver/placement/arrangement-cost.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { NodeKindOffer, PlannedLaunch } from '../../spec/plan.ts';
import type { ReplanOutcome } from '../../spec/replan.ts';
import { joinedOffers } from '../plan/joined-offers.ts';
import { liveFacts } from '../plan/live-facts.ts';
import { measuredWorkloads } from '../plan/measured-workload.ts';
import { planNow } from '../plan/plan-now.ts';
import { loadsOf, type PlannedDeployment } from '../plan/planning.ts';
import { offersOf } from '../plan/site-offers.ts';
import type { Observation } from '../reconcile/observe.ts';
import type { Operations } from '../runner/operations.ts';
import { type DeploymentState, isKept, wantedLaunches } from '../state/deployment-state.ts';
import { lockWait_ms } from '../state/deployment-store.ts';
import { hasParts } from '../state/pipeline-groups.ts';
import {
  describeChange,
  isChanging,
  isGivenUp,
  isSaidWhere,
  keptPlaces,
  lostSpec,
  type PlanChange,
  refusedKinds,
  replannedSpec,
  replannedState,
  standingLaunches,
} from './replanned-state.ts';

/**
 * Between two looks at the nodes of the cluster on behalf of all deployments, ms, where jobs are not polled more
 * seldom. Lower: hears of nodes sooner; higher: fewer questions to the controller.
 */
const look_ms = 15_000;
/** A better plan is not looked for any longer: the keeper looks after all else meanwhile. */
const search_ms = 1000;

type Replan = Extract<ReplanDecision, { do: 'replan' }>;

/** What a new plan would change, and whether it is worth it. */
interface Proposal {
  made: PlannedDeployment;
  starting: PlannedLaunch[];
  leaving: Set<string>;
  verdict: ReplanVerdict;
}

/**
 * Plans a deployment again by the solver that planned it, when what the plan was made for is no longer so: after the
 * loss of nodes, a change of the cluster, or with another load. What runs is kept where that costs less; what leaves
 * serves until its successors do. The reconciler submits and ends jobs.
 */
export class Replanner {
  readonly #operations: Operations;
  readonly #emit: (event: ProgressEvent) => void;
  readonly #settings: ReplanSettings;
  /** What the site offers, whoever has it now; without `offers` nobody can be asked. */
  #seen: { at_ms: number; offers: NodeKindOffer[] | undefined } | undefined;

  constructor(operations: Operations, emit: (event: ProgressEvent) => void) {
    this.#operations = { ...operations, emit: () => {} };
    this.#emit = emit;
    const { interval_s, hold_s, load_factor, gain_min } = operations.loaded.site.keeper.replan;
    this.#settings = { interval_ms: 1000 * interval_s, hold_ms: 1000 * hold_s, load_factor, gain_min };
  }

  /**
   * Gives launches that are over another place where theirs is gone; where their kind still has nodes the same launch
   * is right, and nothing is searched for.
   * @param ended those that are to be replaced now, with how many before each came to nothing
   * @returns whether they have another place
   */
  async replaceLost(
    state: DeploymentState,
    observation: Observation,
    ended: ReadonlyMap<string, number>,
  ): Promise<boolean> {
    if (isSaidWhere(state) || hasParts(wantedLaunches(state)) || isGivenUp(state)) return false;
    try {
      const offers = await this.#offers(0);
      const decision = this.#decide(state, observation, offers);
      if (decision.do !== 'replan' || !decision.lost.some((id) => ended.has(id))) return false;
      return await this.#replan(state, decision, offers, ended);
    } catch (thrown) {
      if (!(thrown instanceof HpcserveError)) throw thrown;
      // The same launch again is better than none: Slurm may be away, or the files of a model.
      this.#warn(state, thrown);
      return false;
    }
  }

  /**
   * Looks whether cluster and load are as they were planned for.
   * @returns whether its state was changed: it is time for a pass of the reconciler
   */
  async look(state: DeploymentState, observation: Observation): Promise<boolean> {
    if (isSaidWhere(state) || hasParts(wantedLaunches(state)) || isGivenUp(state) || isChanging(state))
      return false;
    // What is over gets its successor first.
    if (wantedLaunches(state).some(({ phase }) => phase === 'ended')) return false;
    const offers = await this.#offers(Math.max(look_ms, this.#operations.runner.poll_interval_ms));
    const decision = this.#decide(state, observation, offers);
    if (decision.do === 'replan') return this.#replan(state, decision, offers, new Map());
    await this.#noteAssumptions(state, decision, offers);
    return false;
  }

  #decide(
    state: DeploymentState,
    { launches }: Observation,
    offers: NodeKindOffer[] | undefined,
  ): ReplanDecision {
    const { now_ms, store } = this.#operations;
    return decideReplan({
      now_ms: now_ms(),
      launches: standingLaunches(state, launches),
      offers,
      assumed: state.planning,
      measured: measuredWorkloads(store.layout.root),
      settings: this.#settings,
    });
  }

  /** Undefined on the local site and where Slurm cannot be asked that much. */
  async #offers(age_max_ms: number): Promise<NodeKindOffer[] | undefined> {
    const { now_ms, loaded, facts } = this.#operations;
    if (this.#seen && now_ms() - this.#seen.at_ms < age_max_ms) return this.#seen.offers;
    const live = await liveFacts(this.#operations);
    const offers = live && [
      ...offersOf(loaded.site, live, facts.environment),
      ...joinedOffers(loaded.site, loaded.layout, facts.environment, 'all', now_ms()),
    ];
    this.#seen = { at_ms: now_ms(), offers };
    return offers;
  }

  async #replan(
    state: DeploymentState,
    decision: Replan,
    offers: NodeKindOffer[] | undefined,
    tries: ReadonlyMap<string, number>,
  ): Promise<boolean> {
    const { now_ms } = this.#operations;
    const { trigger, because } = decision;
    // Whatever is over is part of the new plan, or it would be started twice.
    const over = wantedLaunches(state).filter(({ phase }) => phase === 'ended');
    const lost = new Set([...decision.lost, ...over.map(({ launch_id }) => launch_id)]);
    const spec = replannedSpec(state);
    if (spec.models.length === 0) return false;
    let found = await this.#propose(state, spec, lost, decision);
    const alone = trigger === 'loss' && !('stays' in found) && found.verdict.do === 'stay';
    if (alone) found = await this.#propose(state, lostSpec(state, lost), lost, decision, true);
    const moves = !('stays' in found) && found.verdict.do === 'move' && changes(found, lost);
    const planned = 'made' in found ? loadsOf(found.made.plan.models) : undefined;
    const loads = { ...loadsOf(state.models), ...planned };
    const planning = (outcome: ReplanOutcome): NonNullable<DeploymentState['planning']> => ({
      ...assumptions(now_ms(), offers, loads),
      last: { at_ms: now_ms(), ...outcome },
    });
    if (!moves) {
      const outcome: ReplanOutcome = { trigger, because, changed: false, what: whyItStays(found) };
      await this.#update(state, (current) => ({ ...current, planning: planning(outcome) }), outcome);
      return false;
    }
    const { made, starting, leaving, verdict } = found as Proposal & { verdict: { do: 'move' } };
    const going = state.launches.filter(({ launch_id }) => leaving.has(launch_id) || lost.has(launch_id));
    const what = describeChange(
      starting,
      going.map(({ planned }) => planned),
    );
    const outcome: ReplanOutcome = { trigger, because, changed: true, what, gain: verdict.gain };
    const { fingerprint, plan } = made;
    const change: PlanChange = {
      starting,
      leaving,
      lost,
      overlap: verdict.overlap,
      // Where only what was lost was planned, the plan of the rest stays as it was.
      models: alone ? [] : plan.models,
      fingerprint,
      planning: planning(outcome),
    };
    return this.#update(state, (current) => replannedState(current, change, tries), outcome);
  }

  /** @param alone the plan is for what was lost; all else stays where it is */
  async #propose(
    state: DeploymentState,
    spec: DeploymentState['spec'],
    lost: ReadonlySet<string>,
    { strained }: Replan,
    alone = false,
  ): Promise<Proposal | { stays: string }> {
    const { now_ms } = this.#operations;
    const without_kinds = refusedKinds(state, now_ms());
    const made = await planNow(this.#operations, spec, state.spec_file, { search_ms, without_kinds });
    const { plan, question } = made;
    if (plan.unplaced.length > 0 || plan.launches.length === 0) {
      const lacking = plan.unplaced.map(({ model, replicas }) => `${replicas} × ${model}`);
      return { stays: `there is no place for ${lacking.join(', ') || 'any replica'}` };
    }
    const standing = keptPlaces(state, lost);
    const planned = standing.map((place) => place.planned);
    const { staying, leaving, starting } = alone
      ? rearrange([], plan.launches, planned.flatMap(unitNames))
      : rearrange(standing, plan.launches);
    const leaves = standing.filter(({ launch_id }) => leaving.includes(launch_id));
    const stays = standing.filter(({ launch_id }) => alone || staying.includes(launch_id));
    const after = [...stays.map((place) => place.planned), ...starting];
    const offers = question.node_kinds;
    const verdict = judgePlan(
      {
        standing_cost: lost.size > 0 || strained ? undefined : arrangementCost(question, planned),
        proposed_cost: arrangementCost(question, after) ?? Number.POSITIVE_INFINITY,
        leaves_running: leaves.length > 0,
        starts_at_once: startAtOnce(starting, offers),
        starts_in_own_room: startInRoomOf(
          starting,
          leaves.map((place) => place.planned),
          offers,
        ),
      },
      this.#settings.gain_min,
    );
    return { made, starting, leaving: new Set(leaving), verdict };
  }

  /** Writes down what was assumed where nobody had, and since when things differ. */
  async #noteAssumptions(
    state: DeploymentState,
    decision: Exclude<ReplanDecision, Replan>,
    offers: NodeKindOffer[] | undefined,
  ): Promise<void> {
    const { now_ms } = this.#operations;
    const differs_since_ms = decision.do === 'wait' ? decision.differs_since_ms : undefined;
    const known = state.planning;
    if (known && known.differs_since_ms === differs_since_ms) return;
    const planning = known ?? assumptions(now_ms(), offers, loadsOf(state.models));
    await this.#update(state, (current) => ({ ...current, planning: { ...planning, differs_since_ms } }));
  }

  /** @returns whether it was written: the launches are as they were when it was decided */
  async #update(
    { name, launches }: DeploymentState,
    change: (state: DeploymentState) => DeploymentState,
    outcome?: ReplanOutcome,
  ): Promise<boolean> {
    const { store, now_ms } = this.#operations;
    const writer = { ...this.#operations, lock_wait_ms: lockWait_ms.service };
    const seen = JSON.stringify(launches.map(({ launch_id, superseded }) => [launch_id, superseded]));
    const written = await store.update(name, writer, (current) => {
      const now = JSON.stringify(
        current.launches.map(({ launch_id, superseded }) => [launch_id, superseded]),
      );
      return isKept(current) && now === seen ? change(current) : undefined;
    });
    if (written === undefined) return false;
    if (outcome) this.#emit({ at_ms: now_ms(), kind: 'replanned', deployment: name, ...outcome });
    return true;
  }

  #warn({ name }: DeploymentState, { message, because, code }: HpcserveError): void {
    const reason = [message, ...because].join(': ');
    this.#emit({
      at_ms: this.#operations.now_ms(),
      kind: 'warning',
      message: `${name}: no new plan could be made: ${reason} [${code}]`,
    });
  }
}

function changes({ starting, leaving }: Proposal, lost: ReadonlySet<string>): boolean {
  return starting.length > 0 || leaving.size > 0 || lost.size > 0;
}

function whyItStays(found: Proposal | { stays: string }): string {
  if ('stays' in found) return found.stays;
  return found.verdict.do === 'stay' ? found.verdict.because : 'what runs is the best plan still';
}
