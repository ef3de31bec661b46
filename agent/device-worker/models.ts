import { monotonic_ms } from '../../host/clock.ts';
import type { PipelineLayout } from '../../solver/refactoring/layout.ts';
import { isFull, type ModelLoad } from '../../spec/agent-state.ts';
import type { DeviceReport } from '../../spec/device-report.ts';
import { type ErrorJson, HpcserveError } from '../../spec/errors/error.ts';
import { systemMessage } from '../../spec/errors/system-error.ts';
import { nearest } from '../../spec/nearest.ts';
import type { MovedAnswer } from '../../spec/wire.ts';
import { ContentHashCache } from '../memory/content-hashes.ts';
import { learnContents } from '../memory/learn-contents.ts';
import { SharedTensors } from '../memory/peers/shared-tensors.ts';
import type { ManifestModel } from '../memory/pool-manifest.ts';
import { ComputeThread } from './compute/compute-thread.ts';
import type { KvAsk, KvTold } from './compute/kv-messages.ts';
import type { FromCompute, ScheduleReport, Submission, ToCompute, TokenOutput } from './compute/messages.ts';
import { type LearnedBefore, loadMessage } from './load-message.ts';
import { writeManifest } from './manifest-file.ts';
import type { FromWorker, NativeModel } from './messages.ts';
import type { WorkerMetrics } from './metrics.ts';
import type { ModelsOptions } from './models-options.ts';
import { modelDigest } from './moving/model-digest.ts';
import { Questions } from './questions.ts';
import { type ModelText, ServedModel } from './served-model.ts';
import { TensorQuestions } from './tensor-questions.ts';

/**
 * What is in the pool is written down at most this often while the worker serves. Lower: successors know more; higher:
 * fewer writes.
 */
const manifest_interval_ms = 60_000;

/** Who submitted a sequence, and hears of it. After `refused`, `failed` or an output with `finish` nothing follows. */
export interface SequenceListener {
  admitted(): void;
  output(output: TokenOutput): void;
  failed(error: HpcserveError): void;
}

interface Live {
  submission: Submission;
  listener: SequenceListener;
}

/** What a caller says of a sequence; the rest is known here. */
export type SubmittedSequence = Omit<Submission, 'id' | 'arrival_ms'>;

/** The models of this worker and the sequences that are alive in its compute thread. */
export class Models {
  readonly #compute: ComputeThread;
  readonly #models = new Map<string, ServedModel>();
  readonly #live = new Map<number, Live>();
  readonly #tell: (message: FromWorker) => void;
  readonly #metrics: WorkerMetrics;
  readonly #learned: LearnedBefore;
  #manifest_ms = performance.now();
  readonly #manifest_file: string | undefined;
  readonly #warn: (text: string) => void;
  readonly #hashes: ContentHashCache | undefined;
  /** What peers may ask for; absent where tensors have no names. */
  readonly shared: SharedTensors | undefined;
  /** Kernels that are wrong on this CPU, of those that loads needed so far. */
  kernels_left_out: readonly ErrorJson[] = [];
  readonly #reports = new Questions<ScheduleReport>();
  readonly #kv = new Questions<KvTold>();
  readonly #tensors = new TensorQuestions((message) => this.#compute.send(message));
  /** A sequence that goes on with keys and values from elsewhere has begun: see `KvArrivals.began`. */
  onArrivedBegan: (kv: string, cached_tokens: number, tokens: number) => void = () => undefined;
  /** Rows of a stage are to go to another worker; resolves once they are there. */
  onRows: (message: FromCompute & { type: 'rows' }) => Promise<void> = () =>
    Promise.reject(new Error('this worker reaches no others'));
  /** A sequence was handed to the compute thread; an iteration has ended; a sequence is not live any more. */
  onSubmitted: (submission: Submission) => void = () => undefined;
  onStep: (step: FromCompute & { type: 'step' }) => void = () => undefined;
  onEnded: (id: number) => void = () => undefined;
  /** Models as they are to be once their layout has changed, by the number of the change. */
  readonly #refactorings = new Map<number, NativeModel>();
  /** Models that come anew before the compute thread has let go of them: by name, the first to go first. */
  readonly #unloading = new Map<string, ServedModel[]>();
  #nextId = 1;
  #idle: (() => void)[] = [];

  constructor(options: ModelsOptions) {
    this.#learned = options;
    this.#manifest_file = options.manifest_file;
    this.#warn = options.warn;
    this.#hashes = options.hash_dir === undefined ? undefined : new ContentHashCache(options.hash_dir);
    this.shared = this.#hashes && new SharedTensors(this.#hashes, this.#tensors);
    this.#tell = options.tell;
    this.#metrics = options.metrics;
    this.#compute = new ComputeThread((message) => this.#receive(message), options.failed, options);
  }

