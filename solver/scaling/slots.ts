/** How many requests one replica has room for, where demand is weighed against it. */

export interface ReplicaRoom {
  /** Sequences that it computes at once at most. */
  max_sequences: number;
  /** Tokens that its KV cache holds. */
  kv_tokens: number;
}

/** Mean lengths of a request, in tokens. */
export interface RequestLengths {
  input_tokens: number;
  output_tokens: number;
}

/**
 * Requests at once: `min(max_sequences, KV tokens / mean tokens of a request)`, at least one. An answer that is being
 * written has half of its length in the cache on average. Engines take many more sequences than their KV holds (vLLM:
 * 1024 on large GPUs), and begin to take turns instead of growing faster.
 */
export function requestSlots({ max_sequences, kv_tokens }: ReplicaRoom, lengths: RequestLengths): number {
  const tokens = Math.max(1, lengths.input_tokens + lengths.output_tokens / 2);
  return Math.max(1, Math.min(max_sequences, Math.floor(kv_tokens / tokens)));
}
