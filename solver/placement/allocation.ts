/**
 * How many replicas of each model go to each node kind, split how: the assignment problem of docs/solver.md, with
 * node kinds as types. Devices are counted, not packed; whether the replicas fit node by node is seen when they
 * are placed.
 */
import type { NodeKindOffer, PlacementQuestion } from '../../spec/plan.ts';
import { asleep_bytes, canSleep } from '../../spec/sleeping-engine.ts';
import type { AssignmentOption, AssignmentProblem } from '../assignment/problem.ts';
import { type SolveResult, solveAssignment } from '../assignment/solve.ts';
import { onRealGpu } from './engine-choice.ts';
import type { LatencyEstimator } from './latency-estimator.ts';
import { ownNodes } from './lenders.ts';
import { workloadOf } from './model-facts.ts';
import type { OptionCost } from './objective.ts';
import type { PlacementOption } from './options.ts';
import { framesOf_bytes } from './worker-memory.ts';

/** Replicas to place by option, and the share of requests they carry together; what is not here gets none. */
export type Allocation = Map<PlacementOption, AllocatedReplicas>;

export interface AllocatedReplicas {
  replicas: number;
  /** 0 to 1, of the model's requests. */
  share: number;
}

/** What one model asks of the devices: so many replicas, each by one of its options. */
export interface ModelDemand {
  name: string;
  /** `auto`: as many as the workload needs. */
  replicas: number | 'auto';
  /** Of them, on stable nodes at least; only with a number of replicas. */
  stable_replicas: number;
  options: readonly PlacementOption[];
  /** Replicas on each node kind, by `node_kind`, where a person asked for a mix. */
  mix?: ReadonlyMap<string, number>;
}

/** Nodes of a search at most: planning answers at once, with a good choice where not the best. */
const nodes_max = 20_000;
/** Units in which the requests of a model with `replicas: auto` are dealt out. */
const share_units = 12;
/** Replicas are added until the load is below this share of what they take: queues grow steeply above it. */
const utilization_wanted = 0.85;
/** Numbers of replicas listed for an option, about; above it they are taken in steps, with all complements. */
const counts_max = 64;
/** Devices of one kind the optimiser counts at most: a site config alone may not say how many there are. */
const devices_max = 1_000_000;
/** Numbers of replicas listed for an option and a share of requests where devices do not suffice. */
const counts_short = 24;
/** Costs become whole numbers: so many make the sum of every model's cheapest choice. */
const cost_resolution = 200_000;
const cost_max = 2 ** 38;
/** Sharing counts devices in so many parts. */
const device_parts = 60;

/**
 * Devices of a node a replica keeps others from using: its own, or its share of cores or host memory; of several nodes
 * all.
 */
export function devicesTaken(option: PlacementOption, question: PlacementQuestion): number {
  const { offer } = option;
  const { count } = offer.devices;
  if (option.nodes > 1) return ownNodes(option) * count;
  const byCpus = (count * option.threads) / offer.cpus;
  return Math.max(option.device_count, byCpus, byHostMemory(option, question));
}

function byHostMemory(option: PlacementOption, question: PlacementQuestion): number {
  const { offer } = option;
  if (onRealGpu(offer)) return 0;
  const host = offer.memory_bytes - question.settings.host_overhead_bytes;
  const device_bytes = option.memory.bytes_per_device + framesOf_bytes(option);
  return (offer.devices.count * device_bytes * option.device_count) / Math.max(1, host);
}

/** The same where models of the native engine may share a device: its memory is what they divide. */
function partsTaken(option: PlacementOption, question: PlacementQuestion): number {
  const { memory, model, engine, offer } = option;
  if (canSleep(engine, model.spec) && option.device_count === 1)
    // One is awake: so many fit as leave room for what the others keep.
    return (
      asleep_bytes /
      Math.max(asleep_bytes, offer.devices.memory_bytes - memory.bytes_per_device + asleep_bytes)
    );
  if (engine !== 'native') return devicesTaken(option, question);
  return Math.max(
    option.memory.bytes_per_device / option.offer.devices.memory_bytes,
    byHostMemory(option, question),
  );
}

