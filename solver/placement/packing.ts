import type { UnitSpec } from '../../spec/launch.ts';
import { servedNameOf, unitStem } from '../../spec/model-pools.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { NodeKindOffer, NodeSpace, PlacementQuestion, PlannedLaunch } from '../../spec/plan.ts';
import { asleep_bytes, canSleep } from '../../spec/sleeping-engine.ts';
import { parsersFor } from './answer-parsers.ts';
import { onRealGpu } from './engine-choice.ts';
import { isOnePool } from './lenders.ts';
import { jobDevices, lentBy } from './lent-job.ts';
import { demandOf, isCrowded, type LinkedDevice, leastLoaded, linkShare } from './link-budget.ts';
import {
  devicesInUse,
  jobMemory,
  linkedDevices,
  lockedByUnit,
  type OpenDevice,
  type OpenNode,
  residentByUnit,
  reuseOf_bytes,
} from './open-node.ts';
import type { PlacementOption } from './options.ts';
import { servedSpec } from './pools.ts';
import { spreadStages, withFinestStages } from './stage-sharing.ts';
import { formatGib, memoryShare } from './unit-memory.ts';
import { framesOf_bytes, stagingOf_bytes } from './worker-memory.ts';

/**
 * Beside which others a replica is put: `light` where all of them together leave most of the device's time free
 * (`shared_time_max`), `any` wherever memory suffices.
 */
export type Sharing = 'none' | 'light' | 'any';

/**
 * Replicas onto nodes: first fit, one job a node, several replicas in it where devices allow. Small jobs start in
 * holes that large ones wait for. A replica that takes several nodes is a job of its own.
 */
export class Packing {
  readonly #nodes: OpenNode[] = [];
  readonly #question: PlacementQuestion;
  /** What is free now on nodes that nobody was given yet, the emptiest first. */
  readonly #free: Map<NodeKindOffer, NodeSpace[]>;

