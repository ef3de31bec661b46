/**
 * What placement is asked and what it answers. The question holds every number that counts, so that the
 * solver needs no I/O and the same question always has the same answer; the answer says what would run
 * where and why, and what was rejected by which constraint with which numbers.
 */
import type { AnswerFormats } from './answer-parsers.ts';
import type { UnitSpec } from './launch.ts';
import type { PoolName } from './model-pools.ts';
import type { ModelFileSummary } from './model-summary.ts';
import type { EngineName, ModelSpec, Objective } from './model-yaml.ts';
import { type PlacementPenalties, penaltiesSchema } from './site.ts';
import type { DeviceFigures, NodeKind } from './site-nodes.ts';

/** An engine that was chosen: `auto` is resolved. */
export type ResolvedEngine = Exclude<EngineName, 'auto'>;

/** What placement must know of one model; read from its files by control. */
export interface PlacementModel {
  /** Of a pool its own: with its replicas and devices, under its `plannedName`. */
  spec: ModelSpec;
  /** Absent: its replicas compute prompts and answers. */
  pool?: PoolName;
  /** Absolute path as compute nodes see it. */
  model_path: string;
  format: 'gguf' | 'huggingface';
  architecture: string;
  weight_bytes: number;
  /** KV-cache bytes of one token over all layers at 16 bits an element; see `kvBytesPerToken` of the solver. */
  kv_bytes_per_token: number;
  /** What the model was trained for, 0 where its files do not say it; bounds the default of `context_tokens`. */
  trained_context_tokens: number;
  /** Whether the native engine computes this architecture and these tensor types. */
  native: { supported: true } | { supported: false; because: string };
  /** What the headers of its files say; without it no speed can be predicted. */
  summary?: ModelFileSummary;
  /** The parsed config.json of a Hugging Face folder: it tells more of the shape than the summary. */
  config?: unknown;
  /** How it writes tool calls and reasoning, as far as that is known. */
  formats?: AnswerFormats;
  /** Absent: assumed. */
  workload?: PlannedWorkload;
  /** What engines of its running replicas said that they chose. */
  seen?: EngineSeen[];
}

/** What a batch takes at one stage of a pipeline, operators [begin, end). */
export interface StageSeen {
  begin: number;
  end: number;
  compute_s: number;
  /** Of each operator, where they were measured; they add up to `compute_s`. */
  operators_s?: number[];
}

/** Limits and needs of an engine that runs, and where it does. */
export interface EngineSeen {
  node_kind: string;
  engine: ResolvedEngine;
  tensor: number;
  pipeline: number;
  max_sequences?: number;
  kv_tokens?: number;
  /** On CPUs: what its processes take for each device beside weights and KV, as they began to serve. */
  programs_bytes?: number;
  /** Of a pipeline of the native engine: on average. */
  stages?: StageSeen[];
  /** Kind of the nodes that lend the later ones; absent: all are on nodes of `node_kind`. */
  lender?: string;
  /** Of a model whose weights are streamed: what its device reads of host memory. */
  link_bytes_per_s?: number;
}

/** ⟨λ, μ_in, μ_out⟩ of LLMFabric §3.3, and who says so. */
export interface PlannedWorkload {
  rate_per_s: number;
  input_tokens: number;
  output_tokens: number;
  source: 'given' | 'measured' | 'assumed';
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
  /** Node kinds that are (partly) the same nodes, such as one partition and its scavenger twin; absent: no other is. */
  pool?: NodePool;
  /** What is free now, by groups of like nodes, idle ones included; absent where Slurm was not asked. */
  free?: NodeSpace[];
  /** Seconds a job for one such node would wait, where the site has it asked. */
  queue_wait_s?: number;
  /** CPUs as the scheduler counts them, and memory jobs may ask for, per node. */
  cpus: number;
  memory_bytes: number;
  devices: DeviceOffer;
  /** Jobs get all of a node, whatever they ask for. */
  whole_nodes?: true;
  /** Only trusted people listen on the network between the nodes: parts of an engine may talk there unencrypted. */
  private_fabric?: true;
  /** Network between the nodes; absent: Ethernet. */
  interconnect?: NodeKind['interconnect'];
  /** Engines that can be started here, with the reason of those that cannot. */
  engines: Partial<Record<ResolvedEngine, EngineOffer>>;
  /** CPU extensions and instruction set of the nodes, as far as the site config tells. */
  isa?: string[];
  architecture?: 'x86_64' | 'aarch64';
  /** Longest wall time a job may ask for here, and the one asked for when nothing is said; seconds. */
  time_limit_max_s?: number;
  time_limit_default_s?: number;
  /** Those of its site, in a question over several sites; absent: those of the settings. */
  penalties?: PlacementPenalties;
}

/** Nodes that several kinds stand for. */
export interface NodePool {
  id: string;
  /** Nodes there are, each counted once. */
  nodes: number;
}

/** Room on each of so many nodes. */
export interface NodeSpace {
  nodes: number;
  devices: number;
  cpus: number;
}

