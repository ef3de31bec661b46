import { probeNativeLibraries } from '../../native/probe.ts';
import type {
  Engine,
  EngineOptions,
  EngineStats,
  FinishReason,
  IterationPlan,
  ModelInfo,
  SequenceOutput,
  SequenceProgress,
  SequenceRequest,
  StepReport,
  SwapPlace,
} from '../../spec/engine-contract.ts';
import type { Backend } from '../backend/backend.ts';
import { ArrivingKv } from './arriving-kv.ts';
import { type BatchBounds, batchBounds } from './batch-bounds.ts';
import { type BatchExecutor, type StageSummary, stageTimeOf } from './batch-executor.ts';
import { type ChangingSequences, truncate, unsubmit, widenRows } from './changing-sequences.ts';
import { DetachedSequence, type HeldKv } from './detached-sequence.ts';
import { finishPooled, poolRows } from './embedding.ts';
import { checkOptions } from './engine-options.ts';
import type { EngineResources } from './engine-resources.ts';
import { type PlannedSequence, planBatch } from './iteration-batch.ts';
import { type BlockList, KvBlockAllocator } from './kv-block-allocator.ts';
import type { KvMemory } from './kv-memory.ts';
import { kv_block_tokens } from './kv-storage.ts';
import { openModelFile } from './model-file.ts';
import { modelInfo } from './model-info.ts';
import { takeNextBlocks } from './next-blocks.ts';
import { isShortOfResults, longestOf, withoutResults } from './result-memory.ts';
import { sampleToken } from './sample-token.ts';
import type { SegmentOutput } from './segment-output.ts';
import type { Sequence } from './sequence.ts';
import { acceptSequence, blocksFor, elapsed_us, progressOf, tooBig } from './sequence-queue.ts';
import type { Stage } from './stage.ts';
import { WholeModel, wholeStage } from './whole-model.ts';

type BatchCounts = Pick<StepReport, 'prefill_tokens' | 'decode_tokens'>;

/**
 * The native engine: continuous batching over one stage that is a whole model, or over a pipeline of stages. Each
 * iteration computes one row of every decoding sequence and fills the rest of its budget with chunks of prompts
 * (Sarathi-Serve, https://arxiv.org/abs/2403.02310); sequences come and go between iterations (Orca).
 *
 * Over a pipeline the sequences that decode are divided into as many batches as may be on their way at once, so that
 * every stage has one: a step submits a batch and waits for the oldest where there is no place for another.
 */
export class NativeEngine implements Engine, ChangingSequences {
  readonly info: ModelInfo;
  readonly #options: EngineOptions;
  readonly #executor: BatchExecutor;
  readonly #bounds: BatchBounds;
  readonly #blocks: KvBlockAllocator;
  readonly #waiting: Sequence[] = [];
  /** In the order of admission. */
  readonly #running: Sequence[] = [];
  /** Taken out of the running ones with what they had computed: so many tokens. */
  readonly #parked = new Map<number, Sequence>();
  /** Of the parked ones, those whose keys and values are lost. */
  readonly #unswapped = new Set<number>();
  readonly #cancelled: number[] = [];
  /** Batches on their way, the oldest first. */
  readonly #submitted: PlannedSequence[][] = [];
  /** What came of batches outside of a step: told by the next one. */
  readonly #untold: SequenceOutput[] = [];
  /** Thrown outside of a step: the next one throws it. */
  #broken: unknown;
  #admissions = 0;
  prompts_wait = false;

