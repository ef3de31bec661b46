/**
 * Holds a finished placement against the question, from the rules alone: it shares no code with what made
 * the placement. Every plan passes here before it is shown.
 */
import type { UnitSpec } from '../../spec/launch.ts';
import { plannedNameOf } from '../../spec/model-pools.ts';
import { stageBounds } from '../../spec/model-yaml.ts';
import {
  type NodeKindOffer,
  type PipelinePart,
  type Placement,
  type PlacementModel,
  type PlacementQuestion,
  type PlannedLaunch,
  unitsOfJob,
} from '../../spec/plan.ts';
import { canSleep } from '../../spec/sleeping-engine.ts';
import { kvBytesPerToken } from '../catalog/kv-type.ts';

/** What is wrong, one sentence each; empty for a sound placement. */
export function checkPlacement(question: PlacementQuestion, placement: Placement): string[] {
  const wrong: string[] = [];
  for (const kind of new Set(placement.launches.map(({ node_kind }) => node_kind))) {
    const nodes = placement.launches
      .filter(({ node_kind }) => node_kind === kind)
      .reduce((sum, { node_count }) => sum + node_count, 0);
    const there = question.node_kinds
      .filter(({ node_kind }) => node_kind === kind)
      .reduce((sum, { nodes_total }) => sum + nodes_total, 0);
    if (nodes > there) wrong.push(`${kind}: ${nodes} nodes of ${there}`);
  }
  for (const id of new Set(question.node_kinds.flatMap(({ pool }) => pool?.id ?? []))) {
    const members = question.node_kinds.filter(({ pool }) => pool?.id === id);
    const nodes = placement.launches
      .filter((launch) =>
        members.some(
          ({ node_kind, tier, devices }) =>
            node_kind === launch.node_kind &&
            tier === launch.tier &&
            devices.model === launch.devices_per_node.model,
        ),
      )
      .reduce((sum, { node_count }) => sum + node_count, 0);
    const there = members[0]!.pool!.nodes;
    if (nodes > there)
      wrong.push(`${members.map(({ node_kind }) => node_kind).join(' and ')}: ${nodes} nodes of ${there}`);
  }
  for (const [index, launch] of placement.launches.entries())
    wrong.push(
      ...launchFaults(question, launch).map((fault) => `launch ${index} on ${launch.node_kind}: ${fault}`),
    );
  for (const { spec } of question.models) {
    const placed = placement.launches
      .flatMap(({ units }) => units)
      .filter((unit) => plannedNameOf(unit) === spec.name).length;
    const missing = placement.unplaced
      .filter(({ model }) => model === spec.name)
      .reduce((sum, { replicas }) => sum + replicas, 0);
    if (spec.replicas !== 'auto' && placed + missing !== spec.replicas)
      wrong.push(`${spec.name}: ${placed} placed and ${missing} unplaced of ${spec.replicas} replicas`);
    if (spec.replicas === 'auto' && placed + missing < 1) wrong.push(`${spec.name} is nowhere`);
    const scavengers = placement.launches
      .filter(({ tier }) => tier === 'scavenger')
      .flatMap(({ units }) => units)
      .filter((unit) => plannedNameOf(unit) === spec.name).length;
    // Those that found no place may be the ones that had to be stable.
    const needed = Math.min(placed, spec.min_stable_replicas - missing);
    if (placed - scavengers < needed)
      wrong.push(`${spec.name}: ${placed - scavengers} replicas on stable nodes of ${needed} that must be`);
    const planned = placement.models.find(({ model }) => model === spec.name);
    const shares = (planned?.groups ?? []).reduce((sum, group) => sum + group.traffic_share, 0);
    if (planned && missing === 0 && placed > 0 && Math.abs(shares - 1) > 1e-6)
      wrong.push(`${spec.name}: shares of its requests add up to ${shares}`);
    const inGroups = (planned?.groups ?? []).reduce((sum, group) => sum + group.replicas, 0);
    if (planned && inGroups !== placed)
      wrong.push(`${spec.name}: ${inGroups} replicas described, ${placed} placed`);
  }
  const names = placement.launches.flatMap(({ units }) => units.map(({ unit }) => unit));
  if (new Set(names).size < names.length) wrong.push('two units of one name');
  return wrong;
}

