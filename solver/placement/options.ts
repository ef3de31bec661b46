/** For one model and one node kind: the ways a replica would run there, or the constraint that forbids it. */
import type {
  NodeKindOffer,
  PlacementModel,
  PlacementQuestion,
  RejectedOption,
  ResolvedEngine,
} from '../../spec/plan.ts';
import { formatSlurmDuration } from '../../spec/slurm-types.ts';
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { assumedInterconnects } from '../catalog/interconnects.ts';
import type { ModelShape } from '../catalog/model-shape.ts';
import { offeredDevice } from '../catalog/offered-device.ts';
import { dividesHeads, nodesOf, staysOnNode, tensorDegrees } from './degrees.ts';
import { chooseEngine, onRealGpu } from './engine-choice.ts';
import { type PrecisionChoice, precisionsOf } from './precision.ts';
import { formatGib, sizeUnit, type UnitMemory } from './unit-memory.ts';

/** One way to run a replica of a model: everything but the node it lands on. */
export interface PlacementOption {
  model: PlacementModel;
  shape: ModelShape | undefined;
  offer: NodeKindOffer;
  /** The device as the catalog, the site config, or an estimate has it. */
  device: DeviceSpec;
  /** What people should know of these figures. */
  device_note: string | undefined;
  engine: ResolvedEngine;
  /** Why this engine and this precision, one sentence each. */
  reasons: readonly string[];
  precision: string;
  /** See `PrecisionChoice`. */
  steps_down: number;
  tensor: number;
  pipeline: number;
  /** tensor × pipeline, evenly over its nodes. */
  device_count: number;
  nodes: number;
  /** On each of its nodes. */
  threads: number;
  memory: UnitMemory;
  weight_bytes: number;
  time_limit_s?: number;
}

type Numbers = { engine?: ResolvedEngine; needed?: number; available?: number };

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
    numbers: Numbers = {},
  ): RejectedOption => ({ model: spec.name, node_kind: offer.node_kind, constraint, because, ...numbers });

  const notAsked = askedFor(model, offer);
  if (notAsked) return reject(...notAsked);
  if (offer.nodes_total === 0) return reject('no_nodes', 'no node of this kind is there now');
  const limit = question.time_limit_s ?? offer.time_limit_default_s;
  if (limit !== undefined && offer.time_limit_max_s !== undefined && limit > offer.time_limit_max_s)
    return reject(
      'time_limit',
      `a wall time of ${formatSlurmDuration(limit)} is asked for; at most ${formatSlurmDuration(offer.time_limit_max_s)} is allowed`,
      { needed: limit, available: offer.time_limit_max_s },
    );

  const choice = chooseEngine(model, offer);
  if (!('reason' in choice))
    return reject(
      choice.constraint,
      choice.because,
      choice.engine === undefined ? {} : { engine: choice.engine },
    );
  const { engine } = choice;
  const { device, note } = offeredDevice(
    devices,
    {
      cpus: offer.cpus,
      isa: offer.isa ?? [],
      ...(offer.architecture ? { architecture: offer.architecture } : {}),
    },
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
      const option = optionWith(way, choice.reason, question, limit, reject);
      if ('constraint' in option) last = option;
      else options.push(option);
    }
  return options.length > 0 ? options : last!;
}

/** The first wish of model.yaml these nodes do not meet. */
function askedFor(
  { spec }: PlacementModel,
  offer: NodeKindOffer,
): [constraint: RejectedOption['constraint'], because: string] | undefined {
  const { devices } = offer;
  if (spec.devices.node_kinds.length > 0 && !spec.devices.node_kinds.includes(offer.node_kind))
    return ['node_kind_asked', `devices.node_kinds asks for ${spec.devices.node_kinds.join(', ')}`];
  const family = devices.kind === 'cpu' ? 'cpu' : 'gpu';
  if (spec.devices.kind !== 'any' && spec.devices.kind !== family)
    return ['device_kind_asked', `devices.kind asks for ${spec.devices.kind}; these nodes offer ${family}`];
  if (spec.devices.models.length > 0 && !spec.devices.models.some((name) => sameDevice(name, devices.model)))
    return [
      'device_model_asked',
      `devices.models asks for ${spec.devices.models.join(', ')}; these nodes have ${devices.model}`,
    ];
  if (spec.tier !== 'any' && spec.tier !== offer.tier)
    return ['tier_asked', `tier asks for ${spec.tier}; these nodes are ${offer.tier}`];
  return undefined;
}

