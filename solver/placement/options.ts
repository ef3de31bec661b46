/** For one model and one node kind: either how a replica would run there, or the constraint that forbids it. */
import type {
  NodeKindOffer,
  PlacementModel,
  PlacementQuestion,
  RejectedOption,
  ResolvedEngine,
} from '../../spec/plan.ts';
import { formatSlurmDuration } from '../../spec/slurm-types.ts';
import { chooseEngine, onRealGpu } from './engine-choice.ts';
import { formatGib, sizeUnit, type UnitMemory } from './unit-memory.ts';

/** One way to run a replica of a model: everything but the node it lands on. */
export interface PlacementOption {
  model: PlacementModel;
  offer: NodeKindOffer;
  engine: ResolvedEngine;
  engine_reason: string;
  device_count: number;
  threads: number;
  memory: UnitMemory;
  time_limit_s?: number;
}

export function optionOf(
  model: PlacementModel,
  offer: NodeKindOffer,
  question: PlacementQuestion,
): PlacementOption | RejectedOption {
  const { spec } = model;
  const { devices } = offer;
  const reject = (
    constraint: RejectedOption['constraint'],
    because: string,
    numbers: { engine?: ResolvedEngine; needed?: number; available?: number } = {},
  ): RejectedOption => ({ model: spec.name, node_kind: offer.node_kind, constraint, because, ...numbers });

  if (spec.devices.node_kinds.length > 0 && !spec.devices.node_kinds.includes(offer.node_kind))
    return reject('node_kind_asked', `devices.node_kinds asks for ${spec.devices.node_kinds.join(', ')}`);
  const family = devices.kind === 'cpu' ? 'cpu' : 'gpu';
  if (spec.devices.kind !== 'any' && spec.devices.kind !== family)
    return reject(
      'device_kind_asked',
      `devices.kind asks for ${spec.devices.kind}; these nodes offer ${family}`,
    );
  if (spec.devices.models.length > 0 && !spec.devices.models.some((name) => sameDevice(name, devices.model)))
    return reject(
      'device_model_asked',
      `devices.models asks for ${spec.devices.models.join(', ')}; these nodes have ${devices.model}`,
    );
  if (spec.tier !== 'any' && spec.tier !== offer.tier)
    return reject('tier_asked', `tier asks for ${spec.tier}; these nodes are ${offer.tier}`);
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

  const deviceCount = spec.parallel.tensor * spec.parallel.pipeline;
  if (engine === 'native' && deviceCount > 1)
    return reject(
      'parallel_unsupported',
      `the native engine runs a replica on one device; parallel asks for ${deviceCount}`,
      { engine, needed: deviceCount, available: 1 },
    );
  if (deviceCount > devices.count)
    return reject(
      'devices_per_node',
      `one replica takes ${deviceCount} devices (tensor ${spec.parallel.tensor} × pipeline ${spec.parallel.pipeline}); a node has ${devices.count}`,
      { engine, needed: deviceCount, available: devices.count },
    );

  const memory = sizeUnit(model, engine, devices, deviceCount, question.settings);
  if ('because' in memory)
    return reject('device_memory', memory.because, {
      engine,
      needed: memory.needed,
      available: memory.available,
    });
  if (!onRealGpu(offer)) {
    const needed = memory.bytes_per_device * deviceCount + question.settings.host_overhead_bytes;
    if (needed > offer.memory_bytes)
      return reject(
        'host_memory',
        `needs ${formatGib(needed)} of host memory (replica and node agent); a job may have ${formatGib(offer.memory_bytes)}`,
        { engine, needed, available: offer.memory_bytes },
      );
  }

  const coresPerDevice = Math.max(1, Math.floor(offer.cpus / devices.count));
  const threads = spec.cpu_threads ?? coresPerDevice * deviceCount;
  if (threads > offer.cpus)
    return reject('cpus_per_node', `cpu_threads asks for ${threads}; a node has ${offer.cpus} CPUs`, {
      engine,
      needed: threads,
      available: offer.cpus,
    });

  return {
    model,
    offer,
    engine,
    engine_reason: choice.reason,
    device_count: deviceCount,
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

/**
 * Options best first: full KV cache before a shortened one, idle nodes before busy ones, stable before
 * scavenger, real GPUs before CPUs before emulated devices, then the smallest device that fits (large
 * ones stay free for models that need them), then the order of the site config.
 */
export function rankOptions(options: readonly PlacementOption[]): PlacementOption[] {
  const key = (option: PlacementOption): number[] => [
    option.memory.kv_tokens < option.memory.kv_tokens_wanted ? 1 : 0,
    option.offer.nodes_idle === 0 ? 1 : 0,
    option.offer.tier === 'stable' ? 0 : 1,
    onRealGpu(option.offer) ? 0 : option.offer.devices.kind === 'cpu' ? 1 : 2,
    option.offer.devices.memory_bytes,
  ];
  return options
    .map((option, order) => ({ option, key: [...key(option), order] }))
    .sort((a, b) => {
      const at = a.key.findIndex((value, index) => value !== b.key[index]);
      return at < 0 ? 0 : a.key[at]! - b.key[at]!;
    })
    .map(({ option }) => option);
}