/** A unit on a device that others may have as well. */
interface Sharer {
  model: string;
  native: boolean;
  sleeps: boolean;
  /** Its own, without the arena. */
  bytes: number;
  /** It gives way to others of its kind. */
  gives_way: boolean;
  /** Of the arena that all streamed models of the device share. */
  arena_bytes: number;
}

function launchFaults(question: PlacementQuestion, launch: PlannedLaunch): string[] {
  const faults: string[] = [];
  const offers = question.node_kinds.filter(
    ({ node_kind, tier }) => node_kind === launch.node_kind && tier === launch.tier,
  );
  const offer = offers.find(({ devices }) => devices.model === launch.devices_per_node.model);
  if (offer === undefined) return ['no such node kind, tier and device is offered'];
  if (launch.cpus_per_node > offer.cpus) faults.push(`${launch.cpus_per_node} CPUs of ${offer.cpus}`);
  if (launch.memory_bytes_per_node > offer.memory_bytes)
    faults.push(`${launch.memory_bytes_per_node} bytes of memory of ${offer.memory_bytes}`);
  const limit = launch.time_limit_s;
  if (limit !== undefined && offer.time_limit_max_s !== undefined && limit > offer.time_limit_max_s)
    faults.push(`${limit} s of wall time of ${offer.time_limit_max_s}`);
  const taken = new Map<number, Sharer[]>();
  for (const unit of unitsOfJob(launch)) {
    const model = question.models.find(({ spec }) => spec.name === plannedNameOf(unit));
    if (model === undefined) {
      faults.push(`${unit.unit} is of no model that was asked for`);
      continue;
    }
    if (offer.engines[unit.engine]?.available !== true) faults.push(`${unit.engine} does not run here`);
    faults.push(...placeFaults(launch, unit, model, offer));
    const { tensor } = model.spec.parallel;
    const { stages_min, stages_max } = stageBounds(model.spec);
    const degree = tensor === 'auto' ? unit.tensor : tensor;
    const devices = unit.device_count * (unit.nodes ?? 1);
    const isWithin = unit.pipeline >= stages_min && unit.pipeline <= stages_max;
    if (unit.tensor !== degree || !isWithin || devices !== degree * stages_max)
      faults.push(`${unit.unit} takes ${devices} devices as ${unit.tensor} × ${unit.pipeline}`);
    const nodes = launch.part?.jobs ?? launch.node_count;
    if ((unit.nodes ?? 1) !== nodes)
      faults.push(`${unit.unit} takes ${unit.nodes ?? 1} node(s) of the ${nodes} of its job or jobs`);
    if (unit.device_count % unit.tensor !== 0) faults.push(`a layer of ${unit.unit} is split over nodes`);
    const heads = model.summary?.n_head;
    if (heads !== undefined && heads % unit.tensor !== 0)
      faults.push(`${unit.unit} divides ${heads} heads by ${unit.tensor}`);
    const kv_bytes = unit.kv_tokens * kvBytesPerToken(unit.engine, model, unit.model.precision);
    // Where it was left to the plan, the unit has what came out.
    const weights = model.spec.weights === 'auto' ? unit.model.weights : model.spec.weights;
    if (unit.model.weights !== weights || weights === 'auto')
      faults.push(
        `weights of ${unit.unit} are ${unit.model.weights} where ${model.spec.weights} was asked for`,
      );
    const arena_bytes = weights === 'streamed' ? (unit.memory?.arena_bytes ?? 0) : 0;
    if (weights === 'streamed' && (arena_bytes === 0 || unit.engine !== 'native'))
      faults.push(`${unit.unit} has no arena for its weights`);
    const lying_bytes = arena_bytes > 0 ? (unit.memory?.resident_bytes ?? 0) : unit.weight_bytes;
    const evenly_bytes = (lying_bytes + kv_bytes) / (unit.tensor * unit.pipeline);
    const bytes =
      launch.part === undefined ? evenly_bytes : layersHere_bytes(launch.part, unit, model, kv_bytes);
    for (let device = unit.first_device; device < unit.first_device + unit.device_count; device++) {
      if (device >= offer.devices.count)
        faults.push(`${unit.unit} takes device ${device} of ${offer.devices.count}`);
      const sharers = taken.get(device) ?? [];
      const sleeps = canSleep(unit.engine, unit.model);
      const native = unit.engine === 'native';
      const gives_way = weights === 'reuse';
      sharers.push({ model: unit.model.name, native, sleeps, bytes, gives_way, arena_bytes });
      taken.set(device, sharers);
    }
  }
  return [...faults, ...sharingFaults(taken, offer.devices.memory_bytes)];
}

