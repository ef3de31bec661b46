import { loadGgml } from '../../native/ggml.ts';
import { probeNativeLibraries } from '../../native/probe.ts';
import type {
  Engine,
  EngineOptions,
  EngineStats,
  FinishReason,
  IterationPlan,
  KvExhausted,
  ModelInfo,
  SequenceOutput,
  SequenceProgress,
  SequenceRequest,
  StepReport,
} from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Backend } from '../backend/backend.ts';
import { cpuBackend } from '../backend/cpu/cpu-backend.ts';
import { finishPooled, poolRows } from './embedding.ts';
import { checkOptions } from './engine-options.ts';
import { batchTokens, planBatch } from './iteration-batch.ts';
import { KvBlockAllocator } from './kv-block-allocator.ts';
import { type KvSource, kv_block_tokens } from './kv-storage.ts';
import { logprobsOf } from './logprobs.ts';
import { type ModelFile, openModelFile } from './model-file.ts';
import type { ScratchSource } from './scratch.ts';
import { Sequence } from './sequence.ts';
import { type BatchSegment, Stage, type StageOptions, type StageResult } from './stage.ts';
import { type SwappedKv, swapInKv, swapOutKv } from './swapped-kv.ts';
import type { LoadedWeights } from './weights.ts';

/** What an engine is given instead of making it itself. */
export interface EngineResources {
  /** The model file of the options. */
  file?: ModelFile;
  /** Its weights, the engine's own from now on; absent: it loads them into memory of its own. */
  weights?: LoadedWeights;
  /** Absent: memory of its own, all of it taken at once. */
  kv?: KvSource;
  /** Absent: memory of its own. */
  scratch?: ScratchSource;
}

/**
 * The native engine: continuous batching over one stage that is a whole model. Each iteration computes one
 * row of every decoding sequence and fills the rest of its budget with chunks of prompts (Sarathi-Serve,
 * https://arxiv.org/abs/2403.02310); sequences come and go between iterations (Orca).
 */
export class NativeEngine implements Engine {
  readonly info: ModelInfo;
  readonly #options: EngineOptions;
  readonly #stage: Stage;
  readonly #blocks: KvBlockAllocator;
  readonly #waiting: Sequence[] = [];
  /** In the order of admission. */
  readonly #running: Sequence[] = [];
  /** Taken out of the running ones with what they had computed. */
  readonly #parked = new Map<number, { sequence: Sequence; kv: SwappedKv }>();
  readonly #cancelled: number[] = [];
  #admissions = 0;

