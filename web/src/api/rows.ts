/** What the gateway answers, as far as the page reads it; `docs/gateway.md` says who may ask what. */
import type { KeySettings } from '../../../spec/key-settings.ts';
import type { PrefixCacheCounts } from '../../../spec/prefix-cache.ts';
import type { DeviceDescription, ModelState } from '../../../spec/session-record.ts';

/** A model on a session, of `GET /mesh/table`. */
export interface ReplicaRow {
  name: string;
  aliases: string[];
  precision: string;
  context_tokens: number;
  slo?: { ttft_ms?: number; tpot_ms?: number };
  /** It computes prompts, or goes on with answers whose KV it is sent; absent: both. */
  pool?: 'prefill' | 'decode';
  error?: string;
  state: ModelState;
  /** It waits in host memory, and comes back to its device with its next request. */
  off_device?: true;
  running: number;
  waiting: number;
  max_sequences: number;
  kv_tokens_total: number;
  kv_tokens_used: number;
  /** As its engine counts since it started; absent where it does not say. */
  prefix_cache?: PrefixCacheCounts;
}

export interface SessionRow {
  session_id: string;
  lifecycle: string;
  reachable: boolean;
  node: string;
  site: string;
  provider: string;
  tier: 'stable' | 'scavenger';
  engine?: string;
  engine_version?: string;
  deployment?: string;
  job_id?: string;
  job_end_time_ms?: number;
  started_at_ms: number;
  devices: DeviceDescription[];
  models: ReplicaRow[];
}

export interface GatewayRow {
  session_id: string;
  lifecycle: string;
  node: string;
  site: string;
  addresses: { host: string; port: number }[];
  started_at_ms: number;
}

export interface WorkloadRow {
  model: string;
  rate_per_s: number;
  refused_per_s: number;
  input_tokens: number;
  output_tokens: number;
}

export interface MeshTable {
  sessions: SessionRow[];
  idle_nodes: SessionRow[];
  workload: WorkloadRow[];
  /** Absent for a key that may not see it. */
  gateways?: GatewayRow[];
}

/** A device that native models share: `GET /hpcserve/v1/devices`. */
export interface DeviceRow {
  session_id: string;
  node: string;
  error?: string;
  report?: {
    instances: { model: string; weight_bytes: number; kv_bytes: number; kv_used_bytes: number }[];
    resting?: string[];
  };
}

/** Who asks: `GET /hpcserve/v1/me`. */
export interface Caller {
  role: 'operator' | 'provider' | 'user';
  /** Whom the use of the key counts for; absent for the operator's token. */
  user?: string;
  key?: KeyRow;
}

/** As gateways of several versions know them; each checks what it is given. */
export type KeyLimits = Omit<KeySettings, 'budget'> & {
  budget?: { tokens?: number; device_s?: number; window: 'day' | 'month' | 'total' };
  expires_at_ms?: number;
  user?: string;
  project?: string;
  role?: string;
};

export interface KeyRow {
  id: string;
  name: string;
  created_at_ms: number;
  revoked_at_ms?: number;
  blocked_at_ms?: number;
  /** The key from which its user made it. */
  parent_id?: string;
  settings: KeyLimits;
  /** Of keys with limits: what they used. */
  spent?: Readonly<Record<string, unknown>>;
}

/** With the key itself, which is told once. */
export type MadeKey = KeyRow & { key: string };

/** Sums over one group, of `GET /hpcserve/v1/usage`; what a gateway does not count is absent. */
export interface UsageRow {
  /** By dimension; a gateway that sums by one alone answers with its value. */
  group: string | Readonly<Record<string, string>>;
  key_name?: string;
  /** The same, of gateways that sum by one dimension. */
  name?: string;
  requests: number;
  errors: number;
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  duration_ms: number;
  device_s?: number;
  energy_j?: number;
  energy_estimated_j?: number;
}