export interface DeviceOffer {
  kind: 'cpu' | 'gpu' | 'mig';
  /** Catalog name (A100-40GB, GH200, Xeon-8480). */
  model: string;
  count: number;
  memory_bytes: number;
  /** CPU cores that go with one; default: the node's, divided evenly. */
  cores?: number;
  /** Set where a CPU stands in for the device. */
  emulated?: 'cpu';
  /** Least time of an iteration where it is emulated. */
  emulated_step_ms?: number;
  /** What the site config says of its speed, where it differs from the catalog or is not in it. */
  figures?: DeviceFigures;
}

/**
 * `unverified`: taken for there, since the site config says nothing of it and the job cannot be looked into.
 * `reads_host_weights`: of the native engine, products of its GPUs read weights in page-locked memory of the host.
 */
export type EngineOffer =
  | { available: true; unverified?: true; reads_host_weights?: true }
  | { available: false; because: string };

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
  /** What the plan is for; default: `slo`. */
  objective?: Objective;
  /** Replicas that run now: they are left where they are unless moving them gains more than it costs. */
  running?: RunningReplicas[];
}

export interface RunningReplicas {
  model: string;
  node_kind: string;
  replicas: number;
  /** Devices each takes. */
  device_count: number;
  /** Where their weights lie, as it was decided; absent: on the device. */
  weights?: Residency | undefined;
}

/**
 * Where weights lie: `resident` on the device, `reuse` there until other models need the room, `streamed` in host
 * memory.
 */
export type Residency = 'resident' | 'reuse' | 'streamed';

export interface PlacementSettings {
  /**
   * Device memory kept free of weights and KV: `fixed_bytes + weight_fraction × weights`. It holds
   * activations and compute buffers. Lower: more KV cache, and a risk of running out while computing.
   */
  margin_fixed_bytes: number;
  margin_weight_fraction: number;
  /** Share of a GPU's memory a wrapped engine may take (vLLM's own default is 0.9). */
  wrapped_memory_fraction: number;
  /**
   * What the processes of vLLM or SGLang take on a CPU node beside weights and KV: several interpreters with PyTorch,
   * and what a step computes in. Until one ran that took more, or where a model fits only with what one took. Lower:
   * more KV, and a risk that the kernel ends one of them; higher: less KV.
   */
  python_engine_bytes: number;
  /** Memory of a job beside its units: the node agent, its workers' runtimes, the script. */
  host_overhead_bytes: number;
  /**
   * Replicas of native models share a device as long as all of them together are expected to compute for at most so
   * much of its time; 0: only where devices do not suffice.
   */
  shared_time_max: number;
  /** Somebody merges stages while they serve, and splits them: a pipeline may begin with more than it is to have. */
  changes_stages: boolean;
  /** What counts against an option beside its speed: 0.5 is half as much again. They add up. */
  penalties: PlacementPenalties;
}

export const defaultPlacementSettings: PlacementSettings = {
  margin_fixed_bytes: 192 * 1024 ** 2,
  margin_weight_fraction: 0.05,
  wrapped_memory_fraction: 0.9,
  python_engine_bytes: 2 * 1024 ** 3,
  host_overhead_bytes: 768 * 1024 ** 2,
  shared_time_max: 0.5,
  changes_stages: false,
  penalties: penaltiesSchema.parse({}),
};

/**
 * Of a device's memory, what the pool of its native models takes at most where no plan says how much they need. Lower:
 * more for programs, vocabularies and libraries; higher: for models.
 */
export const pool_share = 0.85;

/** What is planned for where nobody said or measured what will arrive. */
export const assumedWorkload: PlannedWorkload = {
  rate_per_s: 1,
  input_tokens: 512,
  output_tokens: 128,
  source: 'assumed',
};

/** Targets where model.yaml has none; of LLM-Mesh §7 (TTFT max(2, L/512) s, TPOT 0.25 s), the TPOT of fast reading. */
export const defaultSlo = { ttft_ms: 2000, tpot_ms: 100 } as const;

/**
 * The bound of `context_tokens` where model.yaml does not say it, of engines that set memory aside for it; of others,
 * so much at least must fit.
 */
export const context_tokens_default = 8192;

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
    emulated_step_ms?: number;
  };
  cpus_per_node: number;
  memory_bytes_per_node: number;
  /** Of these, what files that weights are streamed from may have in the page cache; absent: nothing is streamed. */
  page_cache_bytes?: number;
  /** Absent: no limit is asked for, the partition's own default holds. */
  time_limit_s?: number;
  /** Beyond what the plan has: `hpcserve backfill` put it on idle nodes, and nobody replaces it when it ends. */
  scavenged?: {
    /** Shortest wall time that is still of use (--time-min). */
    time_min_s: number;
  };
  /** What it answers for. */
  units: UnitSpec[];
  /** It is one of several jobs over which the stages of a replica are divided. */
  part?: PipelinePart | undefined;
}

/**
 * One job's part in a pipeline of several: all of them have the same unit, and each computes the stages of its node.
 * The first one answers for it, so that it is a replica there and nowhere else.
 */
