/**
 * What placement is asked and what it answers. The question holds every number that counts, so that the
 * solver needs no I/O and the same question always has the same answer; the answer says what would run
 * where and why, and what was rejected by which constraint with which numbers.
 */
import type { UnitSpec } from './launch.ts';
import type { EngineName, ModelSpec } from './model-yaml.ts';

/** An engine that was chosen: `auto` is resolved. */
export type ResolvedEngine = Exclude<EngineName, 'auto'>;

/** What placement must know of one model; read from its files by control. */
export interface PlacementModel {
  spec: ModelSpec;
  /** Absolute path as compute nodes see it. */
  model_path: string;
  format: 'gguf' | 'huggingface';
  architecture: string;
  weight_bytes: number;
  /** KV-cache bytes of one token over all layers at the KV type asked for. */
  kv_bytes_per_token: number;
  /** What the model was trained for; bounds the default of `context_tokens`. */
  trained_context_tokens: number;
  /** Whether the native engine computes this architecture and these tensor types. */
  native: { supported: true } | { supported: false; because: string };
}

/** One kind of node the site offers, with what is known of it now. */
export interface NodeKindOffer {
  node_kind: string;
  tier: 'stable' | 'scavenger';
  /** Partitions, first choice first; submitted as a comma list. Empty on the local site. */
  partitions: string[];
  /** Nodes of this kind there are, and those without a job now (undefined where Slurm was not asked). */
  nodes_total: number;
  nodes_idle?: number;
  /** CPUs as the scheduler counts them, and memory jobs may ask for, per node. */
  cpus: number;
  memory_bytes: number;
  devices: DeviceOffer;
  /** Engines that can be started here, with the reason of those that cannot. */
  engines: Partial<Record<ResolvedEngine, EngineOffer>>;
  /** Longest wall time a job may ask for here, and the one asked for when nothing is said; seconds. */
  time_limit_max_s?: number;
  time_limit_default_s?: number;
}

export interface DeviceOffer {
  kind: 'cpu' | 'gpu' | 'mig';
  /** Catalog name (A100-40GB, GH200, Xeon-8480). */
  model: string;
  count: number;
  memory_bytes: number;
  /** Set where a CPU stands in for the device. */
  emulated?: 'cpu';
}

/** `unverified`: taken for there, since the site config says nothing of it and the job cannot be looked into. */
export type EngineOffer = { available: true; unverified?: true } | { available: false; because: string };

export interface PlacementQuestion {
  deployment: string;
  site: string;
  models: PlacementModel[];
  node_kinds: NodeKindOffer[];
  /** Wall time asked for in model.yaml or on the command line, seconds. */
  time_limit_s?: number;
  /** Partitions asked for in model.yaml or on the command line; they replace those of the node kind. */
  partitions?: string[];
  settings: PlacementSettings;
  /** Replicas that run now: they are left where they are unless moving them gains more than it costs. */
  running?: { model: string; node_kind: string; replicas: number }[];
}

export interface PlacementSettings {
  /**
   * Device memory kept free of weights and KV: `fixed_bytes + weight_fraction × weights`. It holds
   * activations and compute buffers. Lower: more KV cache, and a risk of running out while computing.
   */
  margin_fixed_bytes: number;
  margin_weight_fraction: number;
  /** Share of a GPU's memory a wrapped engine may take (vLLM's own default is 0.9). */
  wrapped_memory_fraction: number;
  /** Memory of a job beside its units: the node agent, its workers' runtimes, the script. */
  host_overhead_bytes: number;
}

export const defaultPlacementSettings: PlacementSettings = {
  margin_fixed_bytes: 192 * 1024 ** 2,
  margin_weight_fraction: 0.05,
  wrapped_memory_fraction: 0.9,
  host_overhead_bytes: 768 * 1024 ** 2,
};

/** The default bound of `context_tokens` where model.yaml does not say it. */
export const defaultContextTokens = 8192;

/** One job to submit. */
export interface PlannedLaunch {
  node_kind: string;
  tier: 'stable' | 'scavenger';
  partitions: string[];
  node_count: number;
  /** Devices the job asks for on each node; `count` is 0 where it takes no GPUs. */
  devices_per_node: {
    kind: 'cpu' | 'gpu' | 'mig';
    model: string;
    count: number;
    /** Declared memory of one device, bytes. */
    memory_bytes: number;
    emulated?: 'cpu';
  };
  cpus_per_node: number;
  memory_bytes_per_node: number;
  /** Absent: no limit is asked for, the partition's own default holds. */
  time_limit_s?: number;
  units: UnitSpec[];
}

export interface PlannedModel {
  model: string;
  engine: ResolvedEngine;
  /** Why this engine and these devices, one sentence each. */
  reasons: string[];
  replicas: number;
  weight_bytes: number;
  context_tokens: number;
  kv_tokens: number;
  kv_bytes: number;
}

/** Constraints that can reject an option; each has one check in `solver/placement/`. */
export type PlacementConstraint =
  | 'node_kind_asked'
  | 'device_kind_asked'
  | 'device_model_asked'
  | 'tier_asked'
  | 'engine_unavailable'
  | 'architecture_unsupported'
  | 'device_memory'
  | 'host_memory'
  | 'devices_per_node'
  | 'cpus_per_node'
  | 'parallel_unsupported'
  | 'time_limit'
  | 'no_nodes'
  | 'nodes_used_up';

export interface RejectedOption {
  model: string;
  node_kind: string;
  engine?: ResolvedEngine;
  constraint: PlacementConstraint;
  /** In the user's words, with the numbers. */
  because: string;
  /** The numbers of the comparison that failed. */
  needed?: number;
  available?: number;
}

/** Models that cannot all be placed, though any of them could be left out to place the rest. */
export interface PlacementClash {
  models: string[];
  node_kinds: string[];
  /** Devices the models need at least, and those there are on these node kinds. */
  needed: number;
  available: number;
  because: string;
}

export interface Placement {
  launches: PlannedLaunch[];
  models: PlannedModel[];
  rejected: RejectedOption[];
  warnings: string[];
  /** Replicas that found no place; empty where the plan is feasible. */
  unplaced: { model: string; replicas: number }[];
  /** Where several models compete for too few devices: the smallest set that clashes. */
  clash?: PlacementClash;
}

/** A placement with what it was made from, as `hpcserve plan --out` writes it and `deploy --plan` reads it. */
export interface Plan extends Placement {
  format: 1;
  deployment: string;
  site: string;
  made_at_ms: number;
  /** Made from the site config alone, without asking Slurm what there is. */
  offline?: true;
  /** SHA-256 over model.yaml (with defaults), model files (path, bytes, mtime) and the offers used. */
  inputs_digest: string;
}
