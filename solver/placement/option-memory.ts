/** What a way to run a replica takes of its devices, and where it is cut for them. */
import { stageBounds, stageCounts } from '../../spec/model-yaml.ts';
import type { NodeKindOffer, PlacementQuestion } from '../../spec/plan.ts';
import type { EngineDefaults } from '../catalog/engine-defaults.ts';
import { onRealGpu } from './engine-choice.ts';
import { deviceOf, type KindStages, stagesOnKind } from './kind-stages.ts';
import { hasSameDevices, type LentPart } from './lenders.ts';
import { streamingOf } from './model-facts.ts';
import type { StageCut, StagePlan, StageShare } from './stage-plan.ts';
import {
  formatGib,
  leastContext,
  type MemoryShortage,
  ownPrograms_bytes,
  type ReplicaSplit,
  sizeUnit,
  type UnitMemory,
} from './unit-memory.ts';
import { type BrokenConstraint, seenOf, threadsOn, tooManyThreads, type WayOnNodes } from './way.ts';
import { framesOf_bytes } from './worker-memory.ts';

/** What a replica takes of its devices, the stages that it begins with, and where we cut them. */
export interface TakenMemory {
  memory: UnitMemory;
  pipeline: number;
  cut?: StagePlan;
  lent?: LentPart;
}

/** Of the numbers of stages that it may have, the fewest that fit: each of more holds less. */
export function memoryTaken(
  way: WayOnNodes,
  devicesOnNode: number,
  question: PlacementQuestion,
  defaults: EngineDefaults,
): TakenMemory | BrokenConstraint {
  let last: TakenMemory | BrokenConstraint | undefined;
  for (const pipeline of stageCounts(stageBounds(way.model.spec))) {
    last = memoryOf(way, pipeline, devicesOnNode, question, defaults);
    if (!('constraint' in last)) return last;
  }
  return last!;
}

/** The cut, and memory of the devices for it. */
function memoryOf(
  way: WayOnNodes,
  pipeline: number,
  devicesOnNode: number,
  question: PlacementQuestion,
  defaults: EngineDefaults,
): TakenMemory | BrokenConstraint {
  const { model, offer, engine, lender } = way;
  const isCut = engine === 'native' && stageBounds(model.spec).stages_max > 1;
  const cut = isCut ? cutOf(way, pipeline, question, defaults) : undefined;
  if (cut !== undefined && 'constraint' in cut) return cut;
  const first = stagesOfFirst(way, pipeline);
  const on = (
    place: NodeKindOffer,
    shares: readonly StageShare[] | undefined,
    kv_tokens?: number,
  ): UnitMemory | BrokenConstraint => {
    const sized = memoryOn(way, place, pipeline, shares, question, defaults, kv_tokens);
    return (
      ('constraint' in sized ? sized : hostShortage(way, place, sized, devicesOnNode, question)) ?? sized
    );
  };
  const memory = on(offer, cut?.shares.slice(0, first));
  if ('constraint' in memory) return memory;
  const taken: TakenMemory = { memory, pipeline };
  if (cut !== undefined) taken.cut = cut;
  if (lender === undefined || cut === undefined) return taken;
  const there = on(lender, first === undefined ? cut.shares : cut.shares.slice(first), memory.kv_tokens);
  if ('constraint' in there) return there;
  if (there.kv_tokens < memory.kv_tokens) {
    // Every stage has the keys and values of all sequences.
    const less = on(offer, cut.shares.slice(0, first), there.kv_tokens);
    if ('constraint' in less) return less;
    taken.memory = less;
  }
  const threads = threadsOn(lender, devicesOnNode, model.spec);
  if (threads > lender.cpus) return tooManyThreads(engine, threads, lender.cpus);
  const { slowest_s } = cut.partition;
  const isAlike = first === undefined;
  taken.lent = { memory: there, threads, slowest_s, isAlike, slowdown: (slowest_s * pipeline) / cut.whole_s };
  return taken;
}

/** Of stages that lie on devices of two kinds, those of the first job; undefined where all devices are alike. */
function stagesOfFirst({ offer, lender, nodes }: WayOnNodes, pipeline: number): number | undefined {
  return lender === undefined || hasSameDevices(lender, offer) ? undefined : Math.ceil(pipeline / nodes);
}

