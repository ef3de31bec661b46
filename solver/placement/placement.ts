/**
 * Placement: every option is checked against every constraint, the optimiser divides replicas over node kinds, and
 * nodes are filled first-fit.
 */
import { HpcserveError } from '../../spec/errors/error.ts';
import type {
  NodeKindOffer,
  Placement,
  PlacementModel,
  PlacementQuestion,
  PlacementSearch,
  RejectedOption,
} from '../../spec/plan.ts';
import {
  type Allocation,
  chooseAllocation,
  devicesTaken,
  deviceTypes,
  type ModelDemand,
  type SearchLimits,
  typeOf,
} from './allocation.ts';
import { checkPlacement } from './check.ts';
import { findClash } from './clash.ts';
import { type PlacedModel, plannedModel, replicasThatKeepUp, warningsOf } from './describe.ts';
import { LatencyEstimator, shapeOf } from './latency-estimator.ts';
import { type OptionCost, objectiveCost } from './objective.ts';
import { optionsOf, type PlacementOption } from './options.ts';
import { Packing } from './packing.ts';
import { tooLarge } from './too-large.ts';

export interface PlaceOptions extends SearchLimits {
  /** What is minimised; default: the objective of the question. */
  costOf?: OptionCost;
  /** What earlier questions learned of speeds; for a process that plans again and again. */
  performance?: LatencyEstimator;
}

/** Rounds in which what did not pack into nodes is counted as not there. */
const packing_rounds = 4;

interface AskedModel {
  model: PlacementModel;
  options: readonly PlacementOption[];
  competitor: ModelDemand;
}

/** Replicas that found a node, by model and option. */
interface Packed {
  packing: Packing;
  placed: Map<AskedModel, Allocation>;
  unplaced: { model: AskedModel; option?: PlacementOption; replicas: number }[];
}

/**
 * Places all replicas of all models; deterministic. The optimiser says how many replicas of each model go to which
 * node kind and how they are split; where devices do not suffice, native models share them; where its numbers do not
 * pack into nodes, every replica takes the best option that is left, largest weights first.
 * @throws HpcserveError E_INTERNAL where the checker finds the result unsound
 */
export function place(question: PlacementQuestion, options: PlaceOptions = {}): Placement {
  const rejected: RejectedOption[] = [];
  const performance = options.performance ?? new LatencyEstimator();
  const asked = [...question.models]
    .sort((a, b) => b.weight_bytes - a.weight_bytes || (a.spec.name < b.spec.name ? -1 : 1))
    .map((model): AskedModel => {
      const feasible = feasibleOptions(model, question, rejected);
      return { model, options: feasible, competitor: competitorOf(model, feasible) };
    });
  const byModel = new Map(asked.map(({ model, options }) => [model.spec.name, options]));
  const costOf = options.costOf ?? objectiveCost(question, performance, byModel);
  const competing = asked.filter(
    ({ options, competitor }) => options.length > 0 && competitor.replicas !== 0,
  );
  const chosen = optimise(competing, { question, performance, costOf }, options);
  const { packed, search } =
    'packed' in chosen
      ? chosen
      : {
          packed: firstFit(competing, { question, performance, costOf }),
          search: { status: 'first_fit', ...chosen } as const,
        };
  const placement = placementOf(asked, packed, search, { question, performance, costOf, rejected });
  if (placement.unplaced.length > 0) {
    const clash = findClash(
      competing.map(({ competitor }) => competitor),
      { question, performance },
    );
    if (clash) placement.clash = clash;
  }
  const wrong = checkPlacement(question, placement);
  if (wrong.length > 0)
    throw new HpcserveError('E_INTERNAL', {
      what: 'the plan that was made breaks a rule',
      because: wrong,
      try: 'report this with the output of hpcserve plan --json',
    });
  return placement;
}

function feasibleOptions(
  model: PlacementModel,
  question: PlacementQuestion,
  rejected: RejectedOption[],
): PlacementOption[] {
  const shape = shapeOf(model);
  const feasible: PlacementOption[] = [];
  for (const offer of question.node_kinds) {
    const found = optionsOf(model, shape, offer, question);
    if ('constraint' in found) rejected.push(found);
    else feasible.push(...found);
  }
  const asked = model.spec.devices.node_kinds;
  return asked.length === 0
    ? feasible
    : feasible.sort((a, b) => asked.indexOf(a.offer.node_kind) - asked.indexOf(b.offer.node_kind));
}

/** Kinds that were listed by name take turns: the person asked for that mix. */
function competitorOf({ spec, workload }: PlacementModel, options: readonly PlacementOption[]): ModelDemand {
  const unknown = workload === undefined || workload.source === 'assumed';
  // Nothing is known that would need more than one; so many must be stable anyway.
  const few = Math.max(1, spec.min_stable_replicas);
  const replicas: number | 'auto' =
    spec.replicas !== 'auto' ? spec.replicas : unknown || few > 1 ? few : 'auto';
  const base = { name: spec.name, replicas, stable_replicas: spec.min_stable_replicas, options };
  const kinds = [...new Set(options.map(({ offer }) => offer.node_kind))];
  if (spec.devices.node_kinds.length < 2 || replicas === 'auto') return base;
  const mix = new Map(
    kinds.map((kind, at) => [
      kind,
      Math.floor(replicas / kinds.length) + (at < replicas % kinds.length ? 1 : 0),
    ]),
  );
  return { ...base, mix };
}

