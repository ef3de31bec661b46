/** For one model and one node kind: the ways a replica would run there, or the constraint that forbids it. */
import { stageBounds } from '../../spec/model-yaml.ts';
import type {
  EngineSeen,
  NodeKindOffer,
  PlacementModel,
  PlacementQuestion,
  RejectedOption,
} from '../../spec/plan.ts';
import { formatSlurmDuration } from '../../spec/slurm-types.ts';
import { type EngineDefaults, engineDefaults } from '../catalog/engine-defaults.ts';
import type { ModelShape } from '../catalog/model-shape.ts';
import { offeredDevice } from '../catalog/offered-device.ts';
import { describeParsers } from './answer-parsers.ts';
import { dividesHeads, nodesOf, staysOnNode, tensorDegrees, undividedWidth } from './degrees.ts';
import { chooseEngine } from './engine-choice.ts';
import { hasSameDevices, type LentPart, lendersFor, linkBetween } from './lenders.ts';
import { streamedStep } from './model-facts.ts';
import { finestOf, memoryTaken } from './option-memory.ts';
import { precisionsOf } from './precision.ts';
import type { StageCut } from './stage-plan.ts';
import { formatGib, sequencesOf, type UnitMemory } from './unit-memory.ts';
import {
  type BrokenConstraint,
  type SplitModel,
  seenOf,
  threadsOn,
  tooManyThreads,
  type WayOnNodes,
  type WayToRun,
} from './way.ts';

/** One way to run a replica of a model: everything but the node it lands on. */
export interface PlacementOption extends SplitModel {
  /** Why this engine and this precision, one sentence each. */
  reasons: readonly string[];
  precision: string;
  /** See `PrecisionChoice`. */
  steps_down: number;
  pipeline: number;
  /** Where we cut it; absent: it is not cut, or its engine cuts it. */
  stages?: StageCut[];
  /** The most stages that it may have, to load side by side where its devices are its own; absent: it has them. */
  finest?: StageCut[];
  /** tensor × pipeline, evenly over its nodes; more where it may have more stages than it begins with. */
  device_count: number;
  nodes: number;
  /** Of its nodes all but the first are of this kind; absent: they are like that one. */
  lender?: NodeKindOffer;
  /** What it takes on each of those. */
  lent?: LentPart;
  /** The same on nodes of other kinds that lend, the best first: for a replica that finds none of `lender` left. */
  lent_elsewhere?: readonly PlacementOption[];
  /** On each of its nodes, or the first one where others lend it stages. */
  threads: number;
  /** There, too. */
  memory: UnitMemory;
  weight_bytes: number;
  /** Sequences computed at once, and tokens of one step. */
  batch: EngineDefaults;
  /** Of the rate of its link, what others leave, where weights are streamed; absent: all of it. */
  link_share?: number;
  /** What engines that run so said of themselves; predictions count with it. What is planned does not change by it. */
  seen?: EngineSeen;
  time_limit_s?: number;
}

/** At least one option, or the first constraint that none of the ways there are can keep. */
export function placementOptions(
  model: PlacementModel,
  shape: ModelShape | undefined,
  offer: NodeKindOffer,
  question: PlacementQuestion,
): PlacementOption[] | RejectedOption {
  const { spec } = model;
  const { devices } = offer;
  const reject = (
    constraint: RejectedOption['constraint'],
    because: string,
    numbers: BrokenConstraint['numbers'] = {},
  ): RejectedOption => ({ model: spec.name, node_kind: offer.node_kind, constraint, because, ...numbers });

  const notAsked = askedFor(model, offer);
  if (notAsked) return reject(...notAsked);
  if (offer.nodes_total === 0) return reject('no_nodes', 'no node of this kind is there now');
  const limit = question.time_limit_s ?? offer.time_limit_default_s;
  if (limit !== undefined && offer.time_limit_max_s !== undefined && limit > offer.time_limit_max_s) {
    const by =
      question.time_limit_s === undefined
        ? 'time_limit of the site config'
        : '--time, or else slurm.time_limit of model.yaml';
    return reject(
      'time_limit',
      `a wall time of ${formatSlurmDuration(limit)} is asked for by ${by}; at most ${formatSlurmDuration(offer.time_limit_max_s)} is allowed`,
      { needed: limit, available: offer.time_limit_max_s },
    );
  }

  const choice = chooseEngine(model, offer);
  if (!('reason' in choice)) return reject(choice.constraint, choice.because, { engine: choice.engine });
  const { engine } = choice;
  const { device, note } = offeredDevice(
    devices,
    { cpus: offer.cpus, isa: offer.isa ?? [], architecture: offer.architecture },
    devices.figures,
  );
  const precisions = precisionsOf(model, engine, device, shape);
  if ('because' in precisions) {
    const { because, ...numbers } = precisions;
    return reject('device_capability', because, { engine, ...numbers });
  }

  const options: PlacementOption[] = [];
  let last: RejectedOption | undefined;
  for (const tensor of tensorDegrees(model, offer, engine))
    for (const precision of precisions) {
      const way = { model, shape, offer, device, device_note: note, engine, tensor, precision };
      const option = optionWith(way, choice.reason, question, limit);
      if ('constraint' in option) last = reject(option.constraint, option.because, option.numbers);
      else options.push(option);
    }
  return options.length > 0 ? options : last!;
}