/** One way in which an option may be chosen: so many replicas for so many units of the model's requests. */
interface Candidate extends AllocatedReplicas {
  option: PlacementOption;
  units: number;
}

interface Listed {
  problem: AssignmentProblem;
  /** Behind each option of the problem, and the model it is an option of. */
  candidates: Candidate[][];
}

export interface AllocationQuestion {
  question: PlacementQuestion;
  estimator: LatencyEstimator;
  costOf: OptionCost;
  /** Devices there are by type, where fewer can be used than there are. */
  counts?: readonly number[];
  /** Absent: only pools are bounded. */
  memberLimits?: MemberLimits | undefined;
  /** Native models may share devices. */
  sharing?: boolean;
  /** Devices do not suffice for all load: models with `replicas: auto` may get fewer than they need. */
  short?: boolean;
}

/** What the optimiser takes for one type of devices: a node kind, or all kinds of one pool. */
export interface DeviceType {
  offers: readonly NodeKindOffer[];
  count: number;
}

/** Devices as the optimiser counts them: those of nodes that several kinds stand for count once. */
export function deviceTypes({ node_kinds }: PlacementQuestion): DeviceType[] {
  const types: { offers: NodeKindOffer[]; count: number }[] = [];
  for (const offer of node_kinds) {
    const { pool, nodes_total, devices } = offer;
    const same = pool && types.find(({ offers }) => offers[0]!.pool?.id === pool.id);
    if (same) same.offers.push(offer);
    else
      types.push({
        offers: [offer],
        count: Math.min(devices_max, (pool?.nodes ?? nodes_total) * devices.count),
      });
  }
  return types;
}

/** Index of the type that an offer belongs to. */
export function deviceTypeIndex(offer: NodeKindOffer, types: readonly DeviceType[]): number {
  return types.findIndex(({ offers }) => offers.includes(offer));
}

/** Whether a pool has nodes that are not of this kind. */
export function isSmallMember({ pool, nodes_total }: NodeKindOffer): boolean {
  return pool !== undefined && nodes_total < pool.nodes;
}

/**
 * Devices that a model may have of kinds with fewer nodes than their pools, by the model's name, where it has a choice
 * of kinds: at first what models leave which can be nowhere else. The optimiser counts devices of pools, whichever
 * member they are taken by.
 */
export type MemberLimits = ReadonlyMap<string, Map<NodeKindOffer, number>>;

export function limitsOfMembers(
  models: readonly ModelDemand[],
  question: PlacementQuestion,
): MemberLimits | undefined {
  const members = question.node_kinds.filter(isSmallMember);
  if (members.length === 0) return undefined;
  const left = members.map((offer) => {
    const bound = models.reduce((sum, model) => sum + boundDevices(model, offer, question), 0);
    return [offer, Math.max(0, Math.floor(offer.nodes_total * offer.devices.count - bound))] as const;
  });
  return new Map(models.map(({ name }) => [name, new Map(left)]));
}

/** Devices of a kind that a model takes at least, since it can be nowhere else, or its stable replicas cannot. */
function boundDevices(
  { options, replicas, stable_replicas }: ModelDemand,
  offer: NodeKindOffer,
  question: PlacementQuestion,
): number {
  const stable = options.filter((option) => option.offer.tier === 'stable');
  const areAllHere = (some: readonly PlacementOption[]): boolean =>
    some.length > 0 && some.every((option) => option.offer === offer);
  const least = areAllHere(options) ? (replicas === 'auto' ? 1 : replicas) : 0;
  const leastStable = areAllHere(stable) ? stable_replicas : 0;
  if (Math.max(least, leastStable) === 0) return 0;
  const own = options.filter((option) => option.offer === offer);
  return Math.max(least, leastStable) * Math.min(...own.map((option) => devicesTaken(option, question)));
}