function optionWith(
  way: Pick<PlacementOption, 'model' | 'shape' | 'offer' | 'device' | 'device_note' | 'engine' | 'tensor'> & {
    precision: PrecisionChoice;
  },
  engineReason: string,
  question: PlacementQuestion,
  limit: number | undefined,
  reject: (constraint: RejectedOption['constraint'], because: string, numbers?: Numbers) => RejectedOption,
): PlacementOption | RejectedOption {
  const { model, offer, engine, tensor } = way;
  const { spec } = model;
  const { devices } = offer;
  const { pipeline } = spec.parallel;
  const deviceCount = tensor * pipeline;
  if (engine === 'native' && deviceCount > 1)
    return reject(
      'parallel_unsupported',
      `the native engine runs a replica on one device; parallel asks for ${deviceCount}`,
      { engine, needed: deviceCount, available: 1 },
    );
  if (devices.kind === 'mig' && deviceCount > 1)
    return reject(
      'parallel_unsupported',
      `MIG slices do not work together on one replica; parallel asks for ${deviceCount}`,
      { engine, needed: deviceCount, available: 1 },
    );
  const nodes = nodesOf(tensor, pipeline, devices.count);
  if (nodes === undefined)
    return reject(
      'devices_per_node',
      `one replica takes ${deviceCount} devices (tensor ${tensor} × pipeline ${pipeline}); a node has ${devices.count}`,
      { engine, needed: deviceCount, available: devices.count },
    );
  const onOne = nodes > 1 ? staysOnNode(engine, offer) : undefined;
  if (onOne !== undefined)
    return reject(
      'devices_per_node',
      `one replica takes ${deviceCount} devices (tensor ${tensor} × pipeline ${pipeline}); a node has ${devices.count}, and ${onOne}`,
      { engine, needed: deviceCount, available: devices.count },
    );
  const onNode = deviceCount / nodes;
  if (!dividesHeads(model, tensor))
    return reject(
      'tensor_divides_heads',
      `tensor ${tensor} does not divide the ${model.summary!.n_head} heads (${model.summary!.n_head_kv} of keys and values) of ${model.architecture}`,
      { engine, needed: tensor, available: model.summary!.n_head },
    );

  const split = { tensor, pipeline, weight_bytes: way.precision.weight_bytes };
  const memory = sizeUnit(model, engine, devices, split, question.settings);
  if ('because' in memory)
    return reject('device_memory', memory.because, {
      engine,
      needed: memory.needed,
      available: memory.available,
    });
  if (!onRealGpu(offer)) {
    const needed = memory.bytes_per_device * onNode + question.settings.host_overhead_bytes;
    if (needed > offer.memory_bytes)
      return reject(
        'host_memory',
        `needs ${formatGib(needed)} of host memory (replica and node agent); a job may have ${formatGib(offer.memory_bytes)}`,
        { engine, needed, available: offer.memory_bytes },
      );
  }

  const coresPerDevice = Math.max(1, Math.floor(offer.cpus / devices.count));
  const threads = spec.cpu_threads ?? coresPerDevice * onNode;
  if (threads > offer.cpus)
    return reject('cpus_per_node', `cpu_threads asks for ${threads}; a node has ${offer.cpus} CPUs`, {
      engine,
      needed: threads,
      available: offer.cpus,
    });

  const { precision } = way;
  return {
    ...way,
    precision: precision.precision,
    steps_down: precision.steps_down,
    weight_bytes: precision.weight_bytes,
    reasons: [
      engineReason,
      ...(precision.reason === undefined ? [] : [precision.reason]),
      ...(nodes > 1
        ? [
            `a replica takes ${nodes} nodes: layers are split over ${tensor} device(s) of one, its ${pipeline} stages over all; speeds are predicted with ${assumedInterconnects[offer.interconnect ?? 'ethernet']} between them`,
          ]
        : []),
    ],
    pipeline,
    device_count: deviceCount,
    nodes,
    threads,
    memory,
    ...(limit === undefined ? {} : { time_limit_s: limit }),
  };
}

/** Whether a name a person wrote means this catalog name: `a100` matches `A100` and `A100-40GB`. */
function sameDevice(asked: string, offered: string): boolean {
  const a = asked.toLowerCase();
  const b = offered.toLowerCase();
  return a === b || b.startsWith(`${a}-`);
}