  /**
   * @param backend absent: the CPU, with the libraries of this platform
   * @throws HpcserveError E_ENGINE_OPTIONS, E_ENGINE_MODEL, E_MODEL_*, E_NATIVE_*, E_POOL_*
   */
  constructor(
    options: EngineOptions,
    backend?: Backend,
    { weights, kv, scratch, disk, ...parts }: EngineResources = {},
  ) {
    checkOptions(options);
    const file = parts.file ?? openModelFile(options.model_path);
    if (!backend) probeNativeLibraries();
    this.#options = options;
    const { executor } = parts;
    this.#executor =
      executor ?? new WholeModel(wholeStage(options, backend, file, { weights, kv, scratch }), disk);
    this.#bounds = batchBounds(options, file.model, this.#executor.batch_floats_max);
    this.#blocks = new KvBlockAllocator(
      this.#executor.storage,
      Math.floor(Math.min(options.kv_tokens, this.#executor.kv_tokens_max) / kv_block_tokens),
      (from, to, rows) => this.#executor.copyRows(from, to, rows),
    );
    this.info = modelInfo(file);
  }

  get busy(): boolean {
    const told = this.#untold.length + this.#submitted.length === 0 && this.#broken === undefined;
    return !told || this.#running.length > 0 || this.#waiting.length > 0 || this.#cancelled.length > 0;
  }

  add(request: SequenceRequest): void {
    this.#waiting.push(this.#accept(request));
  }

  /** @throws HpcserveError E_ENGINE_SEQUENCE */
  #accept(request: SequenceRequest): Sequence {
    const { id } = request;
    const bounds = {
      context_tokens: this.#options.context_tokens,
      kv_tokens_max: this.#kvTokensMax,
      n_vocab: this.info.n_vocab,
    };
    const isAlive =
      this.#parked.has(id) || [...this.#waiting, ...this.#running].some((sequence) => sequence.id === id);
    return acceptSequence(request, bounds, isAlive);
  }