  constructor(question: PlacementQuestion) {
    this.#question = question;
    this.#free = new Map(
      question.node_kinds.map((offer) => [
        offer,
        (offer.free ?? []).map((group) => ({ ...group })).sort((a, b) => b.devices - a.devices),
      ]),
    );
  }

  /**
   * Puts one replica on an empty device (or neighbouring ones) of an open node, else on a new node; with `sharing`
   * on a device of an open node that other models are on.
   * @param replicas of its model in all: recorded in the unit
   * @param time share of its device's time that it is expected to compute
   * @returns whether there was room
   */
  put(option: PlacementOption, replica: number, replicas: number, sharing: Sharing, time: number): boolean {
    for (const node of this.#nodes) {
      if (option.nodes > 1 || node.count > 1) continue;
      if (node.offer !== option.offer || node.time_limit_s !== option.time_limit_s) continue;
      const first = this.#firstDevice(option, node, sharing, time, replicas);
      if (first === undefined) continue;
      take(option, unitOf(option, replica, replicas, first), node, time);
      return true;
    }
    if (sharing !== 'none' || !this.#hasNodes(option)) return false;
    const { devices, cpus } = this.#room(option);
    const node: OpenNode = {
      offer: option.offer,
      count: option.nodes,
      lender: option.lender,
      lent: option.lent,
      cpus,
      time_limit_s: option.time_limit_s,
      devices: Array.from({ length: devices }, () => ({
        bytes: 0,
        giving_way_bytes: [],
        arena_bytes: 0,
        time: 0,
        models: [],
        by: undefined,
      })),
      units: [],
      threads_by_device: new Map(),
      host_bytes: 0,
      streamed_files: new Map(),
      streamed: [],
      finest: new Map(),
    };
    take(option, unitOf(option, replica, replicas, 0), node, time);
    this.#nodes.push(node);
    return true;
  }

  #hasNodes({ offer, nodes, lender }: PlacementOption): boolean {
    if (lender === undefined || lender === offer) return this.#nodesLeft(offer) >= nodes;
    const ofEach = this.#nodesLeft(offer) >= 1 && this.#nodesLeft(lender) >= nodes - 1;
    return ofEach && (!isOnePool(offer, lender) || this.#leftOfPool(offer) >= nodes);
  }

  /** Of this kind, and of the pool it shares with others. */
  #nodesLeft(offer: NodeKindOffer): number {
    const isOfKind = (other: NodeKindOffer): boolean =>
      other.node_kind === offer.node_kind && other.devices === offer.devices;
    return Math.min(offer.nodes_total - this.#taken(isOfKind), this.#leftOfPool(offer));
  }

  #leftOfPool({ pool }: NodeKindOffer): number {
    if (pool === undefined) return Number.POSITIVE_INFINITY;
    return pool.nodes - this.#taken((other) => other.pool?.id === pool.id);
  }

  #taken(is: (kind: NodeKindOffer) => boolean): number {
    return this.#nodes.reduce((sum, node) => sum + nodesOfKind(node, is), 0);
  }

  /**
   * A job is made no larger than what is free somewhere now: then it starts at once. Where nothing that is free holds
   * the replica, it waits for a whole node.
   */
  #room(option: PlacementOption): { devices: number; cpus: number } {
    const { offer, threads, lender } = option;
    const taken = lender === undefined || lender === offer ? option.nodes : 1;
    const group = this.#free
      .get(offer)!
      .find(
        ({ nodes, devices, cpus }) => nodes >= taken && devices >= devicesOnNode(option) && cpus >= threads,
      );
    if (group === undefined) return { devices: offer.devices.count, cpus: offer.cpus };
    group.nodes -= taken;
    return group;
  }

  /** What a person should know of files that are read again and again. */
  cacheWarnings(): string[] {
    const warnings = this.#nodes.flatMap((node) => {
      const { uncached_bytes, unlocked_bytes } = jobMemory(node, this.#question);
      const streamed = node.units.filter(({ memory }) => memory?.arena_bytes !== undefined);
      const names = [...new Set(streamed.map(({ model }) => model.name))].join(', ');
      const lacks = `${names} on ${node.offer.node_kind}: host memory lacks`;
      const said: string[] = [];
      if (uncached_bytes > 0)
        said.push(
          `${lacks} ${formatGib(uncached_bytes)} for weights that are streamed: so much is read from files with every step`,
        );
      if (unlocked_bytes > 0)
        said.push(
          `${lacks} ${formatGib(unlocked_bytes)} for page-locked copies of weights: so much is copied to the device where products would read it in place`,
        );
      return said;
    });
    return [...new Set(warnings)];
  }

  /** Of the rate of its link, what the replicas of an option get at least; 1: all of it. */
  linkShare(option: PlacementOption): number {
    const shares = this.#nodes.flatMap((node) =>
      node.streamed
        .filter((own) => own.option === option)
        .map((own) => linkShare(demandOf(own), own.device, linkedDevices(node, []), node.offer)),
    );
    return Math.min(1, ...shares);
  }

  launches(): PlannedLaunch[] {
    return this.#nodes.flatMap((node) => jobsOf(launchOf(node, this.#question), node, this.#question));
  }

  #firstDevice(
    option: PlacementOption,
    node: OpenNode,
    sharing: Sharing,
    time: number,
    replicas: number,
  ): number | undefined {
    const { shared_time_max, host_overhead_bytes } = this.#question.settings;
    const { offer } = option;
    const isHeld = (device: OpenDevice): boolean => {
      const host_bytes = node.host_bytes + hostMemory(option, device);
      return host_bytes === 0 || host_bytes + host_overhead_bytes <= option.offer.memory_bytes;
    };
    // Two pools of one model have one name there.
    const name = servedNameOf(option.model.spec.name);
    const fits = (index: number): boolean => {
      const device = node.devices[index]!;
      if (!isHeld(device)) return false;
      if (device.models.length === 0) return sharing === 'none' && cpusLeft(option, node, index);
      return (
        sharing !== 'none' &&
        (sharing === 'any' || device.time + time <= shared_time_max) &&
        device.by === sharedBy(option) &&
        device.by !== 'one' &&
        !device.models.includes(name) &&
        fitsWith(device, option)
      );
    };
    if (option.memory.arena_bytes !== undefined) {
      const allowed = [...node.devices.keys()].filter(fits);
      const demand = demandOf({ option, model: option.model, replicas });
      const linked = (others: readonly number[]): LinkedDevice[] => linkedDevices(node, others);
      if (sharing !== 'none')
        return leastLoaded(demand, allowed, linked(allowed), offer, { strict: sharing === 'light' });
      // Its job gets the next device, whichever is empty: another one is only on another node.
      const [first] = allowed;
      const others = this.#nodesLeft(offer) >= option.nodes;
      return first !== undefined && others && isCrowded(demand, first, linked([first]), offer)
        ? undefined
        : first;
    }
    for (let first = 0; first + option.device_count <= node.devices.length; first++) {
      let all = true;
      for (let index = first; index < first + option.device_count; index++) all &&= fits(index);
      if (all) return first;
    }
    return undefined;
  }
}