/** Those that keep to the limits, where there is a choice of kinds. */
function withinLimits(
  name: string,
  candidates: readonly Candidate[],
  { question, memberLimits }: AllocationQuestion,
): Candidate[] {
  const [first] = candidates;
  const isBound = candidates.every(({ option }) => option.offer === first?.option.offer);
  const limits = memberLimits?.get(name);
  if (limits === undefined || isBound) return [...candidates];
  return candidates.filter(({ option, replicas }) => {
    const limit = limits.get(option.offer);
    return limit === undefined || replicas * devicesTaken(option, question) <= limit;
  });
}

/** The problem, and what is behind each of its options. */
function problemOf(models: readonly ModelDemand[], asked: AllocationQuestion): Listed {
  const { question, costOf, sharing = false } = asked;
  const parts = sharing ? device_parts : 1;
  const taken = sharing ? partsTaken : devicesTaken;
  const types = deviceTypes(question);
  const counts = (asked.counts ?? types.map(({ count }) => count)).map((count) => count * parts);
  const candidates: Candidate[][] = [];
  const shares: number[] = [];
  for (const model of models)
    for (const { units, candidates: listed } of candidatesOf(model, asked)) {
      candidates.push(withinLimits(model.name, listed, asked));
      shares.push(units);
    }
  const costs = candidates.map((each) =>
    each.map(({ option, replicas, share }) => costOf(option, replicas, share)),
  );
  const least = candidates.reduce(
    (sum, each, model) =>
      sum + Math.min(...each.map(({ units }, at) => (costs[model]![at]! * shares[model]!) / units)),
    0,
  );
  const scale = least > 0 && Number.isFinite(least) ? cost_resolution / least : 1;
  const options = candidates.map((each, model) =>
    each.map(
      ({ option, replicas, units }, at): AssignmentOption => ({
        type: deviceTypeIndex(option.offer, types),
        devices: Math.ceil(replicas * taken(option, question) * parts - 1e-9),
        share: units,
        cost: Math.round(Math.min(cost_max, costs[model]![at]! * scale)),
      }),
    ),
  );
  return { problem: { counts, shares, options }, candidates };
}

/** One entry a part of the model that is assigned by itself: what must be stable, and the rest. */
function candidatesOf(
  model: ModelDemand,
  asked: AllocationQuestion,
): { units: number; candidates: Candidate[] }[] {
  if (model.replicas === 'auto')
    return [{ units: share_units, candidates: model.options.flatMap((option) => byWorkload(option, asked)) }];
  const all = model.replicas;
  const stable = Math.min(all, model.stable_replicas);
  const filling = fillingNumbers(model, asked);
  const fixed = (replicas: number, options: readonly PlacementOption[]): Candidate[] =>
    options.flatMap((option) =>
      (model.mix ? [model.mix.get(option.offer.node_kind) ?? 0] : numbersUpTo(replicas, filling))
        .filter((number) => number > 0)
        .map((number) => ({ option, replicas: number, share: number / all, units: number })),
    );
  if (stable === 0 || model.mix) return [{ units: all, candidates: fixed(all, model.options) }];
  const onStable = model.options.filter(({ offer }) => offer.tier === 'stable');
  return [
    { units: stable, candidates: fixed(stable, onStable) },
    ...(stable < all ? [{ units: all - stable, candidates: fixed(all - stable, model.options) }] : []),
  ];
}

/**
 * All numbers up to `most`; of large ones every so many, those below the first of these, what fills a type of devices,
 * and what each of them leaves: a plan that takes every device has such numbers.
 */
function numbersUpTo(most: number, filling: readonly number[]): number[] {
  const step = Math.ceil(most / counts_max);
  const numbers = new Set<number>();
  const add = (number: number): void => void numbers.add(number).add(most - number);
  for (let number = step; number <= most; number += step) add(number);
  for (let number = 1; number < step; number++) add(number);
  for (const number of filling) if (number < most) add(number);
  numbers.add(most).delete(0);
  return [...numbers].sort((a, b) => a - b);
}

