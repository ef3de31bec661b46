/**
 * Placement: every option is checked against every constraint, the optimiser divides replicas over node kinds, and
 * nodes are filled first-fit.
 */
import { HpcserveError } from '../../spec/errors/error.ts';
import { plannedNameOf } from '../../spec/model-pools.ts';
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
  type AllocationLimits,
  chooseAllocation,
  devicesTaken,
  deviceTypeIndex,
  deviceTypes,
  isSmallMember,
  limitsOfMembers,
  type MemberLimits,
  type ModelDemand,
} from './allocation.ts';
import { checkPlacement } from './check.ts';
import { findClash } from './clash.ts';
import { type PlacedModel, placementWarnings, plannedModel, replicasThatKeepUp } from './describe.ts';
import { LatencyEstimator } from './latency-estimator.ts';
import { shapeOf } from './model-facts.ts';
import { type OptionCost, objectiveCost } from './objective.ts';
import { type PlacementOption, placementOptions } from './options.ts';
import { Packing, type Sharing } from './packing.ts';
import { placeWithResidencies, withResidency } from './residencies.ts';
import { tooLarge } from './too-large.ts';

export interface PlaceOptions extends AllocationLimits {
  /** What is minimised; default: the objective of the question. */
  costOf?: OptionCost;
  /** What earlier questions learned of speeds; for a process that plans again and again. */
  estimator?: LatencyEstimator;
}

/** Rounds in which what did not pack into nodes is counted as not there. */
const packing_rounds = 4;