/** Threads of all devices of a node never exceed its CPUs: compute threads spin at barriers. */
function cpusLeft(option: PlacementOption, node: OpenNode, device: number): boolean {
  let taken = 0;
  for (const [index, threads] of node.threads_by_device) if (index !== device) taken += threads;
  return taken + option.threads <= node.cpus;
}

/** With whom a replica may share a device. */
function sharedBy({ engine, model, device_count }: PlacementOption): 'native' | 'turns' | 'one' {
  if (engine === 'native') return 'native';
  return device_count === 1 && canSleep(engine, model.spec) ? 'turns' : 'one';
}

/** The models of a device that give way to others, with one replica more. */
function givingWay_bytes(device: OpenDevice, { memory }: PlacementOption): readonly number[] {
  return memory.gives_way ? [...device.giving_way_bytes, memory.bytes_per_device] : device.giving_way_bytes;
}

/**
 * Of a device with one replica more, its arena and models that give way left out: of engines that take turns one is
 * awake, and the others leave a little there.
 */
function bytesWith(device: OpenDevice, option: PlacementOption): number {
  if (option.memory.gives_way) return device.bytes;
  const bytes = option.memory.bytes_per_device - arenaOf_bytes(option);
  if (sharedBy(option) !== 'turns') return device.bytes + bytes;
  if (device.models.length === 0) return bytes;
  const awake_bytes = device.bytes - asleep_bytes * (device.models.length - 1);
  return Math.max(awake_bytes, bytes) + asleep_bytes * device.models.length;
}

function fitsWith(device: OpenDevice, option: PlacementOption): boolean {
  const arena_bytes = Math.max(device.arena_bytes, arenaOf_bytes(option));
  const reuse_bytes = reuseOf_bytes(givingWay_bytes(device, option));
  return bytesWith(device, option) + reuse_bytes + arena_bytes <= option.offer.devices.memory_bytes;
}

function arenaOf_bytes({ memory }: PlacementOption): number {
  return memory.arena_bytes ?? 0;
}

/** Memory of its node that a replica takes on this device and others: of what is its own there, and beside it. */
function hostMemory(option: PlacementOption, device: OpenDevice): number {
  // A worker has one staging memory, whoever else is there.
  const staging_bytes = device.models.length > 0 ? 0 : stagingOf_bytes(option.offer, option);
  const beside_bytes = framesOf_bytes(option) + staging_bytes;
  return hostMemoryWithin(option, device) + beside_bytes * devicesOnNode(option);
}

/**
 * What its devices have of the node: all of it on CPUs, but for the arena, or the room of models that give way to one
 * another, that is there for others already; and the weights of an engine that sleeps.
 */
function hostMemoryWithin(option: PlacementOption, device: OpenDevice): number {
  if (onRealGpu(option.offer)) return sharedBy(option) === 'turns' ? option.weight_bytes : 0;
  if (option.memory.gives_way)
    return reuseOf_bytes(givingWay_bytes(device, option)) - reuseOf_bytes(device.giving_way_bytes);
  const shared_bytes = Math.min(device.arena_bytes, arenaOf_bytes(option));
  return option.memory.bytes_per_device * devicesOnNode(option) - shared_bytes;
}

function devicesOnNode({ device_count, nodes }: PlacementOption): number {
  return device_count / nodes;
}

