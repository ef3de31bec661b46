/**
 * Placement: every option is checked against every constraint, the optimiser divides replicas over node
 * kinds, and nodes are filled first-fit. One job a node, several replicas in it where devices allow: small
 * jobs start in holes that large ones wait for.
 */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type {
  NodeKindOffer,
  Placement,
  PlacementModel,
  PlacementQuestion,
  PlannedLaunch,
  PlannedModel,
  RejectedOption,
} from '../../spec/plan.ts';
import { checkPlacement } from './check.ts';
import { findClash } from './clash.ts';
import { type ReplicaCost, replicaCost } from './cost.ts';
import { onRealGpu } from './engine-choice.ts';
import { optionOf, type PlacementOption, rankOptions } from './options.ts';
import { chooseQuotas, type ModelOptions, type Quotas } from './quotas.ts';

/** A node that gets a job: what is taken of it so far. */
interface OpenNode {
  offer: NodeKindOffer;
  time_limit_s?: number;
  /** Bytes taken and models placed, by device index. */
  devices: { bytes: number; models: string[]; exclusive: boolean }[];
  units: UnitSpec[];
  threads_by_device: Map<number, number>;
  host_bytes: number;
}

/**
 * Places all replicas of all models; deterministic. The optimiser says how many replicas of each model go
 * to which node kind; where devices do not suffice without sharing, or its numbers do not pack into nodes,
 * every replica takes the best option that is left, largest weights first.
 * @param costOf what is minimised; default: the order of preference of cost.ts
 * @throws HpcserveError E_INTERNAL where the checker finds the result unsound
 */
