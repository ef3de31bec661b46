import { defaultSharingSettings, type SharingSettings } from '../../solver/sharing/settings.ts';

/** Bounds of a device worker that a `configure` message may change; the values here are what serves most people. */
export interface WorkerLimits {
  /**
   * Sequences of one model that may wait beyond those that run. Lower: refuses earlier, so that a gateway goes
   * elsewhere; higher: longer waits.
   */
  waiting_sequences: number;
  /**
   * How long a client may leave its stream unread before it is cancelled. Lower: KV is free sooner; higher: patience
   * with slow links.
   */
  slow_client_ms: number;
  /** Time that running answers have to end after SIGTERM. Lower: ends sooner; higher: fewer answers cut off. */
  drain_ms: number;
  /** Until the compute thread counts as stuck; see `ComputeWatchdog`. */
  stall_ms: number;
  /**
   * Longest measurement of a model that comes to a device for the first time. Lower: it serves sooner; higher: the
   * first estimates are better.
   */
  profile_ms: number;
}

export const defaultLimits: WorkerLimits = {
  waiting_sequences: 1024,
  slow_client_ms: 60_000,
  drain_ms: 5_000,
  stall_ms: 300_000,
  profile_ms: 500,
};

/**
 * How a worker shares its device, where nothing else is said: as the paper does, with finer chunks for slow devices,
 * and more patience.
 */
export const workerSharing: SharingSettings = {
  ...defaultSharingSettings,
  // Weights may take minutes to come: no SLO of seconds could be kept, and no model would ever come back.
  cold_start_counts: false,
  prefill_chunk_tokens_min: 32,
  // Models of a worker have their room until others need it: an engine is closed where nobody has asked for long.
  keep_alive_ms: 300_000,
};