function take(option: PlacementOption, unit: UnitSpec, node: OpenNode, time: number): void {
  const first = unit.first_device;
  node.host_bytes += hostMemory(option, node.devices[first]!);
  for (let index = first; index < first + devicesOnNode(option); index++) {
    const device = node.devices[index]!;
    device.bytes = bytesWith(device, option);
    device.giving_way_bytes = givingWay_bytes(device, option);
    device.arena_bytes = Math.max(device.arena_bytes, arenaOf_bytes(option));
    device.time += time;
    device.models.push(servedNameOf(option.model.spec.name));
    device.by = sharedBy(option);
  }
  if (option.memory.arena_bytes !== undefined) {
    node.streamed_files.set(unit.model_path, option.weight_bytes);
    const replicas = Number(unit.model.replicas);
    node.streamed.push({ option, unit: unit.unit, device: first, model: option.model, replicas });
  }
  if (option.finest !== undefined) node.finest.set(unit.unit, option.finest);
  node.threads_by_device.set(first, Math.max(node.threads_by_device.get(first) ?? 0, option.threads));
  node.units.push(unit);
}

function unitOf(option: PlacementOption, replica: number, replicas: number, first: number): UnitSpec {
  const { model, tensor, pipeline } = option;
  const { pipeline: asked, jobs, lenders } = model.spec.parallel;
  const parallel: ModelSpec['parallel'] = { tensor, pipeline: typeof asked === 'number' ? pipeline : asked };
  if (jobs !== undefined) parallel.jobs = jobs;
  if (lenders !== undefined) parallel.lenders = lenders;
  return {
    unit: unitName(unitStem(model.spec.name), replica),
    node_index: 0,
    nodes: option.nodes > 1 ? option.nodes : undefined,
    engine: option.engine,
    model_path: model.model_path,
    // As it was decided: nothing in a job is `auto` any more. A range of stages stays one: it may have others later.
    model: { ...servedSpec(model.spec), replicas, precision: option.precision, parallel },
    pool: model.pool,
    device_kind: option.offer.devices.kind,
    node_device_kinds: kindsOf(option),
    device_count: devicesOnNode(option),
    tensor,
    pipeline,
    stages: option.stages,
    first_device: first,
    threads: option.threads,
    context_tokens: option.memory.context_tokens,
    context_told: option.memory.context_told ? true : undefined,
    kv_tokens: option.memory.kv_tokens,
    weight_bytes: option.weight_bytes,
    parsers: parsersFor(model, option.engine),
    max_sequences: option.batch.max_sequences,
    prefill_chunk_tokens: option.engine === 'native' ? option.batch.batched_tokens : undefined,
    memory: {
      device_bytes: option.memory.bytes_per_device,
      kv_bytes: option.memory.kv_bytes,
      arena_bytes: option.memory.arena_bytes,
      share: option.memory.share,
    },
  };
}

/** Of the devices of each node, where they are of different kinds. */
function kindsOf({ offer, nodes, lender = offer }: PlacementOption): UnitSpec['node_device_kinds'] {
  if (offer.devices.kind === lender.devices.kind) return undefined;
  return [offer.devices.kind, ...new Array<UnitSpec['device_kind']>(nodes - 1).fill(lender.devices.kind)];
}

/** Served names may hold `/`; unit names are file names. `+` is in no served name, so distinct names stay distinct. */
export function unitName(model: string, replica: number): string {
  return `${model.replaceAll('/', '+')}-${replica}`;
}

/** The unit with what stays of it, which is known once the node has all that it gets. */
function withResident(unit: UnitSpec, resident_bytes: number, device_memory_bytes: number): UnitSpec {
  if (resident_bytes === 0 || unit.memory === undefined) return unit;
  const device_bytes = unit.memory.device_bytes + resident_bytes;
  const share = memoryShare(device_bytes, device_memory_bytes);
  return { ...unit, memory: { ...unit.memory, device_bytes, resident_bytes, share } };
}