export function place(question: PlacementQuestion, costOf: ReplicaCost = replicaCost): Placement {
  const rejected: RejectedOption[] = [];
  const asked = [...question.models]
    .sort((a, b) => b.weight_bytes - a.weight_bytes || (a.spec.name < b.spec.name ? -1 : 1))
    .map((model) => ({ model, options: feasibleOptions(model, question, rejected) }));
  const competing = asked.map(({ model, options }) => modelOptions(model, options));
  const placeable = competing.filter(({ options, replicas }) => options.length > 0 && replicas > 0);
  const quotas = chooseQuotas(placeable, question, costOf);
  let placement = quotas && placeBy(asked, quotas, rejected, question);
  if (placement === undefined || placement.unplaced.length > 0) {
    const filled = placeBy(asked, undefined, rejected, question);
    if (placement === undefined || missing(filled) < missing(placement)) placement = filled;
  }
  if (placement.unplaced.length > 0) {
    const clash = findClash(competing, question);
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

interface AskedModel {
  model: PlacementModel;
  options: readonly PlacementOption[];
}

function missing({ unplaced }: Placement): number {
  return unplaced.reduce((sum, { replicas }) => sum + replicas, 0);
}

/** Kinds that were listed by name take turns: the person asked for that mix. */
function modelOptions({ spec }: PlacementModel, options: readonly PlacementOption[]): ModelOptions {
  const base = { name: spec.name, replicas: spec.replicas, options };
  if (spec.devices.node_kinds.length < 2) return base;
  const mix = options.map(
    (_, at) => Math.floor(spec.replicas / options.length) + (at < spec.replicas % options.length ? 1 : 0),
  );
  return { ...base, mix };
}

/** @param quotas replicas by option; undefined: every replica takes the best option left */
function placeBy(
  asked: readonly AskedModel[],
  quotas: Quotas | undefined,
  rejectedBefore: readonly RejectedOption[],
  question: PlacementQuestion,
): Placement {
  const rejected = [...rejectedBefore];
  const warnings: string[] = [];
  const models: PlannedModel[] = [];
  const unplaced: { model: string; replicas: number }[] = [];
  const nodes: OpenNode[] = [];
  for (const { model, options } of asked) {
    const used = new Map<PlacementOption, number>();
    let placed = 0;
    for (; placed < model.spec.replicas; placed++) {
      const left = quotas
        ? options.filter((option) => (used.get(option) ?? 0) < (quotas.get(option) ?? 0))
        : options;
      const option = placeReplica(model, placed, left, nodes, question);
      if (!option) break;
      used.set(option, (used.get(option) ?? 0) + 1);
    }
    if (placed < model.spec.replicas) {
      unplaced.push({ model: model.spec.name, replicas: model.spec.replicas - placed });
      for (const option of options) rejected.push(usedUp(model, option));
    }
    const first = [...used.keys()][0] ?? options[0];
    if (!first) continue;
    models.push(planned(model, placed, first, used));
    warnings.push(...warningsOf(model, used));
  }
  const order = new Map(question.models.map((model, index) => [model.spec.name, index]));
  models.sort((a, b) => order.get(a.model)! - order.get(b.model)!);
  return { launches: nodes.map((node) => launchOf(node, question)), models, rejected, warnings, unplaced };
}

function feasibleOptions(
  model: PlacementModel,
  question: PlacementQuestion,
  rejected: RejectedOption[],
): PlacementOption[] {
  const feasible: PlacementOption[] = [];
  for (const offer of question.node_kinds) {
    const option = optionOf(model, offer, question);
    if ('constraint' in option) rejected.push(option);
    else feasible.push(option);
  }
  const asked = model.spec.devices.node_kinds;
  if (asked.length === 0) return rankOptions(feasible);
  return feasible.sort((a, b) => asked.indexOf(a.offer.node_kind) - asked.indexOf(b.offer.node_kind));
}

/**
 * The option order for one replica: kinds that were listed by name take turns (the person asked for that
 * mix), otherwise the best first. Within an option: an empty device of an open node, then a new node,
 * then a device shared with other models.
 */
function placeReplica(
  model: PlacementModel,
  replica: number,
  options: readonly PlacementOption[],
  nodes: OpenNode[],
  question: PlacementQuestion,
): PlacementOption | undefined {
  const spread = model.spec.devices.node_kinds.length > 1 ? replica % Math.max(1, options.length) : 0;
  const order = [...options.slice(spread), ...options.slice(0, spread)];
  for (const sharing of [false, true]) {
    for (const option of order) {
      if (placeOn(option, replica, nodes, question, sharing)) return option;
    }
  }
  return undefined;
}

function placeOn(
  option: PlacementOption,
  replica: number,
  nodes: OpenNode[],
  question: PlacementQuestion,
  sharing: boolean,
): boolean {
  const ofKind = nodes.filter(
    (node) => node.offer === option.offer && node.time_limit_s === option.time_limit_s,
  );
  for (const node of ofKind) {
    const first = firstDeviceFor(option, node, sharing, question);
    if (first === undefined) continue;
    take(option, replica, node, first);
    return true;
  }
  if (sharing || nodes.filter((node) => node.offer === option.offer).length >= option.offer.nodes_total)
    return false;
  const node: OpenNode = {
    offer: option.offer,
    ...(option.time_limit_s === undefined ? {} : { time_limit_s: option.time_limit_s }),
    devices: Array.from({ length: option.offer.devices.count }, () => ({
      bytes: 0,
      models: [],
      exclusive: false,
    })),
    units: [],
    threads_by_device: new Map(),
    host_bytes: 0,
  };
  take(option, replica, node, 0);
  nodes.push(node);
  return true;
}

function firstDeviceFor(
  option: PlacementOption,
  node: OpenNode,
  sharing: boolean,
  question: PlacementQuestion,
): number | undefined {
  const bytes = option.memory.bytes_per_device;
  if (!onRealGpu(option.offer)) {
    const host = node.host_bytes + bytes * option.device_count + question.settings.host_overhead_bytes;
    if (host > option.offer.memory_bytes) return undefined;
  }
  const name = option.model.spec.name;
  const fits = (index: number): boolean => {
    const device = node.devices[index]!;
    if (device.models.length === 0) return !sharing && cpusLeft(option, node, index);
    return (
      sharing &&
      option.engine === 'native' &&
      !device.exclusive &&
      !device.models.includes(name) &&
      device.bytes + bytes <= option.offer.devices.memory_bytes
    );
  };
  for (let first = 0; first + option.device_count <= node.devices.length; first++) {
    let all = true;
    for (let index = first; index < first + option.device_count; index++) all &&= fits(index);
    if (all) return first;
  }
  return undefined;
}

/** Threads of all devices of a node never exceed its CPUs: compute threads spin at barriers. */
function cpusLeft(option: PlacementOption, node: OpenNode, device: number): boolean {
  let taken = 0;
  for (const [index, threads] of node.threads_by_device) if (index !== device) taken += threads;
  return taken + option.threads <= option.offer.cpus;
}

function take(option: PlacementOption, replica: number, node: OpenNode, first: number): void {
  const { model, offer } = option;
  for (let index = first; index < first + option.device_count; index++) {
    const device = node.devices[index]!;
    device.bytes += option.memory.bytes_per_device;
    device.models.push(model.spec.name);
    device.exclusive ||= option.engine !== 'native';
  }
  if (!onRealGpu(offer)) node.host_bytes += option.memory.bytes_per_device * option.device_count;
  node.threads_by_device.set(first, Math.max(node.threads_by_device.get(first) ?? 0, option.threads));
  node.units.push({
    unit: unitName(model.spec.name, replica),
    node_index: 0,
    engine: option.engine,
    model_path: model.model_path,
    model: model.spec,
    device_kind: offer.devices.kind,
    device_count: option.device_count,
    first_device: first,
    threads: option.threads,
    context_tokens: option.memory.context_tokens,
    kv_tokens: option.memory.kv_tokens,
    weight_bytes: model.weight_bytes,
  });
}

/** Served names may hold `/`; unit names are file names. `+` is in no served name, so distinct names stay distinct. */
function unitName(model: string, replica: number): string {
  return `${model.replaceAll('/', '+')}-${replica}`;
}

function launchOf(node: OpenNode, question: PlacementQuestion): PlannedLaunch {
  const { offer } = node;
  const usedDevices = node.devices.filter((device) => device.models.length > 0).length;
  const threads = [...node.threads_by_device.values()].reduce((sum, count) => sum + count, 0);
  const share = usedDevices / offer.devices.count;
  const real = onRealGpu(offer);
  return {
    node_kind: offer.node_kind,
    tier: offer.tier,
    partitions: question.partitions ?? offer.partitions,
    node_count: 1,
    devices_per_node: {
      kind: offer.devices.kind,
      model: offer.devices.model,
      count: offer.devices.kind === 'cpu' ? 0 : usedDevices,
      memory_bytes: offer.devices.memory_bytes,
      ...(offer.devices.emulated ? { emulated: offer.devices.emulated } : {}),
    },
    cpus_per_node: Math.min(offer.cpus, threads),
    memory_bytes_per_node: real
      ? Math.floor(offer.memory_bytes * share)
      : Math.min(offer.memory_bytes, node.host_bytes + question.settings.host_overhead_bytes),
    ...(node.time_limit_s === undefined ? {} : { time_limit_s: node.time_limit_s }),
    units: packDevices(node.units, node.devices),
  };
}

/** A job is given only the devices it uses, counted from 0: gaps close. */
function packDevices(units: readonly UnitSpec[], devices: OpenNode['devices']): UnitSpec[] {
  const rank: number[] = [];
  let next = 0;
  for (const device of devices) rank.push(device.models.length > 0 ? next++ : -1);
  return units.map((unit) => ({ ...unit, first_device: rank[unit.first_device]! }));
}

function planned(
  model: PlacementModel,
  replicas: number,
  option: PlacementOption,
  used: ReadonlyMap<PlacementOption, number>,
): PlannedModel {
  const where = [...used].map(
    ([{ offer }, count]) =>
      `${count} on ${offer.node_kind} (${offer.devices.model}${offer.devices.emulated ? ', emulated on CPU' : ''})`,
  );
  return {
    model: model.spec.name,
    engine: option.engine,
    reasons: [
      ...new Set([...used.keys()].map((each) => each.engine_reason)),
      ...(where.length > 0 ? [`replicas: ${where.join(', ')}`] : []),
    ],
    replicas,
    weight_bytes: model.weight_bytes,
    context_tokens: option.memory.context_tokens,
    kv_tokens: option.memory.kv_tokens,
    kv_bytes: option.memory.kv_tokens * model.kv_bytes_per_token,
  };
}

function warningsOf(model: PlacementModel, used: ReadonlyMap<PlacementOption, number>): string[] {
  const warnings: string[] = [];
  for (const { memory, offer, engine } of used.keys()) {
    if (memory.kv_tokens < memory.kv_tokens_wanted)
      warnings.push(
        `${model.spec.name} on ${offer.node_kind}: memory leaves room for ${memory.kv_tokens} KV tokens of the ${memory.kv_tokens_wanted} wanted (max_sequences × context_tokens); long requests may wait`,
      );
    if (engine === 'vllm' && model.format === 'gguf')
      warnings.push(`${model.spec.name}: vLLM's support of GGUF files is experimental`);
    if (offer.devices.emulated)
      warnings.push(
        `${model.spec.name} on ${offer.node_kind}: ${offer.devices.model} is emulated by CPUs; speeds say nothing about the device`,
      );
    if (model.spec.context_tokens !== undefined && model.spec.context_tokens > model.trained_context_tokens)
      warnings.push(
        `${model.spec.name}: context_tokens ${model.spec.context_tokens} is beyond the ${model.trained_context_tokens} the model was trained for`,
      );
  }
  return [...new Set(warnings)];
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