/** In what its nodes are not those that the model asks for. */
function placeFaults(
  launch: PlannedLaunch,
  unit: UnitSpec,
  { spec }: PlacementModel,
  { devices }: NodeKindOffer,
): string[] {
  const faults: string[] = [];
  const { lenders } = spec.parallel;
  const isLent = lenders !== undefined && (launch.part?.node_index ?? 0) > 0;
  const tier = isLent ? lenders : spec.tier;
  if (tier !== 'any' && tier !== launch.tier) faults.push(`${unit.unit} asked for tier ${tier}`);
  const { kind } = spec.devices;
  if (kind !== 'any' && (kind === 'cpu') !== (devices.kind === 'cpu'))
    faults.push(`${unit.unit} asked for devices of kind ${kind}`);
  if (unit.device_kind !== devices.kind)
    faults.push(`${unit.unit} is to have devices of kind ${unit.device_kind}`);
  const kinds = isLent ? [] : spec.devices.node_kinds;
  if (kinds.length > 0 && !kinds.includes(launch.node_kind))
    faults.push(`${unit.unit} asked for ${kinds.join(', ')}`);
  return faults;
}

/** What the layers whose stages a job has take of each of its devices at least: the embedding and the head aside. */
function layersHere_bytes(
  { node_index, jobs }: PipelinePart,
  { stages = [], weight_bytes }: UnitSpec,
  { summary }: PlacementModel,
  kv_bytes: number,
): number {
  const n_layer = summary?.n_layer ?? stages.length;
  const weights = (layer: number): number =>
    summary === undefined ? weight_bytes / n_layer : (summary.weight_bytes_of.layers[layer] ?? 0);
  const onNode = Math.ceil(stages.length / jobs);
  const here = stages.slice(node_index * onNode, (node_index + 1) * onNode);
  const bytes = here.map(({ begin, end }) => {
    let sum = 0;
    // Attention of layer l is operator 1 + 2l.
    for (let layer = Math.floor(begin / 2); 1 + 2 * layer < end; layer++)
      sum += weights(layer) + kv_bytes / n_layer;
    return sum;
  });
  return Math.max(0, ...bytes);
}

/** @param taken by device */
function sharingFaults(taken: ReadonlyMap<number, readonly Sharer[]>, memory_bytes: number): string[] {
  const faults: string[] = [];
  for (const [device, sharers] of taken) {
    // Of engines that sleep one is awake.
    const inTurns = sharers.every(({ sleeps }) => sleeps);
    const own_bytes = inTurns
      ? Math.max(...sharers.map((each) => each.bytes))
      : sharers.reduce((sum, each) => sum + (each.gives_way ? 0 : each.bytes), 0);
    // Of models that give way to one another, two are there at once.
    const reused = sharers.filter((each) => each.gives_way).map((each) => each.bytes);
    const [largest = 0, second = 0] = reused.toSorted((a, b) => b - a);
    // Models whose weights are streamed have one arena.
    const bytes = own_bytes + largest + second + Math.max(...sharers.map((each) => each.arena_bytes));
    if (bytes > memory_bytes) faults.push(`device ${device}: ${Math.ceil(bytes)} bytes of ${memory_bytes}`);
    if (sharers.length === 1) continue;
    if (!inTurns && sharers.some(({ native }) => !native))
      faults.push(`device ${device} is shared by a wrapped engine`);
    if (new Set(sharers.map(({ model }) => model)).size < sharers.length)
      faults.push(`device ${device} holds two replicas of one model`);
  }
  return faults;
}