/** A unit whose weights come over a link, with what that is taken to give, and its part where others read over it. */
function withLink(unit: UnitSpec, node: OpenNode): UnitSpec {
  const own = node.streamed.find((each) => each.unit === unit.unit);
  if (own === undefined || unit.memory === undefined) return unit;
  const demand = demandOf(own);
  const link_share = linkShare(demand, own.device, linkedDevices(node, []), node.offer);
  const memory = { ...unit.memory };
  if (link_share < 1) memory.link_share = link_share;
  if (onRealGpu(node.offer)) memory.link_bytes_per_s = demand.link_bytes_per_s;
  return { ...unit, memory };
}

/** A unit whose products read weights in host memory with what copies of those may take there. */
function withLocked(unit: UnitSpec, locked_bytes: number | undefined): UnitSpec {
  if (locked_bytes === undefined || unit.memory === undefined) return unit;
  return { ...unit, memory: { ...unit.memory, locked_bytes } };
}

/** A unit that gives way to others with what its device has for all of them, which is known once all are there. */
function withReuse(unit: UnitSpec, { giving_way_bytes }: OpenDevice): UnitSpec {
  if (unit.model.weights !== 'reuse' || unit.memory === undefined) return unit;
  return { ...unit, memory: { ...unit.memory, reuse_bytes: Math.ceil(reuseOf_bytes(giving_way_bytes)) } };
}

function launchOf(node: OpenNode, question: PlacementQuestion): PlannedLaunch {
  const { offer } = node;
  const usedDevices = devicesInUse(node);
  const threads = [...node.threads_by_device.values()].reduce((sum, count) => sum + count, 0);
  const { memory_bytes, page_cache_bytes } = jobMemory(node, question);
  const resident = residentByUnit(node, question.settings);
  const locked = lockedByUnit(node, question.settings);
  const units = node.units.map((unit) => {
    const staying = withResident(unit, resident.get(unit.unit) ?? 0, offer.devices.memory_bytes);
    const streamed = withLocked(withLink(staying, node), locked.get(unit.unit));
    return withReuse(streamed, node.devices[unit.first_device]!);
  });
  const launch: PlannedLaunch = {
    node_kind: offer.node_kind,
    tier: offer.tier,
    partitions: question.partitions ?? offer.partitions,
    node_count: node.count,
    devices_per_node: jobDevices(offer, usedDevices),
    cpus_per_node: Math.min(offer.cpus, threads),
    memory_bytes_per_node: memory_bytes + page_cache_bytes,
    time_limit_s: node.time_limit_s,
    units: spreadStages(withFinestStages(closeGaps(units, node.devices), node.finest)),
  };
  if (page_cache_bytes > 0) launch.page_cache_bytes = page_cache_bytes;
  return launch;
}

/** How many of its nodes are of a kind, or of several. */
function nodesOfKind(
  { offer, count, lender = offer }: OpenNode,
  is: (kind: NodeKindOffer) => boolean,
): number {
  return (is(offer) ? 1 : 0) + (is(lender) ? count - 1 : 0);
}

/** A replica whose stages are divided over jobs is one job for each of its nodes; the first one answers for it. */
function jobsOf(
  launch: PlannedLaunch,
  { offer, lender = offer, lent: part }: OpenNode,
  question: PlacementQuestion,
): PlannedLaunch[] {
  const { units, node_count } = launch;
  const [unit] = units;
  if (unit?.model.parallel.jobs === undefined) return [launch];
  const lent = lender !== offer && part ? lentBy(lender, part, launch, unit, question) : launch;
  return Array.from({ length: node_count }, (_, node_index) => ({
    ...(node_index === 0 ? launch : lent),
    node_count: 1,
    units: node_index === 0 ? units : [],
    part: { group: unit.unit, node_index, jobs: node_count, lends_to: node_index === 0 ? [] : lent.units },
  }));
}

/** A job is given only the devices it uses, counted from 0. */
function closeGaps(units: readonly UnitSpec[], devices: OpenNode['devices']): UnitSpec[] {
  const rank: number[] = [];
  let next = 0;
  for (const device of devices) rank.push(device.models.length > 0 ? next++ : -1);
  return units.map((unit) => ({ ...unit, first_device: rank[unit.first_device]! }));
}