  cancel(id: number): void {
    if (this.#parked.delete(id)) {
      this.#unswapped.delete(id);
      this.#executor.forgetSwapped(id);
      this.#cancelled.push(id);
    }
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
    if (this.#broken !== undefined) throw this.#broken;
    // Before anything else is done: a step that cannot be made leaves no trace.
    const kv_exhausted = takeNextBlocks(this.#running, this.#blocks, plan.decode);
    const nothing = { outputs: [], prefill_tokens: 0, decode_tokens: 0 };
    if (kv_exhausted) return { ...nothing, elapsed_us: elapsed_us(started_ms), kv_exhausted };
    const outputs: SequenceOutput[] = this.#cancelled
      .splice(0)
      .map((id) => ({ id, finish: 'cancelled' as const }));
    outputs.push(...this.#untold.splice(0), ...this.#admit(plan.first));
    const overlapped = this.#submitted.length > 0;
    const counted = this.#submitWhatFits(plan, outputs);
    if (plan.whole) while (this.#submitted.length > 0) this.#collect(outputs);
    else if (this.#mustCollect(plan)) this.#collect(outputs);
    const report: StepReport = { outputs, ...counted, elapsed_us: elapsed_us(started_ms) };
    if (overlapped || this.#submitted.length > 0) report.overlapped = true;
    return report;
  }

  progress(): SequenceProgress[] {
    return [...this.#running, ...this.#waiting].map(progressOf);
  }

  stats(): EngineStats {
    return {
      running: this.#running.length,
      waiting: this.#waiting.length,
      max_sequences: this.#bounds.max_sequences,
      kv_tokens_total: this.#kvTokensMax,
      kv_tokens_used: this.#blocks.used_blocks * kv_block_tokens,
      weight_bytes: this.#whole.weight_bytes,
      streamed: this.#executor.streamed,
      layouts: this.#whole.layouts,
      batch_invariant: this.#whole.batch_invariant,
      kv_bytes: this.#kvTokensMax * this.#whole.kv.token_bytes,
      compute_bytes: this.#whole.compute_bytes,
      working_bytes: this.#executor.working_bytes ?? this.#whole.working_bytes,
      stages: this.#executor.stages?.map(stageTimeOf),
    };
  }

  check(): void {
    if (this.#submitted.length === 0) this.#executor.check?.();
  }

  /** Throws where the KV blocks and the live sequences disagree. */
  verify(): void {
    this.#blocks.verify();
  }

  close(): void {
    for (const sequence of this.#running.splice(0)) this.#releaseKv(sequence);
    this.#waiting.length = 0;
    this.#parked.clear();
    this.#executor.free();
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
    const { kv } = this.#running.find((candidate) => candidate.id === id) ?? {};
    return kv ? this.#blocks.bytesOf(kv) : 0;
  }

  get parks_on_disk(): boolean {
    return this.#executor.hasDisk ?? false;
  }

  parkSequence(id: number, place: SwapPlace = 'memory'): number | undefined {
    this.#settle();
    const sequence = this.#running.find((candidate) => candidate.id === id);
    if (!sequence?.kv) return undefined;
    const bytes = this.#executor.swapOut(id, sequence.kv.blocks, sequence.n_computed, place);
    if (bytes === undefined) return undefined;
    this.#releaseKv(sequence);
    this.#running.splice(this.#running.indexOf(sequence), 1);
    this.#parked.set(id, sequence);
    return bytes;
  }

  restoreSequence(id: number): boolean {
    const sequence = this.#parked.get(id);
    if (!sequence || this.#running.length >= this.#bounds.max_sequences) return false;
    if (this.#unswapped.delete(id)) {
      this.#parked.delete(id);
      this.#again(sequence);
      return true;
    }
    const list = this.#blocks.open(blocksFor(sequence.tokens_max), sequence.request.cache_scope);
    if (!this.#blocks.grow(list, blocksFor(sequence.tokens.length))) {
      this.#blocks.release(list);
      return false;
    }
    this.#parked.delete(id);
    sequence.kv = list;
    this.#running.push(sequence);
    // It is computed again from its tokens.
    if (this.#executor.swapIn(id, list.blocks)) this.#preempt(sequence);
    return true;
  }

  recomputeSequence(id: number): void {
    const parked = this.#parked.get(id);
    if (parked) {
      this.#parked.delete(id);
      this.#unswapped.delete(id);
      this.#executor.forgetSwapped(id);
      this.#again(parked);
      return;
    }
    this.#settle();
    const running = this.#running.find((candidate) => candidate.id === id);
    if (running) this.#preempt(running);
  }

  /**
   * Takes a running sequence out of the engine, with its KV where it is: nothing is computed for it, and its blocks
   * are nobody else's, until it is attached again or discarded.
   */
  detachSequence(id: number): DetachedSequence | undefined {
    this.#settle();
    const sequence = this.#running.find((candidate) => candidate.id === id);
    if (!sequence?.kv) return undefined;
    this.#running.splice(this.#running.indexOf(sequence), 1);
    return this.#detached(sequence, sequence.kv);
  }

  /**
   * The KV of a running sequence as it is now, for copies while it goes on: rows of computed tokens do not change. The
   * blocks stay what they are until `release`, even if the sequence ends.
   */
  holdKv(id: number): HeldKv | undefined {
    this.#settle();
    const sequence = this.#running.find((candidate) => candidate.id === id);
    if (!sequence?.kv) return undefined;
    const list = this.#blocks.hold(sequence.kv);
    const release = (): void => this.#blocks.release(list);
    const all = sequence.tokens.all();
    return { kv: this.kv, blocks: list.blocks, tokens: sequence.n_computed, all, release };
  }

  /**
   * A sequence that was begun elsewhere, with blocks for its KV, which is to be written there before it is attached.
   * @param generated tokens that it has beyond its prompt
   * @returns undefined where there are no blocks or no slot for it now
   * @throws HpcserveError E_ENGINE_SEQUENCE
   */
  reserveSequence(request: SequenceRequest, generated: readonly number[]): DetachedSequence | undefined {
    const sequence = this.#accept(request);
    for (const token of generated) sequence.tokens.push(token);
    if (this.#running.length >= this.#bounds.max_sequences) return undefined;
    const list = this.#blocks.open(blocksFor(sequence.tokens_max), request.cache_scope);
    if (this.#blocks.grow(list, blocksFor(sequence.tokens.length))) return this.#detached(sequence, list);
    this.#blocks.release(list);
    return undefined;
  }

  /**
   * A detached sequence goes on here.
   * @param computed tokens whose KV is in its blocks; 0: it waits in front of the others, and is computed again
   * @returns false where there is no slot for it now: it stays detached
   */
  attachSequence({ sequence, blocks: list }: DetachedSequence, computed: number): boolean {
    if (computed > 0 && this.#running.length >= this.#bounds.max_sequences) return false;
    sequence.kv = list;
    // Who asked for it was told elsewhere what came from the cache.
    sequence.reported = true;
    if (computed === 0) {
      this.#releaseKv(sequence);
      this.#again(sequence);
      return true;
    }
    sequence.n_computed = computed;
    sequence.admitted = this.#admissions++;
    this.#running.push(sequence);
    return true;
  }

  /** Blocks for a sequence that is computed elsewhere. @param scope see `SequenceRequest.cache_scope` */
  openArrival(scope: string | undefined): ArrivingKv {
    return new ArrivingKv(this.kv, this.#blocks, scope);
  }

  /** A detached sequence does not go on here: it has gone on elsewhere, or ends. */
  discardSequence({ blocks }: DetachedSequence): void {
    this.#blocks.release(blocks);
  }

  #detached(sequence: Sequence, list: BlockList): DetachedSequence {
    sequence.kv = undefined;
    return new DetachedSequence(sequence, list, this.kv);
  }

  get with_kv(): number {
    return this.#running.length;
  }

  get decodes(): boolean {
    return this.#running.some((sequence) => sequence.decodes);
  }

  filledBlocks(): Map<number, number> {
    const filled = this.#blocks.rememberedRows();
    for (const { kv, n_computed } of this.#running) widenRows(filled, kv!.blocks, n_computed);
    return filled;
  }

  settle(): boolean {
    this.#settle();
    for (const id of this.#parked.keys()) {
      this.#executor.forgetSwapped(id);
      this.#unswapped.add(id);
    }
    if (this.#broken === undefined)
      try {
        for (const id of this.#executor.flush?.() ?? []) this.#startAgain(id);
      } catch (error) {
        this.#broken = error;
      }
    return this.#broken === undefined;
  }

  keepRows(rowsOf: (block: number) => number): void {
    this.#blocks.keepRows(rowsOf);
    truncate(this.#running, rowsOf, (sequence) => this.#preempt(sequence));
  }

  /** What rows of keys and values are, and where they lie. */
  get kv(): KvMemory {
    return this.#whole.kv;
  }

  /** All stages on this device. */
  get #whole(): StageSummary {
    return this.#executor.whole ?? this.#executor.stage;
  }

  /** Of a batch: a chunk of prompts, and a row of each sequence that decodes. */
  get #rows_max(): number {
    return this.#prompt_rows_max + this.#bounds.max_sequences;
  }

  get #prompt_rows_max(): number {
    return Math.min(this.#bounds.prefill_chunk_tokens, this.#whole.prompt_rows_max);
  }

  /** Of the largest budget, whatever it is now. */
  get #kvTokensMax(): number {
    const tokens = Math.min(this.#options.kv_tokens, this.#executor.kv_tokens_max);
    return Math.floor(tokens / kv_block_tokens) * kv_block_tokens;
  }

  /** The KV rows of the stage and the blocks of a live sequence: for transfers, and for tests that damage them. */
  kvOf(id: number): { stage: Stage; blocks: readonly number[]; tokens: number } | undefined {
    const sequence = this.#running.find((candidate) => candidate.id === id);
    if (!sequence?.kv) return undefined;
    return { stage: this.#executor.stage, blocks: sequence.kv.blocks, tokens: sequence.n_computed };
  }

  /** The next batch. Where there is no memory for its results, its longest sequence ends, and it is made anew. */
  #submitWhatFits(plan: IterationPlan, outputs: SequenceOutput[]): BatchCounts {
    for (;;) {
      const now = this.prompts_wait && this.decodes ? { ...plan, prefill_tokens: 0 } : plan;
      const batch = planBatch(this.#running, now, this.#bounds, this.#prompt_rows_max, this.#executor.depth);
      try {
        return this.#submit(batch);
      } catch (error) {
        if (!isShortOfResults(error)) throw error;
        const longest = longestOf(batch.map(({ sequence }) => sequence));
        outputs.push(this.#finish(longest, withoutResults(longest), 'error'));
      }
    }
  }

  /** A batch sets out. @returns what is in it */
  #submit(batch: PlannedSequence[]): BatchCounts {
    const counts = { prefill_tokens: 0, decode_tokens: 0 };
    if (batch.length === 0) return counts;
    this.#executor.submit(batch);
    this.#submitted.push(batch);
    for (const { sequence, segment } of batch) {
      if (sequence.n_generated > 0 && segment.rows === 1) counts.decode_tokens++;
      else counts.prefill_tokens += segment.rows;
      // Whatever is computed behind these rows comes to every stage after them.
      sequence.n_computed += segment.rows;
    }
    return counts;
  }

  /** No other batch can set out before one has come back. */
  #mustCollect({ decode, prefill_tokens }: IterationPlan): boolean {
    const { length } = this.#submitted;
    if (length === 0 || length >= this.#executor.depth) return length > 0;
    return !this.#running.some((sequence) =>
      sequence.decodes ? decode : sequence.pending > 0 && prefill_tokens > 0,
    );
  }

  /** Waits for the oldest batch, and takes what came of it. */
  #collect(outputs: SequenceOutput[]): void {
    const came = this.#executor.collect();
    if (!came) {
      this.#unsubmit();
      return;
    }
    const { segments, damaged } = came;
    this.#submitted.shift()!.forEach((planned, index) => {
      const { sequence } = planned;
      // It was cancelled meanwhile.
      if (!sequence.kv || damaged.includes(sequence.id)) return;
      const output = this.#take(planned, segments[index]!);
      if (output) outputs.push(output);
    });
    for (const id of damaged) this.#startAgain(id);
  }

  /** What is on its way is lost: its sequences are where they were before it set out. */
  #unsubmit(): void {
    unsubmit(this.#submitted.splice(0).flat(), (sequence) => this.#preempt(sequence));
  }

  /** What was computed of it means nothing, nor what of it is on its way. */
  #startAgain(id: number): void {
    const sequence = this.#running.find((candidate) => candidate.id === id);
    if (!sequence) return;
    this.#releaseKv(sequence);
    this.#settle();
    this.#preempt(sequence);
  }

  /** Everything comes back that is on its way: then sequences may lose their places. */
  #settle(): void {
    try {
      while (this.#broken === undefined && this.#submitted.length > 0) this.#collect(this.#untold);
    } catch (error) {
      this.#broken = error;
    }
  }

  /**
   * Moves waiting sequences to the running ones while slots and blocks for all their tokens are free.
   * @returns those that can never have as many blocks as they need
   */
  #admit(first: number | undefined): SequenceOutput[] {
    const refused: SequenceOutput[] = [];
    const at = this.#waiting.findIndex(({ id }) => id === first);
    if (at > 0) this.#waiting.unshift(...this.#waiting.splice(at, 1));
    while (this.#waiting.length > 0 && this.#running.length < this.#bounds.max_sequences) {
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
            error: tooBig(sequence),
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
      if (this.#executor.reserve?.(sequence.tokens.length, this.#rows_max) === false) {
        this.#blocks.release(list);
        refused.push({ ...withoutResults(sequence), finish: 'error' });
        continue;
      }
      sequence.kv = list;
      sequence.n_computed = shared + this.#blocks.copyBeginning(list);
      sequence.cached_tokens ??= sequence.n_computed;
      sequence.admitted = this.#admissions++;
      this.#running.push(sequence);
    }
    return refused;
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

  /** What a batch gave for one sequence: a token, an embedding, or nothing to tell yet. */
  #take({ sequence, segment, embeds }: PlannedSequence, came: SegmentOutput): SequenceOutput | undefined {
    const { pooling } = this.#executor.model;
    const begin = segment.past_tokens;
    const end = begin + segment.rows;
    this.#blocks.remember(sequence.kv!, sequence.tokens.all(), end);
    const output: SequenceOutput = { id: sequence.id };
    if (!sequence.reported) output.cached_tokens = sequence.cached_tokens ?? 0;
    sequence.reported = true;
    if (embeds) sequence.pooled = poolRows(sequence.pooled, came.hidden!, this.info.n_embd, begin, pooling);
    else if (came.prompt_logprobs) sequence.prompt_logprobs.push(...came.prompt_logprobs);
    if (end < sequence.tokens.length) return output.cached_tokens === undefined ? undefined : output;
    if (embeds) {
      output.embedding = finishPooled(sequence.pooled!, sequence.n_prompt, pooling);
      return this.#finish(sequence, output, 'stop');
    }
    if (sequence.request.prompt_logprobs !== undefined && sequence.n_generated === 0)
      output.prompt_logprobs = [...sequence.prompt_logprobs];
    if (sequence.tokens.length >= sequence.tokens_max) return this.#finish(sequence, output, 'length');
    return this.#sample(sequence, came, output);
  }

  #sample(sequence: Sequence, came: SegmentOutput, output: SequenceOutput): SequenceOutput {
    Object.assign(output, sampleToken(sequence, came));
    if (!output.token) return this.#finish(sequence, output, 'error');
    sequence.tokens.push(output.token.token);
    if (sequence.request.stop_tokens.has(output.token.token)) return this.#finish(sequence, output, 'stop');
    if (sequence.tokens.length >= sequence.tokens_max) return this.#finish(sequence, output, 'length');
    return output;
  }

  #finish(sequence: Sequence, output: SequenceOutput, reason: FinishReason): SequenceOutput {
    this.#releaseKv(sequence);
    this.#running.splice(this.#running.indexOf(sequence), 1);
    output.finish = reason;
    return output;
  }
}
