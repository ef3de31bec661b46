/**
 * What a node agent reports about itself: to `<launch_folder>/<node>.state.json` (whole file, renamed into
 * place on every change) and at `GET /hpcserve/v1/state`.
 */
import type { EnergyReading } from './energy.ts';
import type { StageTime } from './engine-contract.ts';
import type { ErrorJson } from './errors/error.ts';
import type { KvBlockNews } from './kv-blocks.ts';
import type { MovesReport } from './moves-report.ts';
import type { PrefixCacheCounts } from './prefix-cache.ts';
import type { DeviceDescription, SessionModel, SessionRole } from './session-record.ts';
import type { StreamedWeights } from './streamed-weights.ts';
import type { TurnsReport } from './turns-report.ts';
import type { WeightSources } from './weight-sources.ts';

export type AgentPhase = 'starting' | 'loading' | 'serving' | 'draining' | 'stopped' | 'failed';

export interface AgentState {
  format: 1;
  launch_id: string;
  deployment: string;
  node: string;
  hostname: string;
  node_index: number;
  pid: number;
  job_id?: string;
  /** How often Slurm had put the job back into the queue before this run of it; absent outside of Slurm. */
  restart_count?: number;
  phase: AgentPhase;
  /** By the clock of the node, which may be wrong, as all times here. */
  started_at_ms: number;
  updated_at_ms: number;
  devices: DeviceDescription[];
  sessions: SessionState[];
  /** Why it failed or stopped. */
  error?: ErrorJson;
  /**
   * What is wrong now and does not stop it: the rendezvous folder is away, a device is unused, a log cannot be written.
   */
  notices?: ErrorJson[];
  /** Set when the time limit of the job comes near (SIGUSR1), Unix ms. */
  walltime_warning_at_ms?: number;
  exit_reason?: string;
}

/** A device of the node that a process computes on. */
export interface GivenDevice extends DeviceDescription {
  /** Position among the devices of its kind that the job has on the node, from 0. */
  index: number;
}

/** What a wrapped engine chose itself, as it says; absent fields are not known. */
export interface EngineLimits {
  /** Sequences that it computes at once. */
  max_sequences?: number;
  /** Tokens that its KV cache holds. */
  kv_tokens?: number;
  /** Longest prompt plus answer. */
  context_tokens?: number;
  /** Prompts that begin alike are computed once. */
  prefix_caching?: boolean;
}

export interface HeldStage {
  unit: string;
  model: string;
  /** Counted from 0, of so many. */
  stage: number;
  stages: number;
  begin: number;
  end: number;
}

export interface SessionState {
  session_id: string;
  role: SessionRole;
  /** The unit it is named after; `units`: all it serves, several where native models share a device. */
  unit?: string;
  units?: string[];
  /** Stages of models that are cut, which its device has: operators [begin, end) each. */
  stages?: HeldStage[] | undefined;
  /** What its process was given; absent where it was given nothing, or by an agent of an earlier version. */
  devices?: GivenDevice[];
  engine: string;
  pid?: number;
  /** Cores of the node that its processes keep to; absent: all that the job has. */
  cores?: readonly number[] | undefined;
  models: SessionModel[];
  /** File that holds the engine's own output. */
  log_file?: string;
  /** Of a wrapped engine that serves. */
  limits?: EngineLimits | undefined;
  /** Of a device worker, by model that serves: bytes of the weights by layout; see `EngineStats`. */
  layouts?: Readonly<Record<string, Readonly<Record<string, number>>>> | undefined;
  /** Of a device worker, by model: how its weights, or those of its stage here, were loaded last. */
  loaded?: Readonly<Record<string, WeightSources>> | undefined;
  /** Of a device worker, by model whose weights lie in host memory. */
  streamed?: Readonly<Record<string, StreamedWeights>> | undefined;
  /** Of a device worker, by model that it coordinates the pipeline of: what batches take at each stage. */
  stage_times?: Readonly<Record<string, readonly StageTime[]>> | undefined;
  /**
   * Of a wrapped engine that serves: memory of its processes on this node as it began to serve, weights and KV on CPUs
   * included.
   */
  host_bytes?: number | undefined;
  /** Of a wrapped engine that takes turns with others on its device: it waits in host memory. */
  asleep?: boolean | undefined;
  /** Of one that takes such turns: who waits for its own. */
  turns?: TurnsReport | undefined;
  /** Of a device worker: what moved to others and came from them with keys and values; absent: nothing yet. */
  moves?: MovesReport | undefined;
  /** By model, as they were when the state was written last; see `prefix_cache_ms` of the agent. */
  prefix_caches?: Readonly<Record<string, PrefixCacheCounts>> | undefined;
  /** Why the session failed; where it lives, why the first of its failed models did. */
  error?: ErrorJson;
  /** Models that failed on a session that lives, by name. */
  model_errors?: Record<string, ErrorJson>;
  /** Of its units that failed, by their names: when they are tried again, Unix ms by the clock of the node. */
  next_tries_ms?: Readonly<Record<string, number>>;
}

/**
 * Sent once every `heartbeat_ms` on `GET /hpcserve/v1/watch` as one JSON line; the stream's end means the session is
 * gone.
 */
export interface Heartbeat {
  session_id: string;
  sequence: number;
  /** When it was sent, Unix ms by the clock of the node; agents of earlier versions do not say. */
  at_ms?: number;
  /** Of the session's devices; absent: nothing is measured. */
  energy?: EnergyReading | undefined;
  models: ModelLoad[];
  /** Of an engine that says what its KV cache holds. */
  kv_blocks?: KvBlockNews | undefined;
}

export interface ModelLoad {
  name: string;
  state: SessionModel['state'];
  running: number;
  waiting: number;
  max_sequences: number;
  kv_tokens_total: number;
  kv_tokens_used: number;
  /**
   * The device is too slow for the model's `slo`, even without other work; absent: it is not, or nothing is promised.
   */
  too_slow?: boolean;
  /** Its engine waits in host memory while another has their device: a request wakes it when its turn comes. */
  asleep?: true;
  /** Of models that share a device's memory; absent where an engine does not say, and before the first load. */
  weights?: ModelWeights;
  /** Of a pipeline's coordinator that has computed batches: what they take at each stage. */
  stages?: readonly StageTime[];
  /** Of a native model whose weights lie in host memory. */
  streamed?: StreamedWeights;
  /**
   * Of a native model: what a step takes to compute that decodes the sequences that it has now, or one; without what it
   * waits for weights. Absent: none was measured.
   */
  compute_ms?: number;
  /** Absent where the engine does not say. */
  prefix_cache?: PrefixCacheCounts;
  /**
   * Of a replica of a prefill pool: prompts of fewer tokens are computed as fast where they are decoded as their KV is
   * brought there. Absent: not measured yet.
   */
  handover_tokens_min?: number;
}

/** Whether a further request would wait there. */
export function isFull({ running, waiting, max_sequences }: ModelLoad): boolean {
  return running + waiting >= max_sequences;
}

/**
 * What lies in the device's memory of a model's weights, and how fast the rest comes: S, S′ and B of Tangram's Equation
 * 3. Gateways send requests for a model without an instance where it comes back soonest.
 */
export interface ModelWeights {
  bytes: number;
  resident_bytes: number;
  /** As measured: through the slowest of all that the bytes crossed. */
  load_bytes_per_s: number;
  /** It gave way to other models and has no instance: the next request has what is missing of it loaded. */
  resting: boolean;
  /** Share of the device's pool that is promised to weights and KV of all its instances, 0 to 1; absent: not known. */
  promised_share?: number;
}
