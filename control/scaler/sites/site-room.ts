import { lyingSo, residencyOf } from '../../../solver/placement/decided-model.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ModelSpec } from '../../../spec/model-yaml.ts';
import type { NodeKindOffer, Plan } from '../../../spec/plan.ts';
import type { ModelShare } from '../../../spec/site-share.ts';
import { planningInput } from '../../plan/plan-now.ts';
import { planDeployment } from '../../plan/planning.ts';
import { searchDeadline } from '../../plan/search-deadline.ts';
import type { Operations } from '../../runner/operations.ts';
import type { DeploymentState } from '../../state/deployment-state.ts';
import { asItRuns } from '../replicas.ts';

/** Room for a model at this site. */
export interface SiteRoom {
  /** Replicas that it could run at most, and those it could without waiting for others' jobs. */
  limit: number;
  ready: number;
  /** Of the next one, in points of the plan over all sites. */
  cost: number;
  /** Why there is none for a further one. */
  because?: string;
}

/** How old what was found may be, ms. Lower: knows sooner that nodes are free; higher: fewer questions to Slurm. */
const fresh_ms = 60_000;
/** A plan that is only counted is not made better for longer. */
const search_ms = 200;

/** Finds out how many replicas a site has room for, by the plans that would be made for them. */
export class SiteRooms {
  readonly #operations: Operations;
  readonly #found = new Map<string, { at_ms: number; have: number; room: SiteRoom }>();

  constructor(operations: Operations) {
    this.#operations = operations;
  }

  async roomFor(
    state: DeploymentState,
    model: ModelSpec,
    have: number,
    share: ModelShare,
  ): Promise<SiteRoom> {
    const key = keyOf(state, model);
    const known = this.#found.get(key);
    const now_ms = this.#operations.now_ms();
    if (known && known.have === have && now_ms - known.at_ms < fresh_ms) return known.room;
    const room = await this.#look(state, model, have, share);
    this.#found.set(key, { at_ms: now_ms, have, room });
    return room;
  }

  /** One that was tried found no place: others are to have it for a while. */
  refused(state: DeploymentState, model: ModelSpec, have: number, because: string): void {
    const key = keyOf(state, model);
    const cost = this.#found.get(key)?.room.cost ?? 1;
    const room = { limit: have, ready: have, cost, because };
    this.#found.set(key, { at_ms: this.#operations.now_ms(), have, room });
  }

  async #look(state: DeploymentState, model: ModelSpec, have: number, share: ModelShare): Promise<SiteRoom> {
    const { max } = model.scaling!;
    const costs = new Map(share.costs?.map(({ node_kind, cost }) => [node_kind, cost]));
    const dearest = Math.max(...costs.values(), cost_min);
    const costOf = (kind: string | undefined): number =>
      kind === undefined ? dearest : (costs.get(kind) ?? dearest);
    try {
      const own = await this.#asPlaced(state, model);
      const all = await this.#plan(state, { ...own, replicas: max }, (offers) => [...offers]);
      const limit = Math.max(have, placedIn(all, max));
      const most = Math.max(0, max - have);
      const free = most > 0 ? await this.#plan(state, { ...own, replicas: most }, freeNow) : undefined;
      const ready = Math.min(limit, have + (free ? placedIn(free, most) : 0));
      const next = ready > have ? free?.launches[0]?.node_kind : all.launches.at(-1)?.node_kind;
      const room: SiteRoom = { limit, ready, cost: costOf(next) };
      if (limit <= have && have < max) room.because = all.rejected[0]?.because ?? 'all nodes are taken';
      return room;
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      return {
        limit: have,
        ready: have,
        cost: dearest,
        because: [error.message, ...error.because].join(': '),
      };
    }
  }

  /**
   * The model with its weights where further replicas would have them: where those lie that run, or the first one's
   * would. A plan that leaves it open for as many as could ever be wanted has them where most of them fit, and counts
   * replicas that nobody would be given.
   */
  async #asPlaced(state: DeploymentState, model: ModelSpec): Promise<ModelSpec> {
    const running = asItRuns(state, model);
    if (running.weights !== 'auto') return running;
    const { launches } = await this.#plan(state, { ...model, replicas: 1 }, (offers) => [...offers]);
    const [first] = launches.flatMap(({ units }) => units);
    return first === undefined ? model : lyingSo(model, residencyOf(first));
  }

  async #plan(
    { spec, spec_file }: DeploymentState,
    model: ModelSpec,
    among: (offers: readonly NodeKindOffer[]) => NodeKindOffer[],
  ): Promise<Plan> {
    const asked = { ...spec, models: [{ ...model, min_stable_replicas: 0 }] };
    const input = await planningInput(this.#operations, asked, spec_file, {});
    const limits = searchDeadline(search_ms, () => performance.now());
    return (await planDeployment({ ...input, offers: among(input.offers), limits })).plan;
  }
}

const cost_min = 1e-6;

function keyOf({ name, spec }: DeploymentState, model: ModelSpec): string {
  return JSON.stringify([name, spec.share?.of, model.name]);
}

function placedIn({ unplaced }: Plan, asked: number): number {
  return asked - unplaced.reduce((sum, { replicas }) => sum + replicas, 0);
}

/** Nodes with room now in the place of all there are; where nobody was asked, all. */
function freeNow(offers: readonly NodeKindOffer[]): NodeKindOffer[] {
  return offers.map((offer) => {
    const free = offer.free?.reduce((sum, { nodes }) => sum + nodes, 0) ?? offer.nodes_idle;
    return free === undefined ? offer : { ...offer, nodes_total: Math.min(offer.nodes_total, free) };
  });
}