  /** Weights load in the compute thread; how it ends is told as a `model` message. */
  load(config: NativeModel): void {
    const { name } = config;
    const known = this.#notUnloading(name);
    if (known && known.state !== 'failed') {
      const error = new HpcserveError('E_MODEL_NOT_READY', {
        what: `the model ${name} is already ${known.state}`,
      });
      this.#tell({ type: 'model', name, state: known.state, error: error.toJSON() });
      return;
    }
    const model = new ServedModel(config);
    this.#models.set(name, model);
    this.#load(model);
  }

  #load(model: ServedModel): void {
    const { config } = model;
    this.#tell({ type: 'model', name: config.name, state: 'loading' });
    try {
      this.#compute.send(this.#loadMessage(config, model.text ?? model.openText()));
    } catch (error) {
      this.#fail(model, HpcserveError.from(error));
    }
  }

  /** A layout of a pipeline is to come in which this device has another stage, or its first one. */
  prepare(refactoring: number, config: NativeModel): void {
    const known = this.#notUnloading(config.name);
    const model = known ?? new ServedModel(config);
    if (!known) {
      this.#models.set(config.name, model);
      this.#tell({ type: 'model', name: config.name, state: 'loading' });
    }
    model.prepare(refactoring, config);
    try {
      const load = this.#loadMessage(config, model.text ?? model.openText());
      this.#compute.send({ type: 'prepare', refactoring, load });
    } catch (error) {
      this.#fail(model, HpcserveError.from(error));
    }
  }

  /** The layout does not come; where nothing was prepared for it, that is all the same. */
  unprepare(refactoring: number, name: string): void {
    this.#compute.send({ type: 'unprepare', refactoring, name });
  }

  /** The model of a name; one that is unloaded makes room for the next of that name. */
  #notUnloading(name: string): ServedModel | undefined {
    const known = this.#models.get(name);
    if (known?.state !== 'draining') return known;
    this.#unloading.set(name, [...(this.#unloading.get(name) ?? []), known]);
    return undefined;
  }

  /** The pipeline whose first stage is here changes its layout; how it ends is told as `refactored`. */
  refactor(refactoring: number, to: PipelineLayout, config: NativeModel): void {
    const { name } = config;
    const model = this.#models.get(name);
    if (model?.state !== 'serving' || !model.text) {
      const error = new HpcserveError('E_REFACTOR_MODEL', {
        what: `the stages of ${name} cannot change now`,
        because: `it is ${model?.state ?? 'not loaded here'}`,
      });
      this.#tell({ type: 'refactored', name, refactoring, error: error.toJSON() });
      return;
    }
    this.#refactorings.set(refactoring, config);
    this.#compute.send({
      type: 'refactor',
      id: refactoring,
      to,
      load: this.#loadMessage(config, model.text),
    });
  }

  cancelRefactoring(name: string, because: string): void {
    this.#compute.send({ type: 'cancel_refactoring', name, because });
  }

  #refactored(model: ServedModel, message: FromCompute & { type: 'refactored' }): void {
    const { name, id, report, error } = message;
    const config = this.#refactorings.get(id);
    this.#refactorings.delete(id);
    // Where it is opened anew, it is as it is now.
    if (config && report?.outcome.kind === 'refactored') model.config = config;
    const told: FromWorker & { type: 'refactored' } = { type: 'refactored', name, refactoring: id };
    if (report) told.report = report;
    if (error) told.error = error;
    this.#tell(told);
  }

  #loadMessage(config: NativeModel, text: ModelText): ToCompute & { type: 'load' } {
    return loadMessage(config, text, this.#learned);
  }

  unload(name: string): void {
    const model = this.#models.get(name);
    if (!model) {
      this.#tell({ type: 'model', name, state: 'unloaded' });
      return;
    }
    if (model.state === 'draining') return;
    model.state = 'draining';
    this.#dropSequences(
      name,
      new HpcserveError('E_MODEL_NOT_READY', { what: `the model ${name} was unloaded` }),
    );
    this.#compute.send({ type: 'unload', name });
  }

  /**
   * @param routed of the models that share the alias `name`, the one the gateway chose, as in `headers.model`
   * @throws HpcserveError E_MODEL_NOT_SERVED, E_MODEL_NOT_READY
   */
  find(name: string, routed?: string): ServedModel {
    const aliased = this.all.filter(({ config }) => config.aliases.includes(name));
    const model =
      this.#models.get(name) ?? aliased.find(({ config }) => encodeURI(config.name) === routed) ?? aliased[0];
    if (!model) {
      const names = this.all.map(({ config }) => config.name);
      const near = nearest(name, names);
      throw new HpcserveError('E_MODEL_NOT_SERVED', {
        what: `The model \`${name}\` does not exist`,
        because: names.length === 0 ? 'no model is loaded here' : `served here: ${names.join(', ')}`,
        ...(near === undefined ? {} : { try: `did you mean ${near}?` }),
        details: { param: 'model' },
      });
    }
    if (model.state !== 'serving')
      throw new HpcserveError('E_MODEL_NOT_READY', {
        what: `The model \`${model.config.name}\` is ${model.state}`,
        ...(model.error ? { because: model.error.message } : {}),
        details: { retry_after_s: 5 },
      });
    return model;
  }

  get all(): ServedModel[] {
    return [...this.#models.values()];
  }

  /** Models whose weights are on their way, also those that come back for a request. */
  get loading(): DeviceReport['loading'] {
    return this.all.flatMap(({ config, progress }) => {
      if (!progress) return [];
      const { bytes_loaded, bytes_total, elapsed_ms } = progress;
      const rate = (bytes: number, ms: number): number => (ms > 0 ? (1000 * bytes) / ms : 0);
      const bytes_per_s = rate(bytes_loaded, elapsed_ms);
      const legs = (progress.legs ?? []).map(({ leg, bytes, thread_ms }) => {
        return { leg, bytes, bytes_per_s: rate(bytes, thread_ms) };
      });
      return [{ model: config.name, bytes_loaded, bytes_total, bytes_per_s, legs }];
    });
  }

  get loads(): ModelLoad[] {
    return this.all.map(({ load }) => load);
  }

  /** Models are on their way that were asked for, or come back. */
  get areLoading(): boolean {
    return this.all.some(({ state, progress }) => state === 'loading' || progress !== undefined);
  }

  /** Answers are being computed. */
  get busy(): boolean {
    return this.#live.size > 0;
  }

  /** Later stages of pipelines are here, whose answers are at other devices. */
  get computesForOthers(): boolean {
    return this.all.some(({ config, state }) => state === 'serving' && (config.pipeline?.stage ?? 0) > 0);
  }

  /** Whether a sequence has neither ended nor gone elsewhere. */
  isLive(id: number): boolean {
    return this.#live.has(id);
  }

  /** Sequences of a model between submission and their end. */
  liveOf(name: string): number {
    return this.liveSequences(name).length;
  }

  /** The same, one by one. */
  liveSequences(name: string): Submission[] {
    const all = [...this.#live.values()].map(({ submission }) => submission);
    return all.filter(({ model }) => model === name);
  }

  /** @returns the id with which to cancel. */
  submit(sequence: SubmittedSequence, listener: SequenceListener): number {
    const submission: Submission = { ...sequence, id: this.#nextId++, arrival_ms: monotonic_ms() };
    this.#live.set(submission.id, { submission, listener });
    this.#compute.send({ type: 'submit', submission });
    this.onSubmitted(submission);
    return submission.id;
  }

  /** The listener hears nothing more. */
  cancel(id: number): void {
    const live = this.#live.get(id);
    if (!live) return;
    this.#end(id);
    this.#compute.send({ type: 'cancel', model: live.submission.model, id });
  }

  /** What the schedule says of itself, after the iteration that runs now. */
  report(): Promise<ScheduleReport> {
    return this.#reports.ask((id) => this.#compute.send({ type: 'report', id }));
  }

  /** Of sequences that move. @throws HpcserveError as the compute thread says */
  askKv(asked: KvAsk): Promise<KvTold> {
    return this.#kv.ask((ask) => this.#compute.send({ type: 'kv', ask, asked }));
  }

  /**
   * Breaks the requests of a model off, for gateways to have them continued elsewhere, and has its instance rest.
   * @returns how many; none where one of them cannot go on elsewhere
   */
  leave(name: string, because: string): number {
    const own = this.liveSequences(name);
    if (own.some(({ movable }) => !movable)) return 0;
    for (const { id } of own) this.giveAway(id, because);
    this.#compute.send({ type: 'leave', name, because });
    return own.length;
  }

  /**
   * Ends the answer of a sequence here, for a gateway to have it continued elsewhere.
   * @param moved where it is expected, and what its keys and values are called there
   */
  giveAway(id: number, because: string, moved?: MovedAnswer): void {
    const live = this.#live.get(id);
    // An answer of several choices ends with the first of them.
    if (!live) return;
    const what = `An answer of ${live.submission.model} leaves this device`;
    const details = moved ? { moved } : {};
    live.listener.failed(new HpcserveError('E_REQUEST_MOVED', { what, because, details }));
    this.cancel(id);
  }

  /** Has it written down what is in the pool, for the worker that comes after this one. */
  keepManifest(): void {
    this.#manifest_ms = performance.now();
    if (this.#manifest_file !== undefined) this.#compute.send({ type: 'manifest' });
  }

  /** Resolves once no sequence is alive. */
  whenIdle(): Promise<void> {
    if (this.#live.size === 0) return Promise.resolve();
    return new Promise((resolve) => this.#idle.push(resolve));
  }

  /** Ends every sequence with an error that tells a gateway to have the answer continued elsewhere. */
  handOver(): void {
    const error = new HpcserveError('E_WORKER_DRAINING', {
      what: 'This device worker ends before the answer',
    });
    for (const name of this.#models.keys()) this.#dropSequences(name, error);
  }

  /** Ends the compute thread and frees the models. */
  async stop(): Promise<void> {
    await this.#compute.stop();
    const ended = new HpcserveError('E_WORKER_DRAINING', { what: 'this device worker ends' });
    this.#kv.failAll(ended);
    this.#tensors.failAll(ended);
    for (const model of this.all) model.closeText();
  }

  #receive(message: FromCompute): void {
    switch (message.type) {
      case 'progress': {
        const loading = this.#spokenOf(message.name);
        if (loading) loading.progress = message.bytes_loaded < message.bytes_total ? message : undefined;
        // A model that rests serves: its next load is no news to the agent.
        if (loading?.state === 'loading' && message.bytes_total > 0) this.#tell(message);
        return;
      }
      case 'admitted':
        this.#live.get(message.id)?.listener.admitted();
        return;
      case 'refused':
        this.#end(message.id)?.listener.failed(HpcserveError.fromJSON(message.error));
        return;
      case 'step':
        this.#takeStep(message);
        return;
      case 'report':
        this.#reports.answer(message.id, message.report);
        return;
      case 'kv':
        if (message.error) this.#kv.fail(message.ask, HpcserveError.fromJSON(message.error));
        else this.#kv.answer(message.ask, message.told);
        return;
      case 'rows':
        void this.#sendRows(message);
        return;
      case 'tensors':
        this.#tensors.answer(message.ask, message.told);
        return;
      case 'kernels_left_out':
        this.kernels_left_out = message.errors;
        this.#tell(message);
        return;
      case 'stage': {
        const model = this.#spokenOf(message.name);
        model?.computes(message.refactoring, message.stats);
        if (model?.state === 'serving') this.#tell(model.told);
        return;
      }
      case 'pool_cut':
      case 'frames':
      case 'weights_loaded':
        this.#tell(message);
        return;
      case 'profile':
        this.#keepLearned(message);
        return;
      case 'manifest':
        this.#writeManifest(message.models);
        return;
      case 'weights':
        for (const { name, weights } of message.models) {
          const told = this.#spokenOf(name);
          if (told) told.weights = weights;
        }
        // A successor may begin before this worker goes.
        if (performance.now() - this.#manifest_ms > manifest_interval_ms) this.keepManifest();
        return;
    }
    const model = this.#spokenOf(message.name);
    if (model) this.#moved(model, message);
  }

  /** Of models of one name, the one that the compute thread has: one that comes anew does so behind the one before. */
  #spokenOf(name: string): ServedModel | undefined {
    return this.#unloading.get(name)?.[0] ?? this.#models.get(name);
  }

  async #sendRows(message: FromCompute & { type: 'rows' }): Promise<void> {
    const sent: ToCompute & { type: 'rows_sent' } = { type: 'rows_sent', id: message.id };
    try {
      await this.onRows(message);
    } catch (error) {
      const { message: what, because } = HpcserveError.from(error);
      sent.because = [what, ...because].join(': ');
    }
    this.#compute.send(sent);
  }

  /** A model of the compute thread came to another state. */
  #moved(
    model: ServedModel,
    message: FromCompute & { type: 'loaded' | 'load_failed' | 'model_failed' | 'unloaded' | 'refactored' },
  ): void {
    // It is being unloaded: what came of it before that counts no more, and must not bring it back.
    const isLeaving = model.state === 'draining';
    if (isLeaving && message.type !== 'unloaded' && message.type !== 'refactored') return;
    switch (message.type) {
      case 'loaded':
        model.info = message.info;
        model.stats = message.stats;
        model.kv = message.kv;
        model.stage_kv = message.stage_kv;
        void this.#learn(model);
        if (model.state !== 'loading') return;
        model.state = 'serving';
        this.#tell(model.told);
        return;
      case 'load_failed': {
        const error = HpcserveError.fromJSON(message.error);
        // Its own part was there, and was being measured when another stage went.
        if (error.code === 'E_STAGE_LOST') this.#reopen(model, error);
        else this.#fail(model, error);
        return;
      }
      case 'model_failed': {
        const error = HpcserveError.fromJSON(message.error);
        this.#dropSequences(message.name, error);
        if (error.code === 'E_STAGE_LOST' || error.code === 'E_STAGE_FRAME') this.#reopen(model, error);
        else this.#fail(model, error);
        return;
      }
      case 'refactored':
        this.#refactored(model, message);
        return;
      case 'unloaded': {
        const [before, ...others] = this.#unloading.get(message.name) ?? [];
        if (before) {
          if (others.length > 0) this.#unloading.set(message.name, others);
          else this.#unloading.delete(message.name);
          before.closeText();
          return;
        }
        this.#models.delete(message.name);
        model.closeText();
        this.#tell({ type: 'model', name: message.name, state: 'unloaded' });
        return;
      }
    }
  }

  #keepLearned({ name, profile, too_slow, lengths }: FromCompute & { type: 'profile' }): void {
    const model = this.#spokenOf(name);
    if (model) model.too_slow = too_slow;
    try {
      this.#learned.profiles?.write(name, profile);
      if (lengths) this.#learned.lengths?.write(name, lengths);
    } catch (error) {
      this.#warn(`what was learned of ${name} on this device cannot be kept: ${systemMessage(error)}`);
    }
  }

  #writeManifest(models: readonly ManifestModel[]): void {
    try {
      writeManifest(this.#manifest_file!, models);
    } catch (error) {
      this.#warn(`what was in memory is not known to the next worker: ${systemMessage(error)}`);
    }
  }

  /** Hashes the tensors of a model that serves, in the background. */
  async #learn(model: ServedModel): Promise<void> {
    if (!this.#hashes) return;
    const path = model.config.model_path;
    try {
      await learnContents(this.#hashes, path);
      model.digest = modelDigest(this.#hashes, path);
      this.shared?.add(path);
      this.#compute.send({ type: 'learned', path });
    } catch (error) {
      this.#warn(
        `the tensors of ${path} were not hashed, and are shared with no other file: ${(error as Error).message}`,
      );
    }
  }

  #takeStep(step: FromCompute & { type: 'step' }): void {
    const model = this.#spokenOf(step.name);
    if (!model) return;
    const wasFull = isFull(model.load);
    model.stats = step.stats;
    model.compute_ms = step.compute_ms;
    this.#metrics.step(step);
    // Between two heartbeats gateways would go on sending requests to a batch that has no place, and leave others
    // empty.
    if (isFull(model.load) !== wasFull) this.#tell({ type: 'load_report', models: this.loads });
    for (const output of step.outputs) {
      const live = this.#live.get(output.id);
      if (!live) continue;
      const { kv, tokens } = live.submission;
      if (output.cached_tokens !== undefined) {
        // What was brought for it says nothing of what prompts have in common.
        if (kv !== undefined) this.onArrivedBegan(kv, output.cached_tokens, tokens.length);
        else {
          model.prefix_cache.queried_tokens += tokens.length;
          model.prefix_cache.found_tokens += output.cached_tokens;
        }
      }
      if (output.finish !== undefined) this.#end(output.id);
      live.listener.output(output);
    }
    this.onStep(step);
  }

  #fail(model: ServedModel, error: HpcserveError): void {
    model.state = 'failed';
    model.error = error;
    model.stats = undefined;
    model.closeText();
    this.#tell({ type: 'model', name: model.config.name, state: 'failed', error: error.toJSON() });
  }

  /** Stages elsewhere are lost. What is here of the model is in order: it serves again once they are back. */
  #reopen(model: ServedModel, error: HpcserveError): void {
    this.#warn(`${model.config.name} waits for its stages: ${error.toText()}`);
    model.reopen();
    this.#load(model);
  }

  #dropSequences(name: string, error: HpcserveError): void {
    for (const [id, { submission, listener }] of [...this.#live]) {
      if (submission.model !== name) continue;
      this.#end(id);
      listener.failed(error);
    }
  }

  #end(id: number): Live | undefined {
    const live = this.#live.get(id);
    this.#live.delete(id);
    if (live) this.onEnded(id);
    if (this.#live.size === 0) for (const resolve of this.#idle.splice(0)) resolve();
    return live;
  }
}