export interface PipelinePart {
  /**
   * Equal for the jobs that belong together. In a plan the unit's name; once there are launches of it, no other
   * pipeline of that name has it, such as the one whose place it takes.
   */
  group: string;
  /** Its node among those that the unit counts, from 0. */
  node_index: number;
  /** Jobs that belong together. */
  jobs: number;
  /** Of other than the first job: what it computes stages of. */
  lends_to: UnitSpec[];
}

/** What a job runs all or a part of. */
export function unitsOfJob({ units, part }: Pick<PlannedLaunch, 'units' | 'part'>): readonly UnitSpec[] {
  return part === undefined || part.lends_to.length === 0 ? units : [...units, ...part.lends_to];
}

/** A job of later stages, on nodes that may be taken from it: `parallel.lenders`. */
export function isLent({ part }: Pick<PlannedLaunch, 'part'>): boolean {
  return part?.lends_to.some(({ model }) => model.parallel.lenders !== undefined) ?? false;
}

/** It goes to nodes that are idle, where they are, and not to those that the model asks for; nobody renews it. */
export function isOnIdleNodes(launch: Pick<PlannedLaunch, 'part' | 'scavenged'>): boolean {
  return launch.scavenged !== undefined || isLent(launch);
}

export interface PlannedModel {
  /** See `plannedName`. */
  model: string;
  engine: ResolvedEngine;
  /** Why this engine and these devices, one sentence each. */
  reasons: string[];
  replicas: number;
  weight_bytes: number;
  context_tokens: number;
  kv_tokens: number;
  kv_bytes: number;
  /** Its weights are streamed through so many bytes of a device; absent: they lie there. */
  arena_bytes?: number;
  /** Of these, layers that stay there, at least so much on each; absent: none do. */
  resident_bytes?: number;
  workload: PlannedWorkload;
  /** Replicas that are alike, by where they run. */
  groups: PlannedGroup[];
  /** What else could have been, least cost first. */
  runners_up: RunnerUp[];
}

/** What the serving simulator expects of replicas at their share of the workload; docs/simulator.md tells how well. */
export interface Prediction {
  /** 0: of a decode pool, whose answers have begun elsewhere. */
  ttft_ms: number;
  /** 0: of a prefill pool, whose answers go on elsewhere. */
  tpot_ms: number;
  /** Of a pool, its part of it. */
  e2e_ms: number;
  /** Share of requests within the SLO, 0 to 1. */
  slo_attainment: number;
  /** Offered load over what the replicas can take; from 1 on, queues grow. */
  utilization: number;
  /** Requests per second they could take at most, together. */
  max_rate_per_s: number;
  /** Output tokens per second at this load, together. */
  output_tokens_per_s: number;
  /** Electrical power of all their devices, watts. */
  power_w: number;
}

export interface PlannedGroup {
  node_kind: string;
  device: string;
  engine: ResolvedEngine;
  precision: string;
  /** Devices of one replica: tensor × pipeline. */
  tensor: number;
  pipeline: number;
  replicas: number;
  /** Of the model's requests, 0 to 1. */
  traffic_share: number;
  /** Absent where nothing is known of model or device. */
  predicted?: Prediction;
}

/** All replicas of one model on another kind of node or split otherwise, with the rest of the plan as it is. */
export interface RunnerUp {
  node_kind: string;
  device: string;
  engine: ResolvedEngine;
  precision: string;
  tensor: number;
  replicas: number;
  devices: number;
  predicted?: Prediction;
  /** Its cost over that of what was chosen, by the objective; 1.3 is 30 % dearer. */
  cost_ratio: number;
  /** Why it was not chosen, in a few words. */
  because: string;
}

/** How the optimiser ended. */
export interface PlacementSearch {
  /**
   * `optimal`: no plan costs less, proved. `feasible`: at most `gap` above the optimum. `first_fit`: the devices do not
   * suffice without sharing or do not divide as counted, so replicas took the best that was left, one by one.
   */
  status: 'optimal' | 'feasible' | 'first_fit';
  /** Proved distance from the optimum, as a share of the cost; absent for `first_fit`. */
  gap?: number;
  /** Of `first_fit`: whether time ended before there was a plan, or devices do not suffice or divide. */
  because?: 'no_time' | 'does_not_fit';
  nodes: number;
  /** With `no_time`: how often a model chose anew, beside what the others hold, in search of a plan. */
  repairs?: number;
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
  | 'tensor_divides_heads'
  | 'tensor_divides_widths'
  | 'device_capability'
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
  /** Of each model that is larger than any group of devices here: one sentence. */
  too_large: { model: string; because: string }[];
  objective: Objective;
  search: PlacementSearch;
  /** GPUs (and MIG slices) of the whole plan: each hour costs so many GPU-hours. */
  gpu_count: number;
  /** Over the wall time of all jobs; absent where a job with GPUs has no limit. */
  gpu_hours?: number;
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
  /** Version of hpcserve. */
  made_by: string;
  /** SHA-256 over all of the plan but this: a file that was changed is no plan. */
  content_digest: string;
}
