/**
 * What a device worker asks of the native engine. The engine computes; it knows nothing of HTTP, of
 * OpenAI or of text: tokens in, tokens out, one iteration at a time, synchronously.
 */
import type { HyperParameters } from './hyper-parameters.ts';
import type { StreamedWeights } from './streamed-weights.ts';

/** Weight and KV storage types the native engine computes with, by their GGUF names. */
export const nativeTensorTypes = ['F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_K', 'Q6_K'] as const;

export type KvType = 'f16' | 'q8_0' | 'f32';

/**
 * Whose matrix products an engine on CPUs computes with: the faster ones, as they were measured there; ours wherever
 * there is one for a weight; ggml's alone.
 */
export const kernelChoices = ['auto', 'own', 'ggml'] as const;
export type KernelsOption = (typeof kernelChoices)[number];

export interface EngineOptions {
  /** Absolute path of a GGUF file. */
  model_path: string;
  /** Compute threads; the sum over all workers of a node never exceeds its cores. */
  threads: number;
  /** Longest sequence (prompt + answer) that is accepted, in tokens. */
  context_tokens: number;
  /** Sequences that may decode in one iteration. */
  max_sequences: number;
  /** Most prompt tokens computed in one iteration (chunked prefill). Lower: smoother decode; higher: faster prefill. */
  prefill_chunk_tokens: number;
  /** KV cache size over all sequences, in tokens. */
  kv_tokens: number;
  kv_type: KvType;
  /**
   * Fixed kernel shapes: answers are bit-identical alone, in any batch, and after a re-prefill. Absent: where it costs
   * next to nothing, as `EngineStats` says then.
   */
  batch_invariant?: boolean | undefined;
  /** Absent: `auto`. */
  kernels?: KernelsOption;
  /** First and one-past-last operator of this stage; absent: the whole model. See `agent/engine/operators.ts`. */
  stage?: { begin: number; end: number };
  /** Called while weights load. */
  on_progress?: (progress: LoadProgress) => void;
}

/** Parts of the way that bytes of a load go. */
export const loadLegs = ['disk', 'cache', 'peer', 'convert', 'upload'] as const;

/**
 * What the threads of a load did together on one part of the way. `disk`: what the filesystem brought; `cache`: copies
 * out of the node's page cache; `peer`: what came from other workers' memory, and was what it was asked for as;
 * `convert`: into the layout of a kernel; `upload`: from the host to the device.
 */
export interface LoadLeg {
  leg: (typeof loadLegs)[number];
  bytes: number;
  /**
   * Of all threads together, so that rates do not depend on how many there were: what they gave to it and waited for
   * it. What the kernel or the device did while a thread did something else is not in it.
   */
  thread_ms: number;
}

export interface LoadProgress {
  bytes_loaded: number;
  bytes_total: number;
  elapsed_ms: number;
  /** Those that bytes have gone so far; absent: not measured. */
  legs?: readonly LoadLeg[];
}

/** How a token is chosen where nothing but its logits decides: plain data, so that it travels to where they are. */
export interface StatelessSampling {
  /** 0: greedy. */
  temperature: number;
  /** 0 keeps all. */
  top_k: number;
  top_p: number;
  min_p: number;
  typical_p: number;
  seed: number;
  /** Which of several answers it is; another stream of random numbers each. */
  choice: number;
  /** Alternatives to report; absent: no log probabilities. */
  logprobs?: number;
}

/** Chooses the next token of one sequence. Implementations keep their own state (penalties, grammar). */
export interface Sampler {
  /** Present where state has no part in its next choice: it may be made elsewhere, and is told by `take`. */
  readonly stateless?: StatelessSampling | undefined;
  /** A token was chosen elsewhere as `stateless` says. */
  take?(token: number): void;
  /**
   * @param logits raw logits of shape [n_vocab]; the sampler may overwrite them.
   * @param position index of the token to be chosen, counted from the start of the sequence (prompt included):
   *   randomness is a function of (seed, position), so that a continued stream draws the same.
   */
  sample(logits: Float32Array, position: number): SampledToken;
}