interface AskedModel {
  model: PlacementModel;
  options: readonly PlacementOption[];
  demand: ModelDemand;
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
 * pack into nodes, every replica takes the best option that is left, largest weights first. Where weights lie of models
 * that leave it open is settled first, by trying (`residencies.ts`).
 * @throws HpcserveError E_INTERNAL where the checker finds the result unsound
 */
export function place(question: PlacementQuestion, options: PlaceOptions = {}): Placement {
  const estimator = options.estimator ?? new LatencyEstimator();
  return placeWithResidencies(question, estimator, (settled) =>
    placeSettled(settled, { ...options, estimator }),
  );
}

function placeSettled(
  question: PlacementQuestion,
  options: PlaceOptions & { estimator: LatencyEstimator },
): Placement {
  const rejected: RejectedOption[] = [];
  const { estimator } = options;
  const asked = [...question.models]
    .sort((a, b) => b.weight_bytes - a.weight_bytes || (a.spec.name < b.spec.name ? -1 : 1))
    .map((model): AskedModel => {
      const feasible = feasibleOptions(model, question, rejected);
      return { model, options: feasible, demand: demandOf(model, feasible) };
    });
  const byModel = new Map(asked.map(({ model, options }) => [model.spec.name, options]));
  const costOf = options.costOf ?? objectiveCost(question, estimator, byModel);
  const competing = asked.filter(({ options, demand }) => options.length > 0 && demand.replicas !== 0);
  const chosen = optimise(competing, { question, estimator, costOf }, options);
  const { packed, search } =
    'packed' in chosen
      ? chosen
      : {
          packed: firstFit(competing, { question, estimator, costOf }),
          search: { status: 'first_fit', ...chosen } as const,
        };
  const placement = placementOf(asked, packed, search, { question, estimator, costOf, rejected });
  if (placement.unplaced.length > 0) {
    const clash = findClash(
      competing.map(({ demand }) => demand),
      { question, estimator },
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

/** What one more replica costs on a kind of node, by the objective of the question. */
export interface KindCost {
  node_kind: string;
  cost: number;
}

/**
 * By model, what a replica costs on each kind that can run it, by its best option there: in points of one question, so
 * that kinds of several sites compare.
 * @param replicas among which the model's requests are divided
 */
export function replicaCosts(
  question: PlacementQuestion,
  replicas: (model: string) => number,
): ReadonlyMap<string, KindCost[]> {
  const byModel = new Map(
    question.models.map((model) => {
      const lying = feasibleOptions(model, question, []);
      // Where weights lie is left to the plan, which streams what no device holds.
      const isStreamed = lying.length === 0 && model.spec.weights === 'auto';
      const options = isStreamed ? feasibleOptions(withResidency(model, 'streamed'), question, []) : lying;
      return [model.spec.name, options];
    }),
  );
  const costOf = objectiveCost({ ...question, running: undefined }, new LatencyEstimator(), byModel);
  const costs = new Map<string, KindCost[]>();
  for (const [model, options] of byModel) {
    const share = 1 / Math.max(1, replicas(model));
    const best = new Map<string, number>();
    for (const option of options) {
      const { node_kind } = option.offer;
      // What nodes are free is told by each site as it is then.
      const free = { ...option, offer: { ...option.offer, free: undefined, nodes_idle: undefined } };
      best.set(node_kind, Math.min(best.get(node_kind) ?? Number.POSITIVE_INFINITY, costOf(free, 1, share)));
    }
    costs.set(
      model,
      [...best].map(([node_kind, cost]) => ({ node_kind, cost })),
    );
  }
  return costs;
}

function feasibleOptions(
  model: PlacementModel,
  question: PlacementQuestion,
  rejected: RejectedOption[],
): PlacementOption[] {
  const shape = shapeOf(model);
  const feasible: PlacementOption[] = [];
  for (const offer of question.node_kinds) {
    const found = placementOptions(model, shape, offer, question);
    if ('constraint' in found) rejected.push(found);
    else feasible.push(...found);
  }
  const asked = model.spec.devices.node_kinds;
  return asked.length === 0
    ? feasible
    : feasible.sort((a, b) => asked.indexOf(a.offer.node_kind) - asked.indexOf(b.offer.node_kind));
}

/** Kinds that were listed by name take turns: the person asked for that mix. */
function demandOf({ spec, workload }: PlacementModel, options: readonly PlacementOption[]): ModelDemand {
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
  estimator: LatencyEstimator;
  costOf: OptionCost;
}

/** Without `packed` where the optimiser has no answer whose replicas all find a node. */
function optimise(
  competing: readonly AskedModel[],
  inputs: CostInputs,
  limits: AllocationLimits,
): { packed: Packed; search: PlacementSearch } | Pick<PlacementSearch, 'because' | 'nodes' | 'repairs'> {
  if (competing.length === 0)
    return { packed: emptyPacking(inputs.question), search: { status: 'optimal', gap: 0, nodes: 0 } };
  const demands = competing.map(({ demand }) => demand);
  let nodes = 0;
  let repairs: number | undefined;
  // Each with devices of its own; then models that follow their load fall short of it; then devices are shared.
  const mayFallShort = demands.some(({ replicas }) => replicas === 'auto');
  const ways = ['own', 'short', 'shared'] as const;
  for (const way of ways.filter((each) => each !== 'short' || mayFallShort)) {
    const sharing = way === 'shared';
    const types = deviceTypes(inputs.question);
    const counts = types.map(({ count }) => count);
    const memberLimits = sharing ? undefined : limitsOfMembers(demands, inputs.question);
    for (let round = 0; round < packing_rounds; round++) {
      const result = chooseAllocation(
        demands,
        { ...inputs, counts, memberLimits, sharing, short: way === 'short' },
        limits,
      );
      nodes += result.nodes;
      if (!('allocation' in result)) {
        if (result.status === 'unknown') repairs = (repairs ?? 0) + result.repairs;
        break;
      }
      const packed = pack(competing, result.allocation, inputs, sharing);
      if (packed.unplaced.length === 0) {
        const { cost, bound } = result;
        // Where fewer devices were counted than there are, the bound is not one of the whole question.
        const proved = result.status === 'optimal' && round === 0 && !sharing;
        const gap = cost > 0 ? Math.max(0, (cost - bound) / cost) : 0;
        return { packed, search: { status: proved ? 'optimal' : 'feasible', gap, nodes } };
      }
      if (sharing) break;
      for (const { model, option, replicas } of packed.unplaced) {
        if (lowerLimit(memberLimits, packed, model, option!)) continue;
        const type = deviceTypeIndex(option!.offer, types);
        counts[type] = Math.max(0, counts[type]! - replicas * option!.device_count);
      }
    }
  }
  return repairs === undefined ? { because: 'does_not_fit', nodes } : { because: 'no_time', nodes, repairs };
}

/**
 * A model with a choice of kinds may have no more of a pool's smaller member than found a node there.
 * @returns whether it had more
 */
function lowerLimit(
  limits: MemberLimits | undefined,
  { placed }: Packed,
  model: AskedModel,
  option: PlacementOption,
): boolean {
  const own = limits?.get(model.demand.name);
  const limit = own?.get(option.offer) ?? 0;
  const devices = (placed.get(model)?.get(option)?.replicas ?? 0) * option.device_count;
  if (own === undefined || devices >= limit) return false;
  own.set(option.offer, devices);
  return true;
}

/** Whether a model can be nowhere else than on a pool's smaller member: others go elsewhere where it has no room. */
function isBoundToMember({ options }: AskedModel): boolean {
  const [first] = options;
  return (
    first !== undefined && isSmallMember(first.offer) && options.every(({ offer }) => offer === first.offer)
  );
}

function emptyPacking(question: PlacementQuestion): Packed {
  return { packing: new Packing(question), placed: new Map(), unplaced: [] };
}

/**
 * Replicas of many devices first: they need whole nodes; then those that can be nowhere else. Within a model they are
 * numbered in the order of its options.
 */
function pack(
  asked: readonly AskedModel[],
  allocation: Allocation,
  { question, estimator }: CostInputs,
  sharing: boolean,
): Packed {
  const packed = emptyPacking(question);
  const groups = asked.flatMap((model) => {
    let replica = 0;
    const own = model.options.flatMap((option) => {
      const allocated = allocation.get(option);
      return allocated === undefined ? [] : [{ model, option, allocated }];
    });
    const replicas = own.reduce((sum, { allocated }) => sum + allocated.replicas, 0);
    return own.map((group) => {
      const first = replica;
      replica += group.allocated.replicas;
      return { ...group, first, replicas };
    });
  });
  groups.sort(
    (a, b) =>
      b.option.device_count - a.option.device_count ||
      Number(isBoundToMember(b.model)) - Number(isBoundToMember(a.model)),
  );
  for (const { model, option, allocated, first, replicas } of groups) {
    const used = new Map<PlacementOption, number>();
    let count = 0;
    const ways: Sharing[] = sharing ? ['light', 'none', 'any'] : ['light', 'none'];
    for (; count < allocated.replicas; count++) {
      const at = first + count;
      const put = (each: PlacementOption): boolean => {
        const time = timeOf(each, allocated, estimator);
        return ways.some((way) => packed.packing.put(each, at, replicas, way, time));
      };
      const one = withOtherLenders(option).find(put);
      if (!one) break;
      used.set(one, (used.get(one) ?? 0) + 1);
    }
    for (const [one, some] of used)
      note(packed, model, one, { replicas: some, share: (allocated.share * some) / allocated.replicas });
    if (count < allocated.replicas)
      packed.unplaced.push({ model, option, replicas: allocated.replicas - count });
  }
  return packed;
}

/** An option, and what stands in for it where the nodes that lend it stages are taken. */
function withOtherLenders(option: PlacementOption): PlacementOption[] {
  return [option, ...(option.lent_elsewhere ?? [])];
}

/** Share of its device's time that one replica of these computes; all of it where nothing is known of the model. */
function timeOf(
  option: PlacementOption,
  { replicas, share }: { replicas: number; share: number },
  estimator: LatencyEstimator,
): number {
  return estimator.predict(option, replicas, share)?.utilization ?? 1;
}

/** Every replica takes the best option that is left; the largest models first. */
function firstFit(asked: readonly AskedModel[], { question, estimator, costOf }: CostInputs): Packed {
  const packed = emptyPacking(question);
  for (const model of asked) {
    const { options, demand } = model;
    const some = demand.replicas === 'auto' ? 1 : demand.replicas;
    const order = demand.mix
      ? [...options]
      : options
          .map((option) => ({ option, cost: costOf(option, 1, 1 / some) }))
          .sort((a, b) => a.cost - b.cost)
          .map(({ option }) => option);
    const replicas = demand.replicas === 'auto' ? replicasThatKeepUp(order[0]!, estimator) : demand.replicas;
    let placed = 0;
    for (; placed < replicas; placed++) {
      const onScavengers = replicas - demand.stable_replicas;
      const scavengers = [...(packed.placed.get(model) ?? [])]
        .filter(([{ offer }]) => offer.tier === 'scavenger')
        .reduce((sum, [, allocated]) => sum + allocated.replicas, 0);
      const allowed = order.filter(({ offer }) => offer.tier === 'stable' || scavengers < onScavengers);
      const turn = demand.mix ? placed % Math.max(1, allowed.length) : 0;
      const turned = [...allowed.slice(turn), ...allowed.slice(0, turn)].flatMap(withOtherLenders);
      const put = (each: PlacementOption, way: Sharing): boolean => {
        const time = timeOf(each, { replicas: 1, share: 1 / replicas }, estimator);
        return packed.packing.put(each, placed, replicas, way, time);
      };
      const option =
        turned.find((each) => put(each, 'light') || put(each, 'none')) ??
        turned.find((each) => put(each, 'any'));
      if (!option) break;
      note(packed, model, option, { replicas: 1, share: 1 / replicas });
    }
    // As many as there is room for is an answer to `auto`, as long as there is one.
    const needed = demand.replicas === 'auto' ? 1 : replicas;
    if (placed < needed) packed.unplaced.push({ model, replicas: needed - placed });
    else if (placed < replicas) rescale(packed, model);
  }
  return packed;
}

/** The requests of a model that got fewer replicas than it asked for, over those it got. */
function rescale({ placed }: Packed, model: AskedModel): void {
  const own = placed.get(model)!;
  const all = [...own.values()].reduce((sum, { share }) => sum + share, 0);
  for (const [option, allocated] of own) own.set(option, { ...allocated, share: allocated.share / all });
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
  inputs: CostInputs & { rejected: RejectedOption[] },
): Placement {
  const { question, rejected } = inputs;
  const launches = packing.launches();
  const devices_left = devicesLeft(question, placed);
  const missing = asked.flatMap((each) => {
    const { model, options, demand } = each;
    const wanted = demand.replicas === 'auto' ? 1 : demand.replicas;
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
      const resident_bytes = (option: PlacementOption): number =>
        leastGiven(option, launches, 'resident_bytes');
      const locked_bytes = (option: PlacementOption): number => leastGiven(option, launches, 'locked_bytes');
      const link_share = (option: PlacementOption): number => packing.linkShare(option);
      const about = { ...inputs, devices_left, resident_bytes, link_share, locked_bytes };
      const planned = plannedModel(placedModel, about);
      return [{ planned, warnings: placementWarnings(planned, own, each.model) }];
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
    warnings: [...described.flatMap(({ warnings }) => warnings), ...packing.cacheWarnings()],
    unplaced: missing,
    too_large: asked
      .filter(({ options }) => options.length === 0)
      .flatMap(({ model }) => tooLarge(model, rejected, question) ?? []),
    objective: question.objective ?? 'slo',
    search,
    gpu_count: gpus.reduce((sum, { count }) => sum + count, 0),
    gpu_hours: bounded
      ? gpus.reduce((sum, { count, time_limit_s }) => sum + (count * (time_limit_s ?? 0)) / 3600, 0)
      : undefined,
  };
}

/** Of what the plan gave replicas of a model on a kind of device, what each of them has at least. */
function leastGiven(
  { model, offer }: PlacementOption,
  launches: Placement['launches'],
  what: 'resident_bytes' | 'locked_bytes',
): number {
  const on = launches.filter(
    ({ node_kind, tier, devices_per_node }) =>
      node_kind === offer.node_kind && tier === offer.tier && devices_per_node.model === offer.devices.model,
  );
  const units = on
    .flatMap((launch) => launch.units)
    .filter((unit) => plannedNameOf(unit) === model.spec.name);
  if (units.length === 0) return 0;
  return Math.min(...units.map(({ memory }) => memory?.[what] ?? 0));
}

function devicesLeft(question: PlacementQuestion, placed: Packed['placed']): Map<NodeKindOffer, number> {
  const types = deviceTypes(question);
  const left = types.map(({ count }) => count);
  for (const own of placed.values())
    for (const [option, { replicas }] of own)
      left[deviceTypeIndex(option.offer, types)]! -= replicas * devicesTaken(option, question);
  return new Map(question.node_kinds.map((offer) => [offer, left[deviceTypeIndex(offer, types)]!]));
}

function usedUp(model: PlacementModel, option: PlacementOption): RejectedOption {
  return {
    model: model.spec.name,
    node_kind: option.offer.node_kind,
    engine: option.engine,
    constraint: 'nodes_used_up',
    because: takenBefore(option),
    available: option.offer.nodes_total,
  };
}

function takenBefore(option: PlacementOption): string {
  const { offer, lender } = option;
  const lending = withOtherLenders(option).map((each) => each.lender?.node_kind);
  return lender === undefined || lender === offer
    ? `all ${offer.nodes_total} node(s) of this kind are taken by replicas placed before`
    : `its ${offer.nodes_total} node(s), or those of ${lending.join(', ')} that lend it stages, are taken by replicas placed before`;
}

function distinct(rejected: readonly RejectedOption[]): RejectedOption[] {
  const seen = new Set<string>();
  return rejected.filter((each) => {
    const key = JSON.stringify(each);
    return seen.has(key) ? false : seen.add(key);
  });
}