/** The first wish of model.yaml these nodes do not meet. */
function askedFor(
  { spec }: PlacementModel,
  offer: NodeKindOffer,
): [constraint: RejectedOption['constraint'], because: string] | undefined {
  if (spec.devices.node_kinds.length > 0 && !spec.devices.node_kinds.includes(offer.node_kind))
    return ['node_kind_asked', `devices.node_kinds asks for ${spec.devices.node_kinds.join(', ')}`];
  const notAsked = devicesAskedFor({ spec }, offer);
  if (notAsked) return notAsked;
  if (spec.tier !== 'any' && spec.tier !== offer.tier)
    return ['tier_asked', `tier asks for ${spec.tier}; these nodes are ${offer.tier}`];
  return undefined;
}

/** Of the wishes of model.yaml, the first one that no device of such a node meets. */
export function devicesAskedFor(
  { spec }: Pick<PlacementModel, 'spec'>,
  { devices }: NodeKindOffer,
): [constraint: RejectedOption['constraint'], because: string] | undefined {
  const family = devices.kind === 'cpu' ? 'cpu' : 'gpu';
  if (spec.devices.kind !== 'any' && spec.devices.kind !== family)
    return ['device_kind_asked', `devices.kind asks for ${spec.devices.kind}; these nodes offer ${family}`];
  if (spec.devices.models.length > 0 && !spec.devices.models.some((name) => sameDevice(name, devices.model)))
    return [
      'device_model_asked',
      `devices.models asks for ${spec.devices.models.join(', ')}; these nodes have ${devices.model}`,
    ];
  return undefined;
}

/**
 * The way with the nodes that it takes. Later stages are lent by nodes with devices like those of the first job, where
 * there are such; else by those with which the slowest stage is the fastest.
 */
function optionWith(
  way: WayToRun,
  engineReason: string,
  question: PlacementQuestion,
  limit: number | undefined,
): PlacementOption | BrokenConstraint {
  const { model, offer, engine, tensor } = way;
  const { lenders: tier } = model.spec.parallel;
  const nodes = nodesTaken(way);
  if (typeof nodes !== 'number') return nodes;
  if (tier === undefined) return optionOn({ ...way, nodes }, engineReason, question, limit);
  const devices = (tensor * stageBounds(model.spec).stages_max) / nodes;
  const lenders = lendersFor(question, { offer, engine, devices, nodes: nodes - 1 });
  const alike: PlacementOption[] = [];
  const others: PlacementOption[] = [];
  let broken: BrokenConstraint | undefined;
  for (const lender of lenders) {
    if (devicesAskedFor(model, lender) !== undefined) continue;
    const option =
      staysCut(way, lender) ?? optionOn({ ...way, nodes, lender }, engineReason, question, limit);
    if ('constraint' in option)
      broken ??= { ...option, because: `with ${lender.node_kind}: ${option.because}` };
    else if (hasSameDevices(lender, offer)) alike.push(option);
    else others.push(option);
  }
  const [best, ...elsewhere] = [
    ...alike,
    ...others.sort((one, other) => one.lent!.slowest_s - other.lent!.slowest_s),
  ];
  if (best !== undefined) {
    if (elsewhere.length > 0) best.lent_elsewhere = elsewhere;
    return best;
  }
  return (
    broken ?? {
      constraint: 'tier_asked',
      because: `parallel.lenders asks for ${nodes - 1} node(s) of tier ${tier} with ${devices} device(s) each for the later stages; the site offers none that ${engine} runs on and devices.kind and devices.models allow`,
      numbers: { engine },
    }
  );
}

/** Devices of two kinds keep the stages that they have: none of them is cut for the other. */
function staysCut({ model, offer, engine }: WayToRun, lender: NodeKindOffer): BrokenConstraint | undefined {
  const { stages_min, stages_max } = stageBounds(model.spec);
  if (stages_min === stages_max || hasSameDevices(lender, offer)) return undefined;
  return {
    constraint: 'parallel_unsupported',
    because: `parallel.pipeline asks for ${stages_min} to ${stages_max} stages, which move between devices that are alike; ${lender.node_kind} has ${lender.devices.model}, and these nodes have ${offer.devices.model}`,
    numbers: { engine },
  };
}