export interface SampledToken {
  token: number;
  /** Natural-log probability under the model's unmodified softmax; only where logprobs were asked for. */
  logprob?: number;
  /** Most probable alternatives, best first. */
  top?: { token: number; logprob: number }[];
}

export interface SequenceRequest {
  /** Chosen by the caller, unique among live sequences. */
  id: number;
  /** Shape [n], n ≥ 1. */
  prompt_tokens: Int32Array;
  /** Absent: an embedding request; the answer is the pooled hidden state. */
  sampler?: Sampler;
  /** Tokens to generate at most, ≥ 0 (0: prefill only, useful with `prompt_logprobs`). */
  max_new_tokens: number;
  /** Tokens that end the sequence (end-of-generation); the stopping token is reported and marked. */
  stop_tokens: ReadonlySet<number>;
  /**
   * Whose prompts it may begin with, of those that are remembered: of the same scope. Absent: of those that have none.
   */
  cache_scope?: string;
  /** Log probabilities of the prompt's tokens (echo with logprobs): number of alternatives each, absent for none. */
  prompt_logprobs?: number;
}

export type FinishReason = 'stop' | 'length' | 'cancelled' | 'error';

/** What an iteration is to compute. */
export interface IterationPlan {
  /** A token of every sequence that decodes. */
  decode: boolean;
  /** Prompt tokens at most; 0 for none, and never more than `prefill_chunk_tokens`. */
  prefill_tokens: number;
  /** The sequence whose prompt comes first; the others follow in the order in which they came. */
  first?: number;
  /** All of it as one batch, and its outputs at once, also where several could be on their way: what is measured so. */
  whole?: true;
}

/** How far a live sequence is. */
export interface SequenceProgress {
  id: number;
  /** It has no place yet: no slot, or no KV for its tokens. */
  waiting: boolean;
  /** Prompt and answer so far. */
  tokens: number;
  generated_tokens: number;
  /** Tokens without keys and values; 1 while it decodes. */
  pending_tokens: number;
}

/** What one iteration produced for one sequence. */
export interface SequenceOutput {
  id: number;
  /** Absent in an iteration that only prefilled a chunk. */
  token?: SampledToken;
  finish?: FinishReason;
  error?: string;
  /** It ended for want of KV memory, which others hold: where they give it up, or elsewhere, it could be computed. */
  short_of_memory?: true;
  /** Of an embedding request: shape [n_embd], L2-normalised. */
  embedding?: Float32Array;
  /** Once, where they were asked for: one entry a prompt token but the first, which nothing predicts. */
  prompt_logprobs?: SampledToken[];
  /** Prompt tokens whose KV came from the prefix cache instead of being computed. */
  cached_tokens?: number;
}

/** Where the keys and values of a sequence wait that gave way. */
export type SwapPlace = 'memory' | 'disk';

/** A sequence that decodes finds no memory for the KV of its next token. */
export interface KvExhausted {
  id: number;
  /** What it needs, in whole blocks. */
  bytes: number;
  /** Of the running sequences, the one that was begun last: whoever knows nobody better has it give way. */
  youngest: number;
}

export interface StepReport {
  outputs: SequenceOutput[];
  prefill_tokens: number;
  decode_tokens: number;
  elapsed_us: number;
  /** Present: other batches were on their way meanwhile, so that its time is not that of its tokens. */
  overlapped?: true;
  /**
   * Present: nothing was computed, told or begun, and every sequence is as it was. The step is made again once there is
   * room.
   */
  kv_exhausted?: KvExhausted;
}

export interface EngineStats {
  running: number;
  waiting: number;
  /** That run at once, at most: fewer than were asked for where batches go to other devices, and hold no more. */
  max_sequences: number;
  kv_tokens_total: number;
  kv_tokens_used: number;
  weight_bytes: number;
  /** The weights lie in host memory, and computing waited so long for them in all; absent: they lie on the device. */
  streamed?: (StreamedWeights & { waited_ms: number }) | undefined;
  /** Bytes of the weights by ggml's name of their layout, which says whose kernels multiply (`PACKED_*`: ours). */
  layouts: Readonly<Record<string, number>>;
  /** Whether answers are bit-identical in any batch. */
  batch_invariant: boolean;
  /** Of `kv_tokens_total`, whether it is taken now or not. */
  kv_bytes: number;
  compute_bytes: number;
  /**
   * Of the memory that models share, what it has now beside weights and KV, and nobody else can have: results of
   * graphs, rows that only pad.
   */
  working_bytes: number;
  /** Of a pipeline: what batches take at each of its stages. */
  stages?: readonly StageTime[] | undefined;
}

