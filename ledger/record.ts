/** What the ledger keeps of one answered request. */
export interface RequestRecord {
  request_id: string;
  /** When the request had arrived, Unix ms. */
  time_ms: number;
  key_id: string;
  /** OpenAI path, such as /v1/chat/completions. */
  endpoint: string;
  /** The model as the client named it. */
  model: string;
  /** The model that answered; another name where an alias was asked for. */
  served_model?: string;
  session?: SessionFacts;
  status: number;
  stream: boolean;
  /** Replicas tried, 0 where none was. */
  attempts: number;
  prompt_tokens?: number;
  completion_tokens?: number;
  /** Prompt tokens that the replica took from a cache. */
  cached_tokens?: number;
  reasoning_tokens?: number;
  /** From the request's arrival to the first byte of the answer's body. */
  ttft_ms?: number;
  /** From the request's arrival to the end of the answer, the ledger's commit excluded. */
  duration_ms: number;
  finish_reason?: string;
  /** Code of the error registry, or the upstream's. */
  error_code?: string;
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
}
