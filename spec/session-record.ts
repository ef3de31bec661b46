/**
 * What the mesh knows of one session: a serving unit (device worker or wrapped engine), a node agent, or
 * a gateway. Records form a grow-only map (LLMFabric §3, G-Map): merged by lifecycle, then version.
 * Only the key a record names may write it; the record is encoded as deterministic CBOR and signed.
 */
import type { PoolName } from './model-pools.ts';
import type { ScalingStatement } from './scaling-statement.ts';

/** JOIN < SERVING < DOWN < LEFT; a merge never goes back. */
export const lifecycles = ['JOIN', 'SERVING', 'DOWN', 'LEFT'] as const;
export type Lifecycle = (typeof lifecycles)[number];

export type SessionRole = 'node-agent' | 'device-worker' | 'engine' | 'gateway';

/**
 * `stalled`: its engine gives no tokens, or one of its processes is stopped; it gets no requests until it goes on, or
 * is started again.
 */
export type ModelState = 'pending' | 'loading' | 'serving' | 'stalled' | 'draining' | 'failed' | 'unloaded';

/** What an engine does before it serves; one that does not say is `starting` all the time. */
export const loadPhases = ['starting', 'weights', 'compiling', 'kv_cache', 'warming_up'] as const;
export type LoadPhase = (typeof loadPhases)[number];

/** In words that follow `it is`. */
export const loadPhaseWords: Readonly<Record<LoadPhase, string>> = {
  starting: 'starting its program',
  weights: 'loading its weights',
  compiling: 'compiling kernels',
  kv_cache: 'making room for its KV cache',
  warming_up: 'warming up',
};

export interface SessionModel {
  name: string;
  aliases: string[];
  state: ModelState;
  precision: string;
  context_tokens: number;
  /** It computes prompts, or goes on with answers whose KV it is sent; absent: both. */
  pool?: PoolName;
  /** What its deployment promises; gateways choose by it where several models share an alias. */
  slo?: { ttft_ms?: number; tpot_ms?: number };
  /**
   * Set where `state` is failed or stalled: what happened, in one line. The whole error stands in the agent's state.
   */
  error?: string;
  bytes_loaded?: number;
  bytes_total?: number;
  /** While it is loaded: since the load began. */
  load_bytes_per_s?: number;
  /** While a wrapped engine loads it. */
  phase?: LoadPhase;
  /** When that began, Unix ms by the clock of its node. */
  loading_since_ms?: number;
  /** How long it took the last time, s; absent: not known. */
  usual_load_s?: number;
}

export interface DeviceDescription {
  /** `cpu` a set of cores with its memory, `gpu` a whole GPU, `mig` a MIG slice. */
  kind: 'cpu' | 'gpu' | 'mig';
  /** Catalog name, such as GH200, A100-40GB, Xeon-8480. */
  model: string;
  memory_bytes: number;
  /** Instruction sets in use on a CPU (amx_int8, avx512_bf16, …); compute capability on a GPU. */
  isa: string[];
  /** Set where a CPU stands in for the device; shown as such everywhere. */
  emulated?: 'cpu';
  cores?: number[];
  /** NVML UUID, MIG UUID. */
  uuid?: string;
  /** What it reads host memory over together with others of its node: their GPU. Absent: no other device does. */
  link?: string;
}

export interface SessionMetadata {
  role: SessionRole;
  deployment?: string;
  launch_id?: string;
  /** Of agents: their node among those that the units of their launch count. */
  node_index?: number;
  /** Of agents: the pipeline of which their job computes a part, and other jobs the rest. */
  pipeline_group?: string;
  unit?: string;
  /** Slurm job id, absent on the local site. */
  job_id?: string;
  /** Account that the Slurm job is charged to, where known; the ledger keeps it with each request. */
  slurm_account?: string;
  /** Slurm's node name; hostname on the local site. */
  node: string;
  hostname: string;
  site: string;
  /** Where the site is, as its config says: `eu`, `ch`. */
  region?: string;
  /** Who provides the device, `user@site`: a label. Who it really is, `provider_id` of the record says. */
  provider: string;
  tier: 'stable' | 'scavenger';
  engine?: string;
  engine_version?: string;
  devices: DeviceDescription[];
  models: SessionModel[];
  /** When the job's time limit ends, Unix ms; absent where there is none. */
  job_end_time_ms?: number;
  /** Where the session answers over TLS, best first. */
  addresses: { host: string; port: number }[];
  /** The process that speaks for the session in the mesh's gossip; absent where it takes no part. */
  peer?: { id: string; addresses: string[] };
  /** Of gateways: what their site says of models that follow demand over several sites. */
  scaling?: ScalingStatement;
}

export interface SessionRecord {
  /** First 16 bytes of SHA-256 over the public key's SPKI DER, in hex: the id names the only key that may write. */
  session_id: string;
  /** SPKI DER of an Ed25519 key, base64. */
  public_key: string;
  lifecycle: Lifecycle;
  /** Counts changes within a lifecycle, from 0. */
  version: number;
  /** When the session began, Unix ms by its own clock; for people, never for decisions. */
  started_at_ms: number;
  metadata: SessionMetadata;
  /**
   * Found by the reader, never written: the fingerprint of the provider's key that vouches for the session, where its
   * credential holds. See `provenProviderOf`.
   */
  provider_id?: string;
  /** From then on it vouches no more, Unix ms. */
  proven_until_ms?: number;
}

/** The fingerprint of a session's provider; undefined where the session proves none, or no more. */
export function provenProviderOf(
  { provider_id, proven_until_ms }: Pick<SessionRecord, 'provider_id' | 'proven_until_ms'>,
  now_ms: number,
): string | undefined {
  return proven_until_ms !== undefined && now_ms < proven_until_ms ? provider_id : undefined;
}

/** Fingerprint of a provider's key: 32 hex digits. */
export const providerIdPattern = /^[0-9a-f]{32}$/;

/** For people: `alice@site (3f2a9c01)`. The name is a label that others may bear, too. */
export function describeProvider(name: string, provider_id: string | undefined): string {
  return `${name} (${provider_id?.slice(0, 8) ?? 'unproven'})`;
}
