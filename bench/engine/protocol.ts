/** What the bench asks of its two children, and what they answer, over Node's IPC channel. */

export type Contender = 'native' | 'native invariant' | 'libllama';

/** One measured piece of work; its prompts differ from round to round so that nothing can be reused. */
export interface Task {
  kind: 'prefill' | 'decode' | 'batch';
  /** Seeds the prompts. */
  round: number;
}

export interface Measured {
  /** Tokens computed in the measured time. */
  tokens: number;
  elapsed_ms: number;
  /** User and system time of the process. */
  cpu_ms: number;
}

export interface WorkerSetup {
  contender: Contender;
  model_path: string;
  threads: number;
  /** ggml's name of it; absent: the CPU. */
  device?: string | undefined;
  /** Prompts are of tokens below it. */
  n_vocab: number;
}

export type Answer = { ready: true; weight_bytes: number } | { measured: Measured } | { error: string };

export const prefill_tokens = 512;
/** Tokens measured per decode round, behind a prompt of `decode_context_tokens`. */
export const decode_tokens = 8;
export const decode_context_tokens = 64;
export const batch_sequences = 16;
export const batch_steps = 4;
export const batch_context_tokens = 32;
/** KV tokens of either engine: libllama divides them evenly over the sequences. */
export const kv_tokens = batch_sequences * 640;
