/**
 * What a device worker says of itself at `GET /hpcserve/v1/device`, and `hpcserve top` shows: its memory, the models on
 * it, how long their requests can wait, and what it decided last. Durations are milliseconds, sizes bytes.
 */

export interface DeviceReport {
  format: 1;
  /** When it was made, Unix ms. */
  at_ms: number;
  pid: number;
  device: { name: string; threads: number; isa: string[] };
  memory: MemoryReport;
  instances: InstanceReport[];
  scheduler: SchedulerReport;
  /** Newest last. */
  decisions: SharingDecision[];
}

export interface InstanceReport {
  model: string;
  /** What its deployment promises; absent: nothing, its requests run in time that promises spare. */
  slo?: { ttft_ms?: number; tpot_ms?: number };
  /** Requests whose prompt is being computed, that decode, and that wait for a place. */
  prompts: number;
  decoding: number;
  waiting: number;
  max_sequences: number;
  /** Of its most urgent request: how long its next token can still wait; negative: late. Absent without requests. */
  headroom_ms?: number;
  weight_bytes: number;
  /** KV: reserved for it, in use by sequences, and what it should have (LLM-Mesh Eq. 2). */
  kv_bytes: number;
  kv_used_bytes: number;
  kv_required_bytes: number;
  /** Since when it has had no request; absent while it has one. */
  idle_ms?: number;
  profile: {
    /** Points that were measured, of prompts and of decode steps. */
    prefill_points: number;
    decode_points: number;
    /** Estimates: a prompt of 512 tokens, and a token of one sequence of that length. */
    prefill_512_ms: number;
    decode_512_ms: number;
    /** Whether the idle device keeps the promised level for such a request; absent where nothing is promised. */
    keeps_level?: boolean;
  };
}

/** Since the worker began. */
export interface SchedulerReport {
  iterations: number;
  /** In iterations, and in what decides whose turn it is and who is let in. */
  computing_ms: number;
  deciding_ms: number;
  admitted: number;
  refused: number;
  evicted: number;
}

export interface SharingDecision {
  /** Unix ms. */
  at_ms: number;
  kind: 'admit' | 'refuse' | 'evict' | 'profile' | 'budget';
  model: string;
  /** Id of the request in the worker. */
  request?: number;
  because: string;
}

/** Where the worker's memory is. The parts add up to `pss_bytes` but for `unexplained_bytes`. */
export interface MemoryReport {
  /** Proportional set size of the process, as the kernel counts it; memory files included. */
  pss_bytes: number;
  parts: { name: string; bytes: number }[];
  /** What no part explains. */
  unexplained_bytes: number;
  pool?: PoolReport;
}

/** The unified pool, where the worker has one. */
export interface PoolReport {
  pool_bytes: number;
  weights_bytes: number;
  /** Tensors that no instance uses now. */
  reusable_bytes: number;
  kv_bytes: number;
  scratch_bytes: number;
  free_bytes: number;
  largest_free_bytes: number;
  regions: number;
}