/** The way with its memory and threads, or the first constraint that it breaks. */
function optionOn(
  way: WayOnNodes,
  engineReason: string,
  question: PlacementQuestion,
  limit: number | undefined,
): PlacementOption | BrokenConstraint {
  const { model, offer, engine, tensor, precision, nodes, lender } = way;
  const { spec } = model;
  const { stages_max } = stageBounds(spec);
  const deviceCount = tensor * stages_max;
  const onNode = deviceCount / nodes;
  const defaults = engineDefaults(engine, way.device, deviceCount);
  const taken = memoryTaken(way, onNode, question, defaults);
  if ('constraint' in taken) return taken;
  const { memory, cut, pipeline, lent } = taken;
  const threads = threadsOn(offer, onNode, spec);
  if (threads > offer.cpus) return tooManyThreads(engine, threads, offer.cpus);
  const reasons = [engineReason];
  if (precision.reason !== undefined) reasons.push(precision.reason);
  if (nodes > 1) reasons.push(nodesReason(way, nodes));
  if (cut !== undefined) reasons.push(cut.reason);
  const seen = seenOf(way, pipeline);
  reasons.push(...streamingReasons(way, memory, seen));
  const finest = pipeline < stages_max ? finestOf(way, taken, question, defaults) : undefined;
  if (pipeline < stages_max) reasons.push(stagesReason(pipeline, stages_max, deviceCount, finest));
  reasons.push(...describeParsers(model, engine));
  // Not spread: V8 11 gives each `{ ...way, more }` a hidden class of its own, and the search reads all options.
  const option: PlacementOption = Object.assign({}, way, {
    precision: precision.precision,
    steps_down: precision.steps_down,
    weight_bytes: precision.weight_bytes,
    reasons,
    pipeline,
    device_count: deviceCount,
    nodes,
    threads,
    memory,
    batch: {
      max_sequences: sequencesOf(model, engine, memory, defaults),
      batched_tokens: spec.prefill_chunk_tokens ?? defaults.batched_tokens,
    },
  });
  if (cut !== undefined) option.stages = cut.cuts;
  if (finest !== undefined) option.finest = finest;
  if (lender !== undefined && lent !== undefined) {
    option.lender = lender;
    option.lent = lent;
    reasons.push(lentReason(lender, offer));
  }
  // UNLIMITED, which JSON cannot hold, asks for no limit.
  if (limit !== undefined && Number.isFinite(limit)) option.time_limit_s = limit;
  if (seen !== undefined) option.seen = seen;
  return option;
}

/** How a replica lies on several nodes. */
function nodesReason({ model: { spec }, offer, tensor, lender }: WayOnNodes, nodes: number): string {
  const { stages_max } = stageBounds(spec);
  const between = `speeds are predicted with ${linkBetween(offer, lender).name} between them`;
  return spec.parallel.jobs === undefined
    ? `a replica takes ${nodes} nodes: layers are split over ${tensor} device(s) of one, its ${stages_max} stages over all; ${between}`
    : `a replica takes ${nodes} jobs of one node each, as parallel.jobs says, and its ${stages_max} stages are divided over them: each starts where there is room, and one that ends is replaced alone; ${between}`;
}

function lentReason(lender: NodeKindOffer, offer: NodeKindOffer): string {
  const devices = hasSameDevices(lender, offer) ? '' : ` on ${lender.devices.model}`;
  return `its later stages are lent by ${lender.node_kind}${devices}, whose jobs may be preempted`;
}