interface CostInputs {
  question: PlacementQuestion;
  performance: LatencyEstimator;
  costOf: OptionCost;
}

/** Without `packed` where the optimiser has no answer whose replicas all find a node. */
function optimise(
  competing: readonly AskedModel[],
  weighing: CostInputs,
  limits: SearchLimits,
): { packed: Packed; search: PlacementSearch } | Pick<PlacementSearch, 'because' | 'nodes' | 'repairs'> {
  if (competing.length === 0)
    return { packed: emptyPacking(weighing.question), search: { status: 'optimal', gap: 0, nodes: 0 } };
  const competitors = competing.map(({ competitor }) => competitor);
  let nodes = 0;
  let repairs: number | undefined;
  for (const sharing of [false, true]) {
    const types = deviceTypes(weighing.question);
    const counts = types.map(({ count }) => count);
    for (let round = 0; round < packing_rounds; round++) {
      const result = chooseAllocation(competitors, { ...weighing, counts, sharing }, limits);
      nodes += result.nodes;
      if (!('quotas' in result)) {
        if (result.status === 'unknown') repairs = (repairs ?? 0) + result.repairs;
        break;
      }
      const packed = pack(competing, result.quotas, weighing.question, sharing);
      if (packed.unplaced.length === 0) {
        const { cost, bound } = result;
        // Where fewer devices were counted than there are, the bound is not one of the whole question.
        const proved = result.status === 'optimal' && round === 0 && !sharing;
        const gap = cost > 0 ? Math.max(0, (cost - bound) / cost) : 0;
        return { packed, search: { status: proved ? 'optimal' : 'feasible', gap, nodes } };
      }
      if (sharing) break;
      for (const { option, replicas } of packed.unplaced) {
        const type = typeOf(option!.offer, types);
        counts[type] = Math.max(0, counts[type]! - replicas * option!.device_count);
      }
    }
  }
  return repairs === undefined ? { because: 'does_not_fit', nodes } : { because: 'no_time', nodes, repairs };
}

function emptyPacking(question: PlacementQuestion): Packed {
  return { packing: new Packing(question), placed: new Map(), unplaced: [] };
}

/** Replicas of many devices first: they need whole nodes. Within a model they are numbered in the order of its options. */
function pack(
  asked: readonly AskedModel[],
  quotas: Allocation,
  question: PlacementQuestion,
  sharing: boolean,
): Packed {
  const packed = emptyPacking(question);
  const groups = asked.flatMap((model) => {
    let replica = 0;
    const own = model.options.flatMap((option) => {
      const quota = quotas.get(option);
      return quota === undefined ? [] : [{ model, option, quota }];
    });
    const replicas = own.reduce((sum, { quota }) => sum + quota.replicas, 0);
    return own.map((group) => {
      const first = replica;
      replica += group.quota.replicas;
      return { ...group, first, replicas };
    });
  });
  groups.sort((a, b) => b.option.device_count - a.option.device_count);
  for (const { model, option, quota, first, replicas } of groups) {
    let count = 0;
    for (; count < quota.replicas; count++) {
      const at = first + count;
      const room =
        packed.packing.put(option, at, replicas, false) ||
        (sharing && packed.packing.put(option, at, replicas, true));
      if (!room) break;
    }
    if (count > 0)
      note(packed, model, option, { replicas: count, share: (quota.share * count) / quota.replicas });
    if (count < quota.replicas) packed.unplaced.push({ model, option, replicas: quota.replicas - count });
  }
  return packed;
}

/** Every replica takes the best option that is left; the largest models first. */
function firstFit(asked: readonly AskedModel[], { question, performance, costOf }: CostInputs): Packed {
  const packed = emptyPacking(question);
  for (const model of asked) {
    const { options, competitor } = model;
    const some = competitor.replicas === 'auto' ? 1 : competitor.replicas;
    const order = competitor.mix
      ? [...options]
      : options
          .map((option) => ({ option, cost: costOf(option, 1, 1 / some) }))
          .sort((a, b) => a.cost - b.cost)
          .map(({ option }) => option);
    const replicas =
      competitor.replicas === 'auto' ? replicasThatKeepUp(order[0]!, performance) : competitor.replicas;
    let placed = 0;
    for (; placed < replicas; placed++) {
      const onScavengers = replicas - competitor.stable_replicas;
      const scavengers = [...(packed.placed.get(model) ?? [])]
        .filter(([{ offer }]) => offer.tier === 'scavenger')
        .reduce((sum, [, quota]) => sum + quota.replicas, 0);
      const allowed = order.filter(({ offer }) => offer.tier === 'stable' || scavengers < onScavengers);
      const turn = competitor.mix ? placed % Math.max(1, allowed.length) : 0;
      const turned = [...allowed.slice(turn), ...allowed.slice(0, turn)];
      const option =
        turned.find((each) => packed.packing.put(each, placed, replicas, false)) ??
        turned.find((each) => packed.packing.put(each, placed, replicas, true));
      if (!option) break;
      note(packed, model, option, { replicas: 1, share: 1 / replicas });
    }
    // As many as there is room for is an answer to `auto`, as long as there is one.
    const needed = competitor.replicas === 'auto' ? 1 : replicas;
    if (placed < needed) packed.unplaced.push({ model, replicas: needed - placed });
    else if (placed < replicas) rescale(packed, model);
  }
  return packed;
}