/** What a replica takes of each device of such nodes. @param shares of its stages there */
function memoryOn(
  way: WayOnNodes,
  { devices }: NodeKindOffer,
  pipeline: number,
  shares: readonly StageShare[] | undefined,
  { settings }: PlacementQuestion,
  defaults: EngineDefaults,
  kv_tokens_elsewhere?: number,
): UnitMemory | BrokenConstraint {
  const { model, engine, tensor, precision } = way;
  const seen_bytes = seenOf(way, pipeline)?.programs_bytes;
  const sized = (isTight: boolean): UnitMemory | MemoryShortage => {
    const programs_bytes = ownPrograms_bytes(engine, devices, settings, seen_bytes, isTight);
    const { weight_bytes, precision: name } = precision;
    const split: ReplicaSplit = { tensor, pipeline, weight_bytes, precision: name, programs_bytes };
    if (shares !== undefined) split.shares = shares;
    if (kv_tokens_elsewhere !== undefined) split.kv_tokens_elsewhere = kv_tokens_elsewhere;
    if (model.spec.weights === 'streamed') split.arena_bytes = streamingOf(model).arena_bytes;
    return sizeUnit(model, engine, devices, split, settings, defaults);
  };
  const usual = sized(false);
  const memory = 'because' in usual ? sized(true) : usual;
  if (!('because' in memory)) return memory;
  const { because, needed, available } = memory;
  return { constraint: 'device_memory', because, numbers: { engine, needed, available } };
}

/** Where devices have their memory of the host, whether a job may have so much; undefined where it may. */
function hostShortage(
  way: WayOnNodes,
  offer: NodeKindOffer,
  { bytes_per_device }: UnitMemory,
  devices: number,
  { settings }: PlacementQuestion,
): BrokenConstraint | undefined {
  if (onRealGpu(offer)) return undefined;
  const needed = (bytes_per_device + framesOf_bytes(way)) * devices + settings.host_overhead_bytes;
  if (needed <= offer.memory_bytes) return undefined;
  return {
    constraint: 'host_memory',
    because: `needs ${formatGib(needed)} of host memory (replica and node agent); a job may have ${formatGib(offer.memory_bytes)}`,
    numbers: { engine: way.engine, needed, available: offer.memory_bytes },
  };
}

/**
 * The most stages that a replica may have, to begin with: each loads its own part at the same time as the others, so
 * that the replica answers sooner, and they are merged when it is calm (FlexPipe Fig. 7). Their cuts contain those of
 * the stages that they become. Undefined where nobody would merge them, or they do not fit.
 */
export function finestOf(
  way: WayOnNodes,
  { cut }: TakenMemory,
  question: PlacementQuestion,
  defaults: EngineDefaults,
): StageCut[] | undefined {
  if (!question.settings.changes_stages || cut === undefined) return undefined;
  const finest = cutOf(way, stageBounds(way.model.spec).stages_max, question, defaults, cut.cuts);
  return 'constraint' in finest ? undefined : finest.cuts;
}

/** Where the native engine's stages are cut for these devices. */
function cutOf(
  way: WayOnNodes,
  pipeline: number,
  { settings }: PlacementQuestion,
  defaults: EngineDefaults,
  from?: readonly StageCut[],
): StagePlan | BrokenConstraint {
  const { model, offer, precision } = way;
  const { memory_bytes } = offer.devices;
  const of: KindStages = {
    model,
    offer,
    device: way.device,
    precision: precision.precision,
    weight_bytes: precision.weight_bytes,
    max_sequences: model.spec.max_sequences ?? defaults.max_sequences,
    kv_tokens: leastContext(model),
    device_bytes: memory_bytes,
  };
  if (from !== undefined) of.from = from;
  const first = stagesOfFirst(way, pipeline);
  const places = [devicesInWords(offer, first ?? pipeline)];
  if (way.lender !== undefined && first !== undefined) {
    const { lender } = way;
    const stages = pipeline - first;
    of.last = { stages, offer: lender, device: deviceOf(lender), device_bytes: lender.devices.memory_bytes };
    places.push(devicesInWords(lender, stages));
  }
  const seen = seenOf(way, pipeline)?.stages;
  if (of.last) {
    // What one kind of device has beside its stages is for all of the KV that is wanted, where a cut leaves so much.
    const kv_tokens = Math.max(of.kv_tokens, model.spec.kv_tokens ?? of.max_sequences * of.kv_tokens);
    const roomy = stagesOnKind({ ...of, kv_tokens }, pipeline, settings, seen);
    if (roomy.feasible) return roomy;
  }
  const plan = stagesOnKind(of, pipeline, settings, seen);
  if (plan.feasible) return plan;
  return {
    constraint: 'device_memory',
    because: `${plan.because} (${places.join(' and ')}, less ${formatGib(settings.margin_fixed_bytes)} each that is kept free)`,
    numbers: { engine: 'native', available: memory_bytes },
  };
}

function devicesInWords({ devices: { kind, model, memory_bytes } }: NodeKindOffer, count: number): string {
  return `${count} × ${kind === 'cpu' ? 'CPU' : 'GPU'} ${model} of ${formatGib(memory_bytes)}`;
}