/** Operators [begin, end) that one device computes, and what a batch takes there. */
export interface StageTime {
  begin: number;
  end: number;
  /** Mean over the last batches; 0 before the first. */
  computed_us: number;
  /** Of some batches what each operator took, on average; absent until it was measured. */
  operators_us?: readonly number[] | undefined;
  /**
   * Batches that lie before the stage while it computes others, on average over the last ones; agents of earlier
   * versions do not say.
   */
  waiting?: number | undefined;
  /** Its weights, and room for keys and values; agents of earlier versions do not say. */
  memory_bytes?: number | undefined;
}

export interface ModelInfo
  extends Pick<
    HyperParameters,
    'architecture' | 'name' | 'n_vocab' | 'n_layer' | 'n_embd' | 'n_head' | 'n_head_kv' | 'n_ctx_train'
  > {
  n_params: number;
  /** The storage type that most of the weights have. */
  file_type: string;
  file_bytes: number;
}

/** One model (or a stage of it) on one device. All calls are synchronous and made from one thread. */
export interface Engine {
  readonly info: ModelInfo;
  /** Throws HpcserveError E_ENGINE_SEQUENCE where the sequence can never fit. */
  add(request: SequenceRequest): void;
  /** Frees the sequence's KV before it returns; unknown ids are ignored (it may have just finished). */
  cancel(id: number): void;
  /**
   * One iteration. Where memory for KV is exhausted it says so and computes nothing: who calls makes room, by a larger
   * budget, by memory of other engines, or by a sequence that gives way (`parkSequence`, `recomputeSequence`).
   * @param plan absent: every running decode plus at most one budget of prefill chunks
   */
  step(plan?: IterationPlan): StepReport;
  /** Live sequences: those that run, then those that wait, each in the order in which they came. */
  progress(): SequenceProgress[];
  /** True while a step would do work. */
  readonly busy: boolean;
  stats(): EngineStats;
  /** Memory behind the KV cache: what live sequences use, in the units in which it is taken. */
  readonly kv_bytes_used: number;
  /** What no sequence uses and is only kept for prompts that begin alike: given up when memory is short. */
  readonly kv_bytes_cached: number;
  /** What the KV cache may take at most. */
  readonly kv_bytes_budget: number;
  /**
   * Changes what the KV cache may take. Live sequences keep what they use: the budget in force is at least that.
   * @returns the budget in force, in whole units
   */
  setKvBudget(bytes: number): number;
  /** KV of a sequence in bytes, shared blocks included; 0 while it waits or where it is not alive. */
  kvBytesOf(id: number): number;
  /** Whether the KV of a sequence may wait on a disk of this node now. */
  readonly parks_on_disk: boolean;
  /**
   * Copies the KV of a running sequence to host memory or to the disk, and gives its blocks to others. It stays alive,
   * and does nothing until it is restored.
   * @param place default: host memory
   * @returns bytes that it takes there; undefined where it has no KV, or the disk does not take it: it runs on
   */
  parkSequence(id: number, place?: SwapPlace): number | undefined;
  /**
   * Puts a parked sequence back where it was. Bytes that have changed meanwhile are noticed: it is computed again.
   * @returns false where there are no blocks or no slot for it now: it stays parked
   */
  restoreSequence(id: number): boolean;
  /**
   * Gives the KV of a sequence up, parked or not: it waits in front of the others, and is computed again from its
   * tokens.
   */
  recomputeSequence(id: number): void;
  /** Throws where what it computes with, on other devices, is lost: asked while it has nothing to do. */
  check?(): void;
  /** Throws where its books contradict one another: run when idle. */
  verify(): void;
  close(): void;
}