/** The requests of a model that got fewer replicas than it asked for, over those it got. */
function rescale({ placed }: Packed, model: AskedModel): void {
  const own = placed.get(model)!;
  const all = [...own.values()].reduce((sum, { share }) => sum + share, 0);
  for (const [option, quota] of own) own.set(option, { ...quota, share: quota.share / all });
}

function note(
  { placed }: Packed,
  model: AskedModel,
  option: PlacementOption,
  { replicas, share }: { replicas: number; share: number },
): void {
  const own: Allocation = placed.get(model) ?? new Map();
  const before = own.get(option);
  own.set(option, {
    replicas: replicas + (before?.replicas ?? 0),
    share: share + (before?.share ?? 0),
  });
  placed.set(model, own);
}

function placementOf(
  asked: readonly AskedModel[],
  { packing, placed, unplaced }: Packed,
  search: PlacementSearch,
  weighing: CostInputs & { rejected: RejectedOption[] },
): Placement {
  const { question, rejected } = weighing;
  const launches = packing.launches();
  const devices_left = devicesLeft(question, placed);
  const missing = asked.flatMap((each) => {
    const { model, options, competitor } = each;
    const wanted = competitor.replicas === 'auto' ? 1 : competitor.replicas;
    const replicas =
      options.length === 0
        ? wanted
        : unplaced.filter((left) => left.model === each).reduce((sum, left) => sum + left.replicas, 0);
    if (replicas > 0) for (const option of options) rejected.push(usedUp(model, option));
    return replicas > 0 ? [{ model: model.spec.name, replicas }] : [];
  });
  const order = new Map(question.models.map((model, index) => [model.spec.name, index]));
  const described = asked
    .flatMap((each) => {
      const own =
        placed.get(each) ??
        (each.options[0] ? new Map([[each.options[0], { replicas: 0, share: 0 }]]) : undefined);
      if (own === undefined) return [];
      const placedModel: PlacedModel = { model: each.model, options: each.options, placed: own };
      const planned = plannedModel(placedModel, { ...weighing, devices_left });
      return [{ planned, warnings: warningsOf(planned, own, each.model) }];
    })
    .sort((a, b) => order.get(a.planned.model)! - order.get(b.planned.model)!);
  const gpus = launches.map(({ devices_per_node, node_count, time_limit_s }) => ({
    count: devices_per_node.kind === 'cpu' ? 0 : devices_per_node.count * node_count,
    time_limit_s,
  }));
  const bounded = gpus.every(({ count, time_limit_s }) => count === 0 || time_limit_s !== undefined);
  return {
    launches,
    models: described.map(({ planned }) => planned),
    rejected: distinct(rejected),
    warnings: described.flatMap(({ warnings }) => warnings),
    unplaced: missing,
    too_large: asked
      .filter(({ options }) => options.length === 0)
      .flatMap(({ model }) => tooLarge(model, rejected, question) ?? []),
    objective: question.objective ?? 'slo',
    search,
    gpu_count: gpus.reduce((sum, { count }) => sum + count, 0),
    ...(bounded
      ? {
          gpu_hours: gpus.reduce(
            (sum, { count, time_limit_s }) => sum + (count * (time_limit_s ?? 0)) / 3600,
            0,
          ),
        }
      : {}),
  };
}

function devicesLeft(question: PlacementQuestion, placed: Packed['placed']): Map<NodeKindOffer, number> {
  const types = deviceTypes(question);
  const left = types.map(({ count }) => count);
  for (const own of placed.values())
    for (const [option, { replicas }] of own)
      left[typeOf(option.offer, types)]! -= replicas * devicesTaken(option, question);
  return new Map(question.node_kinds.map((offer) => [offer, left[typeOf(offer, types)]!]));
}

function usedUp(model: PlacementModel, option: PlacementOption): RejectedOption {
  return {
    model: model.spec.name,
    node_kind: option.offer.node_kind,
    engine: option.engine,
    constraint: 'nodes_used_up',
    because: `all ${option.offer.nodes_total} node(s) of this kind are taken by replicas placed before`,
    available: option.offer.nodes_total,
  };
}

function distinct(rejected: readonly RejectedOption[]): RejectedOption[] {
  const seen = new Set<string>();
  return rejected.filter((each) => {
    const key = JSON.stringify(each);
    return seen.has(key) ? false : seen.add(key);
  });
}
