/** What the ledger keeps of one answered request. */
export interface RequestRecord {
  request_id: string;
  /** When the request had arrived, Unix ms. */
  time_ms: number;
  key_id: string;
  /** The key whose limits it counts against, where that is another one. */
  limits_key_id?: string | undefined;
  /** Whom, and for what, the key says it is used. */
  user?: string | undefined;
  project?: string | undefined;
  /** OpenAI path, such as /v1/chat/completions. */
  endpoint: string;
  /** The model as the client named it. */
  model: string;
  /** The model that answered; another name where an alias was asked for. */
  served_model?: string | undefined;
  precision?: string | undefined;
  session?: SessionFacts | undefined;
  status: number;
  stream: boolean;
  /** Replicas tried, 0 where none was. */
  attempts: number;
  prompt_tokens?: number | undefined;
  completion_tokens?: number | undefined;
  /** Prompt tokens that the replica took from a cache. */
  cached_tokens?: number | undefined;
  reasoning_tokens?: number | undefined;
  /** From the request's arrival to the first byte of the answer's body. */
  ttft_ms?: number | undefined;
  /** From the request's arrival to the end of the answer, the ledger's commit excluded. */
  duration_ms: number;
  /** Its share of the devices' time, devices × s. */
  device_s?: number | undefined;
  energy_j?: number | undefined;
  /** The energy is the catalog's power × time: nobody measured it. */
  energy_estimated?: boolean | undefined;
  finish_reason?: string | undefined;
  /** Code of the error registry, or the upstream's. */
  error_code?: string | undefined;
  /** Nothing is kept of it but what it adds to sums. */
  counts_only?: boolean | undefined;
  /** Absent: nothing of its prompt is kept. */
  trace?: RequestTrace | undefined;
}

/** What a trace has of a request beside its record; see docs/usage.md. */
export interface RequestTrace {
  /** Sampling parameters as the client named them, JSON. */
  parameters: string;
  /** Hashes of 16 tokens of its prompt each, of `prefixHash_bytes`, one behind the other. */
  prefix: Buffer;
}

/** Who computed an answer; one object a session, shared by its requests' records. */
export interface SessionFacts {
  session_id: string;
  node: string;
  site: string;
  engine?: string;
  deployment?: string;
  job_id?: string;
  slurm_account?: string;
  tier?: string;
  /** `user@site`, a label; and the fingerprint of the key that vouched for it when it was first seen. */
  provider?: string;
  provider_id?: string;
  /** What it computes with: `4x A100-40GB`. */
  devices?: string;
  device_count?: number;
}