  /**
   * @param backend absent: the CPU, with the libraries of this platform
   * @throws HpcserveError E_ENGINE_OPTIONS, E_ENGINE_MODEL, E_MODEL_*, E_NATIVE_*, E_POOL_*
   */
  constructor(
    options: EngineOptions,
    backend?: Backend,
    { weights, kv, scratch, ...parts }: EngineResources = {},
  ) {
    checkOptions(options);
    const file = parts.file ?? openModelFile(options.model_path);
    if (!backend) probeNativeLibraries();
    this.#options = options;
    const { threads, kv_tokens, kv_type, batch_invariant } = options;
    const stage: StageOptions = { threads, kv_tokens, kv_type, batch_invariant };
    if (options.kernels) stage.kernels = options.kernels;
    if (options.stage) stage.range = options.stage;
    if (options.on_progress) stage.on_progress = options.on_progress;
    if (weights) stage.weights = weights;
    if (kv) stage.kv = kv;
    if (scratch) stage.scratch = scratch;
    this.#stage = new Stage(backend ?? cpuBackend(loadGgml()), file, stage);
    if (!this.#stage.takesTokens || !this.#stage.givesLogits) {
      this.#stage.free();
      throw new HpcserveError('E_ENGINE_OPTIONS', {
        what: 'an engine of its own needs a whole model, and was given a part of its operators',
        try: 'use Stage for the parts of a pipeline',
      });
    }
    const { kv: cache } = this.#stage;
    this.#blocks = new KvBlockAllocator(
      cache.storage,
      Math.floor(options.kv_tokens / kv_block_tokens),
      (from, to, rows) => cache.copyRows(from, to, rows),
    );
    this.info = describe(file);
  }

  get busy(): boolean {
    return this.#running.length > 0 || this.#waiting.length > 0 || this.#cancelled.length > 0;
  }

  add(request: SequenceRequest): void {
    const { id, prompt_tokens, max_new_tokens } = request;
    const limit = Math.min(this.#options.context_tokens, this.#kvTokensMax);
    const refuse = (what: string, because: string[] = []): never => {
      throw new HpcserveError('E_ENGINE_SEQUENCE', { what, because });
    };
    if (this.#parked.has(id) || [...this.#waiting, ...this.#running].some((sequence) => sequence.id === id))
      refuse(`a sequence with the id ${id} is alive`);
    if (prompt_tokens.length === 0) refuse(`sequence ${id} has no tokens`);
    const needs = prompt_tokens.length + (request.sampler && max_new_tokens > 0 ? 1 : 0);
    if (needs > limit)
      refuse(`sequence ${id} needs ${needs} tokens and at most ${limit} fit`, [
        `context_tokens is ${this.#options.context_tokens}, and the KV cache holds ${this.#kvTokensMax}`,
      ]);
    const outside = prompt_tokens.find((token) => token < 0 || token >= this.info.n_vocab);
    if (outside !== undefined)
      refuse(`sequence ${id} has the token ${outside}`, [`the vocabulary has ${this.info.n_vocab} tokens`]);
    this.#waiting.push(new Sequence(request, limit));
  }

  cancel(id: number): void {
    if (this.#parked.delete(id)) this.#cancelled.push(id);
    for (const queue of [this.#waiting, this.#running]) {
      const index = queue.findIndex((sequence) => sequence.id === id);
      if (index < 0) continue;
      this.#releaseKv(queue[index]!);
      queue.splice(index, 1);
      this.#cancelled.push(id);
    }
  }

  step(
    plan: IterationPlan = { decode: true, prefill_tokens: this.#options.prefill_chunk_tokens },
  ): StepReport {
    const started_ms = performance.now();
    // Before anything else is done: a step that cannot be made leaves no trace.
    const kv_exhausted = plan.decode ? this.#reserve() : undefined;
    if (kv_exhausted)
      return {
        outputs: [],
        prefill_tokens: 0,
        decode_tokens: 0,
        elapsed_us: elapsed_us(started_ms),
        kv_exhausted,
      };
    const outputs: SequenceOutput[] = this.#cancelled
      .splice(0)
      .map((id) => ({ id, finish: 'cancelled' as const }));
    outputs.push(...this.#admit(plan.first));
    const batch = planBatch(this.#running, plan, this.#options.prefill_chunk_tokens);
    let prefill_tokens = 0;
    let decode_tokens = 0;
    if (batch.length > 0) {
      const result = this.#stage.run({
        segments: batch.map(({ segment }) => segment),
        tokens: batchTokens(batch),
      });
      for (const [index, { sequence, segment }] of batch.entries()) {
        if (sequence.n_generated > 0 && segment.rows === 1) decode_tokens++;
        else prefill_tokens += segment.rows;
        const output = this.#take(sequence, segment, result, result.first_row[index]!);
        if (output) outputs.push(output);
      }
    }
    return { outputs, prefill_tokens, decode_tokens, elapsed_us: elapsed_us(started_ms) };
  }

  progress(): SequenceProgress[] {
    return [...this.#running, ...this.#waiting].map((sequence) => ({
      id: sequence.id,
      waiting: sequence.kv === undefined,
      tokens: sequence.tokens.length,
      generated_tokens: sequence.n_generated,
      pending_tokens: sequence.pending,
    }));
  }

  stats(): EngineStats {
    return {
      running: this.#running.length,
      waiting: this.#waiting.length,
      kv_tokens_total: this.#kvTokensMax,
      kv_tokens_used: this.#blocks.used_blocks * kv_block_tokens,
      weight_bytes: this.#stage.weight_bytes,
      layouts: this.#stage.layouts,
      kv_bytes: this.#kvTokensMax * this.#stage.kv.token_bytes,
      compute_bytes: this.#stage.compute_bytes,
    };
  }

  /** Throws where the KV blocks and the live sequences disagree. */
  verify(): void {
    this.#blocks.verify();
  }

  close(): void {
    for (const sequence of this.#running) this.#releaseKv(sequence);
    this.#running.length = 0;
    this.#waiting.length = 0;
    this.#parked.clear();
    this.#stage.free();
  }

  get kv_bytes_used(): number {
    return this.#blocks.used_bytes;
  }

  get kv_bytes_cached(): number {
    return this.#blocks.cached_bytes;
  }

  get kv_bytes_budget(): number {
    return this.#blocks.budget_bytes;
  }

  setKvBudget(bytes: number): number {
    return this.#blocks.setBudget(bytes);
  }

  kvBytesOf(id: number): number {
    const sequence = this.#running.find((candidate) => candidate.id === id);
    return sequence?.kv ? this.#blocks.bytesOf(sequence.kv) : 0;
  }

  parkSequence(id: number): number | undefined {
    const sequence = this.#running.find((candidate) => candidate.id === id);
    if (!sequence?.kv) return undefined;
    const kv = swapOutKv(this.#stage.kv, sequence.kv.blocks, sequence.n_computed);
    this.#releaseKv(sequence);
    this.#running.splice(this.#running.indexOf(sequence), 1);
    this.#parked.set(id, { sequence, kv });
    return kv.rows.length;
  }

  restoreSequence(id: number): boolean {
    const parked = this.#parked.get(id);
    if (!parked || this.#running.length >= this.#options.max_sequences) return false;
    const { sequence, kv } = parked;
    const list = this.#blocks.open(blocksFor(sequence.tokens_max), sequence.request.cache_scope);
    if (!this.#blocks.grow(list, blocksFor(sequence.tokens.length))) {
      this.#blocks.release(list);
      return false;
    }
    this.#parked.delete(id);
    sequence.kv = list;
    this.#running.push(sequence);
    try {
      swapInKv(this.#stage.kv, list.blocks, kv);
    } catch (error) {
      // It is computed again from its tokens.
      this.#preempt(sequence);
      if (!(error instanceof HpcserveError)) throw error;
    }
    return true;
  }

  recomputeSequence(id: number): void {
    const parked = this.#parked.get(id);
    const running = this.#running.find((candidate) => candidate.id === id);
    if (running) this.#preempt(running);
    else if (parked) {
      this.#parked.delete(id);
      this.#again(parked.sequence);
    }
  }

  /** Of the largest budget, whatever it is now. */
  get #kvTokensMax(): number {
    return Math.floor(this.#options.kv_tokens / kv_block_tokens) * kv_block_tokens;
  }

  /** The KV rows of the stage and the blocks of a live sequence: for transfers, and for tests that damage them. */
  kvOf(id: number): { stage: Stage; blocks: readonly number[]; tokens: number } | undefined {
    const sequence = this.#running.find((candidate) => candidate.id === id);
    if (!sequence?.kv) return undefined;
    return { stage: this.#stage, blocks: sequence.kv.blocks, tokens: sequence.n_computed };
  }

  /**
   * Moves waiting sequences to the running ones while slots and blocks for all their tokens are free.
   * @returns those that can never have as many blocks as they need
   */
  #admit(first: number | undefined): SequenceOutput[] {
    const refused: SequenceOutput[] = [];
    const at = this.#waiting.findIndex(({ id }) => id === first);
    if (at > 0) this.#waiting.unshift(...this.#waiting.splice(at, 1));
    while (this.#waiting.length > 0 && this.#running.length < this.#options.max_sequences) {
      const sequence = this.#waiting[0]!;
      let list = this.#blocks.open(blocksFor(sequence.tokens_max), sequence.request.cache_scope);
      // A prompt whose log probabilities or hidden rows are asked for is computed whole.
      let shared = sequence.needsAllRows ? 0 : this.#blocks.share(list, sequence.tokens.all());
      if (!this.#blocks.grow(list, blocksFor(sequence.tokens.length), this.#running.length === 0)) {
        this.#blocks.release(list);
        // Others may still give memory up: it waits. Where even all of theirs were not enough, it would wait for ever.
        if (this.#running.length > 0) break;
        if (!this.#blocks.couldHold(blocksFor(sequence.tokens.length))) {
          this.#waiting.shift();
          refused.push({
            id: sequence.id,
            finish: 'error',
            error: tooLarge(sequence),
            short_of_memory: true,
          });
          continue;
        }
        // Prompts that are kept for later may stand in its way by where they lie, the one that it shares among them.
        this.#blocks.forgetIdle();
        list = this.#blocks.open(blocksFor(sequence.tokens_max), sequence.request.cache_scope);
        shared = 0;
        if (!this.#blocks.grow(list, blocksFor(sequence.tokens.length), true)) {
          this.#blocks.release(list);
          break;
        }
      }
      this.#waiting.shift();
      sequence.kv = list;
      sequence.n_computed = shared + this.#blocks.copyBeginning(list);
      sequence.cached_tokens ??= sequence.n_computed;
      sequence.admitted = this.#admissions++;
      this.#running.push(sequence);
    }
    return refused;
  }

  /**
   * A block for the next token of every sequence that decodes. The oldest may exceed the budget, so that something
   * always ends. Sequences keep the blocks that they were given before one found none: each needs its own in any case.
   */
  #reserve(): KvExhausted | undefined {
    const running = this.#running;
    if (running.length === 0) return undefined;
    const [oldest, youngest] = byAge(running);
    for (const sequence of running) {
      if (!sequence.decodes) continue;
      const blocks = blocksFor(sequence.tokens.length);
      if (this.#blocks.grow(sequence.kv!, blocks, sequence === oldest)) continue;
      return {
        id: sequence.id,
        bytes: this.#blocks.missing_bytes(sequence.kv!, blocks),
        youngest: youngest.id,
      };
    }
    return undefined;
  }

  #preempt(sequence: Sequence): void {
    this.#releaseKv(sequence);
    this.#running.splice(this.#running.indexOf(sequence), 1);
    this.#again(sequence);
  }

  #again(sequence: Sequence): void {
    sequence.n_computed = 0;
    sequence.pooled = undefined;
    sequence.prompt_logprobs.length = 0;
    this.#waiting.unshift(sequence);
  }

  #releaseKv(sequence: Sequence): void {
    if (sequence.kv) this.#blocks.release(sequence.kv);
    sequence.kv = undefined;
  }

  /** What the iteration gave for one sequence: a token, an embedding, or nothing to tell yet. */
  #take(
    sequence: Sequence,
    segment: BatchSegment,
    result: StageResult,
    firstRow: number,
  ): SequenceOutput | undefined {
    const { n_vocab, n_embd } = this.info;
    const begin = sequence.n_computed;
    sequence.n_computed += segment.rows;
    this.#blocks.remember(sequence.kv!, sequence.tokens.all(), sequence.n_computed);
    const output: SequenceOutput = { id: sequence.id };
    if (!sequence.reported) output.cached_tokens = sequence.cached_tokens ?? 0;
    sequence.reported = true;
    const row = (index: number) => result.logits.subarray(index * n_vocab, (index + 1) * n_vocab);
    if (sequence.isEmbedding) {
      const rows = result.hidden.subarray(firstRow * n_embd, (firstRow + segment.rows) * n_embd);
      sequence.pooled = poolRows(sequence.pooled, rows, n_embd, begin, this.#stage.model.pooling);
    } else if (segment.output === 'all')
      this.#takePromptLogprobs(sequence, begin, segment.rows, firstRow, row);
    if (sequence.pending > 0) return output.cached_tokens === undefined ? undefined : output;
    if (sequence.isEmbedding) {
      output.embedding = finishPooled(sequence.pooled!, sequence.n_prompt, this.#stage.model.pooling);
      return this.#finish(sequence, output, 'stop');
    }
    if (sequence.prompt_logprobs.length > 0 && sequence.n_generated === 0)
      output.prompt_logprobs = [...sequence.prompt_logprobs];
    if (sequence.tokens.length >= sequence.tokens_max) return this.#finish(sequence, output, 'length');
    const last = row(segment.output === 'all' ? firstRow + segment.rows - 1 : firstRow);
    return this.#sample(sequence, last, output);
  }

  #sample(sequence: Sequence, logits: Float32Array, output: SequenceOutput): SequenceOutput {
    try {
      output.token = sequence.request.sampler!.sample(logits, sequence.tokens.length);
    } catch (error) {
      // A sampler belongs to one request: what it throws ends that request and no other.
      output.error = error instanceof Error ? error.message : String(error);
      return this.#finish(sequence, output, 'error');
    }
    sequence.tokens.push(output.token.token);
    if (sequence.request.stop_tokens.has(output.token.token)) return this.#finish(sequence, output, 'stop');
    if (sequence.tokens.length >= sequence.tokens_max) return this.#finish(sequence, output, 'length');
    return output;
  }

  #takePromptLogprobs(
    sequence: Sequence,
    begin: number,
    rows: number,
    firstRow: number,
    row: (index: number) => Float32Array,
  ): void {
    const alternatives = sequence.request.prompt_logprobs!;
    for (let offset = 0; offset < rows; offset++) {
      const position = begin + offset + 1;
      if (position >= sequence.n_prompt) break;
      const token = sequence.tokens.at(position);
      sequence.prompt_logprobs.push(logprobsOf(row(firstRow + offset), token, alternatives));
    }
  }

  #finish(sequence: Sequence, output: SequenceOutput, reason: FinishReason): SequenceOutput {
    this.#releaseKv(sequence);
    this.#running.splice(this.#running.indexOf(sequence), 1);
    output.finish = reason;
    return output;
  }
}

function tooLarge({ tokens }: Sequence): string {
  return `the memory pool has no room for the KV of ${tokens.length} tokens: models in use hold the rest of it`;
}

/** The one that was begun first, and the one that was begun last. */
function byAge(running: readonly Sequence[]): [oldest: Sequence, youngest: Sequence] {
  let oldest = running[0]!;
  let youngest = oldest;
  for (const sequence of running) {
    if (sequence.admitted < oldest.admitted) oldest = sequence;
    if (sequence.admitted > youngest.admitted) youngest = sequence;
  }
  return [oldest, youngest];
}

function elapsed_us(started_ms: number): number {
  return Math.round((performance.now() - started_ms) * 1000);
}

function blocksFor(tokens: number): number {
  return Math.ceil(tokens / kv_block_tokens);
}

function describe({ gguf, model, n_params, file_type }: ModelFile): ModelInfo {
  return {
    architecture: model.architecture,
    name: model.name,
    n_params,
    n_vocab: model.n_vocab,
    n_layer: model.n_layer,
    n_embd: model.n_embd,
    n_head: model.n_head,
    n_head_kv: model.n_head_kv,
    n_ctx_train: model.n_ctx_train,
    file_type,
    file_bytes: gguf.file_bytes,
  };
}