/** Over how many nodes a replica is split, where the engine, the devices and the model can be split so. */
function nodesTaken({ model, offer, engine, tensor }: WayToRun): number | BrokenConstraint {
  const { devices } = offer;
  const { stages_min, stages_max: pipeline } = stageBounds(model.spec);
  const deviceCount = tensor * pipeline;
  if (engine !== 'native' && stages_min < pipeline)
    return {
      constraint: 'parallel_unsupported',
      because: `${engine} keeps the stages that it was started with, and parallel.pipeline asks for ${stages_min} to ${pipeline}: only the native engine changes them`,
      numbers: { engine },
    };
  const onOneDevice = (because: string): BrokenConstraint => ({
    constraint: 'parallel_unsupported',
    because: `${because}; parallel asks for ${deviceCount}`,
    numbers: { engine, needed: deviceCount, available: 1 },
  });
  if (engine === 'native' && tensor > 1)
    return onOneDevice(
      'the native engine computes a layer on one device (parallel.pipeline cuts between layers)',
    );
  const layers = model.summary?.n_layer ?? 1;
  if (engine === 'native' && pipeline > layers)
    return {
      constraint: 'parallel_unsupported',
      because: `${model.spec.name} has ${layers} layers, and parallel.pipeline asks for ${pipeline} stages`,
      numbers: { engine, needed: pipeline, available: layers },
    };
  if (devices.kind === 'mig' && deviceCount > 1 && engine !== 'native')
    return onOneDevice('MIG slices do not work together on one replica');
  const { jobs } = model.spec.parallel;
  if (jobs !== undefined && pipeline / jobs > devices.count)
    return {
      constraint: 'devices_per_node',
      because: `each of the ${jobs} jobs of a replica takes ${pipeline / jobs} devices (parallel.pipeline ${pipeline}); a node has ${devices.count}`,
      numbers: { engine, needed: pipeline / jobs, available: devices.count },
    };
  const nodes = jobs ?? nodesOf(tensor, pipeline, devices.count);
  const onOneNode = nodes !== undefined && nodes > 1 ? staysOnNode(engine, offer) : undefined;
  if (nodes === undefined || onOneNode !== undefined) {
    const why = nodes === undefined ? '' : `, and ${onOneNode}`;
    return {
      constraint: 'devices_per_node',
      because: `one replica takes ${deviceCount} devices (tensor ${tensor} × pipeline ${pipeline}); a node has ${devices.count}${why}`,
      numbers: { engine, needed: deviceCount, available: devices.count },
    };
  }
  return undivided({ model, engine, tensor }) ?? nodes;
}

/** What the model has that its layers' devices cannot have equal parts of. */
function undivided({
  model,
  engine,
  tensor,
}: Pick<WayToRun, 'model' | 'engine' | 'tensor'>): BrokenConstraint | undefined {
  if (!dividesHeads(model, tensor)) {
    const { n_head, n_head_kv } = model.summary!;
    return {
      constraint: 'tensor_divides_heads',
      because: `tensor ${tensor} does not divide the ${n_head} heads (${n_head_kv} of keys and values) of ${model.architecture}`,
      numbers: { engine, needed: tensor, available: n_head },
    };
  }
  const found = undividedWidth(model, tensor);
  if (found === undefined) return undefined;
  const { width, of, block } = found;
  const why = block === undefined ? '' : ` into whole blocks of ${block}, which have one scale each`;
  return {
    constraint: 'tensor_divides_widths',
    because: `tensor ${tensor} does not divide the width ${width} of ${of} of ${model.architecture}${why}`,
    numbers: { engine, needed: tensor * (block ?? 1), available: width },
  };
}

function stagesReason(
  stages: number,
  stages_max: number,
  devices: number,
  finest: readonly StageCut[] | undefined,
): string {
  const changes = `its job has ${devices} devices: the keeper gives it up to ${stages_max} stages as requests come`;
  if (finest === undefined) return `it begins with ${stages} stages, and ${changes}`;
  return `it begins with ${stages_max} stages, which load side by side, where no other model is on its devices, and has ${stages} when it is calm; ${changes}`;
}

/** What streaming takes and costs, for people; nothing where weights lie on the device. */
function streamingReasons(
  { device, model }: WayToRun,
  { arena_bytes, gives_way }: UnitMemory,
  seen: EngineSeen | undefined,
): string[] {
  if (arena_bytes === undefined && !gives_way) return [];
  const step = streamedStep(model, device, seen);
  const rate = `${Number((step.link_bytes_per_s / 1e9).toPrecision(2))} GB/s`;
  if (arena_bytes === undefined) {
    const load_ms = Math.ceil((1000 * model.weight_bytes) / step.link_bytes_per_s);
    return [
      `weights: reuse: its device has memory for two of the models that give way to one another; one that gave way is loaded in ${load_ms} ms at least (${step.link}, ${rate} assumed), and longer where its file is not in the page cache`,
    ];
  }
  const whole_s = step.dense_s + step.experts_s;
  const least_ms = (seconds: number): string => `${Math.ceil(1000 * seconds)} ms at least`;
  const one =
    step.experts_s > 0
      ? ` that needs all experts, ${formatGib(step.bytes)} with one of a token: they take ${least_ms(whole_s)} and ${least_ms(step.seconds)}`
      : `, which takes ${least_ms(step.seconds)}`;
  return [
    `weights: streamed: ${formatGib(step.whole_bytes)} stay in host memory and go through ${formatGib(arena_bytes)} of the device with every step${one} (${step.link}, ${rate} ${step.measured ? 'measured' : 'assumed'})`,
  ];
}

/** Whether a name a person wrote means this catalog name: `a100` matches `A100` and `A100-40GB`. */
function sameDevice(asked: string, offered: string): boolean {
  const a = asked.toLowerCase();
  const b = offered.toLowerCase();
  return a === b || b.startsWith(`${a}-`);
}