/** Replicas that take all devices of a type, by each of the options. */
function fillingNumbers(
  { name, options }: ModelDemand,
  { question, counts, memberLimits, sharing = false }: AllocationQuestion,
): number[] {
  const types = deviceTypes(question);
  const taken = sharing ? partsTaken : devicesTaken;
  return options.map((option) => {
    const type = deviceTypeIndex(option.offer, types);
    const count = Math.min(
      counts?.[type] ?? types[type]!.count,
      memberLimits?.get(name)?.get(option.offer) ?? Number.POSITIVE_INFINITY,
    );
    return Math.floor(count / taken(option, question) + 1e-9);
  });
}

/** For each share of the requests: the fewest replicas that keep up, and some more that answer faster. */
function byWorkload(
  option: PlacementOption,
  { question, estimator, counts, short = false }: AllocationQuestion,
): Candidate[] {
  const types = deviceTypes(question);
  const type = deviceTypeIndex(option.offer, types);
  const { nodes_total, devices } = option.offer;
  const own = ownNodes(option);
  const most = Math.min(
    4096,
    Math.floor((counts?.[type] ?? types[type]!.count) / ((option.device_count / option.nodes) * own)),
    option.nodes > 1
      ? Math.floor(nodes_total / own)
      : nodes_total * Math.floor(devices.count / option.device_count),
  );
  const { rate_per_s } = workloadOf(option.model);
  const sustained = estimator.maxRate(option);
  const candidates: Candidate[] = [];
  for (let units = 1; units <= share_units && most > 0; units++) {
    const share = units / share_units;
    const needed =
      sustained === undefined ? 1 : Math.ceil((rate_per_s * share) / (utilization_wanted * sustained));
    const enough = Math.max(1, Math.min(most, needed));
    const from = short ? 1 : enough;
    const to = short ? enough : Math.min(most, Math.ceil(1.5 * from) + 2);
    const step = Math.max(1, Math.floor((to - from) / (short ? counts_short : 8)));
    for (let replicas = from; replicas <= to; replicas += step)
      candidates.push({ option, replicas, share, units });
  }
  return candidates;
}

export type AllocationResult =
  | { allocation: Allocation; status: 'optimal' | 'feasible'; cost: number; bound: number; nodes: number }
  | { status: 'infeasible' | 'unknown'; nodes: number; repairs: number };

export interface AllocationLimits {
  /** Asked at every node of the search; true ends it with what it has. */
  shouldStop?: () => boolean;
  /** Told at each better plan and each better bound, in the objective's points. */
  onProgress?: (progress: { cost: number | undefined; bound: number }) => void;
}

/** The best division of devices; `infeasible` where they do not suffice. */
export function chooseAllocation(
  models: readonly ModelDemand[],
  asked: AllocationQuestion,
  limits: AllocationLimits = {},
): AllocationResult {
  const { problem, candidates } = problemOf(models, asked);
  if (problem.options.some((each) => each.length === 0))
    return { status: 'infeasible', nodes: 0, repairs: 0 };
  const { status, choice, cost, bound, nodes, repairs } = solveAssignment(problem, { nodes_max, ...limits });
  if (choice === undefined || cost === undefined)
    return { status: status === 'infeasible' ? 'infeasible' : 'unknown', nodes, repairs };
  const allocation: Allocation = new Map();
  choice.forEach((indices, model) => {
    for (const index of indices) {
      const { option, replicas, share } = candidates[model]![index]!;
      const before = allocation.get(option);
      allocation.set(option, {
        replicas: replicas + (before?.replicas ?? 0),
        share: share + (before?.share ?? 0),
      });
    }
  });
  return { allocation, status: status === 'optimal' ? 'optimal' : 'feasible', cost, bound, nodes };
}

/** Whether devices suffice for these models at all, each with its own; undefined where nobody can tell in time. */
export function suffices(
  models: readonly ModelDemand[],
  asked: Omit<AllocationQuestion, 'costOf'>,
  nodes_max: number,
): boolean | undefined {
  // What it costs is no matter here.
  const { problem } = problemOf(models, { ...asked, costOf: () => 0 });
  if (problem.options.some((each) => each.length === 0)) return false;
  const { status }: SolveResult = solveAssignment(problem, { nodes_max: nodes_max });
  return status === 'infeasible' ? false : status === 'unknown' ? undefined : true;
}
