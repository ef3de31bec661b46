import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import { GrowingProfile } from '../../../solver/sharing/growing-profile.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import type { Engine, IterationPlan } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { describeLoad } from '../../memory/describe-load.ts';
import type { DevicePool } from '../../memory/device-pool.ts';
import { monotonic_ms } from '../clock.ts';
import { type ChosenIteration, DeviceSchedule } from './device-schedule.ts';
import { HostedEngine } from './hosted-engine.ts';
import type { FromCompute, ScheduleReport, ToCompute, TokenOutput } from './messages.ts';
import { type LoadMessage, ModelLoads } from './model-loads.ts';
import { ModelProfiler } from './model-profiler.ts';
import type { ScheduledModel } from './scheduled-instance.ts';
import { SuspendedModels } from './suspended-models.ts';
import { pulse, pulseStates } from './watchdog.ts';
import { WeightResidency } from './weight-residency.ts';

/** Nobody wakes this: to wait on it is to sleep. */
const noSignal = new Int32Array(new SharedArrayBuffer(4));
/** How long the thread sleeps while others load. Lower: a loaded model serves sooner; higher: fewer wake-ups. */
const load_wait_ms = 2;
/** Integrity is checked at most this often, when nothing is to be done. Lower: a fault is found sooner; higher: less work. */
const verify_interval_ms = 10_000;
/** Profiles are told to be kept at most this often while models compute. Higher: more is lost where a worker is killed. */
const profile_interval_ms = 60_000;

/**
 * The compute thread's life: between iterations it takes messages, then computes one iteration of one busy
 * engine, the one that the schedule chooses; where nothing is busy it sleeps until the main thread wakes it.
 * Everything here is synchronous.
 */
export class ComputeLoop {
  private readonly port: MessagePort;
  /** Words of `pulse`. */
  private readonly pulse: Int32Array;
  private readonly pool: () => DevicePool;
  private readonly loads: ModelLoads;
  private readonly resting = new SuspendedModels();
  private readonly measured = new ModelProfiler();
  private readonly weights = new WeightResidency();
  /** How each model that serves was loaded. */
  private readonly messages = new Map<string, LoadMessage>();
  private verified_ms = 0;
  private readonly engines = new Map<string, HostedEngine>();
  private readonly schedule: DeviceSchedule;
  private profiles_told_ms = performance.now();
  /** How many of the pool's `left_out` were told. */
  private left_out_told = 0;
  /** Least time of an iteration, ms: the declared speed of an emulated device. */
  private readonly step_ms_min: number;
  private stopped = false;

  constructor(
    port: MessagePort,
    words: Int32Array,
    pool: () => DevicePool,
    settings: SharingSettings,
    step_ms_min = 0,
  ) {
    this.schedule = new DeviceSchedule(settings);
    this.step_ms_min = step_ms_min;
    this.port = port;
    this.pulse = words;
    this.pool = pool;
    this.loads = new ModelLoads(pool, {
      send: (message) => this.send(message),
      beat: () => this.beat(pulseStates.loading),
      loaded: (load) =>
        this.schedule.decisions.note({ kind: 'load', model: load.model, because: describeLoad(load) }),
      settling: () => this.measured.any,
      giveWay: (model) => this.rest(model),
      failed: (message, error) => this.notLoaded(message, error),
    });
  }

  run(): void {
    while (!this.stopped) {
      // Read before the messages are: one that comes in between changes the word, and the wait ends at once.
      const seen = Atomics.load(this.pulse, pulse.signal);
      this.beat(pulseStates.computing);
      this.takeMessages();
      if (this.stopped) break;
      const chosen = this.choose();
      const loading = this.loads.any;
      if (loading)
        // A file that hangs must not hang the models that are there: then only its own threads read it.
        this.loads.advance(!chosen && this.engines.size === 0, (message, engine) =>
          this.opened(message, engine),
        );
      this.tellWeights(!chosen && !loading);
      const measuring = this.measured.any;
      if (measuring && this.measure()) continue;
      if (chosen) this.step(...chosen);
      else if (measuring) continue;
      // Also after the last load: requests may have waited for it.
      else if (loading)
        Atomics.wait(this.pulse, pulse.signal, seen, this.engines.size > 0 ? load_wait_ms : 0);
      else {
        this.verify();
        const recycle_ms = this.recycle();
        // What went to rest just now, too: nobody may wake this thread for long.
        this.tellWeights(true);
        this.beat(pulseStates.idle);
        Atomics.wait(this.pulse, pulse.signal, seen, recycle_ms);
      }
    }
    this.tellProfiles();
    this.loads.abortAll();
    this.measured.abortAll();
    for (const hosted of this.engines.values()) hosted.close();
    this.engines.clear();
  }

  /** What the schedule says; else an engine that has something to tell, or sequences that only it can begin. */
  private choose(): [HostedEngine, ChosenIteration | undefined] | undefined {
    const chosen = this.schedule.choose(monotonic_ms());
    const hosted = chosen && this.engines.get(chosen.model);
    if (hosted) return [hosted, chosen];
    for (const other of this.engines.values()) if (other.engine.busy) return [other, undefined];
    return undefined;
  }

  /** Tells the watchdog that something new has begun. */
  private beat(state: number): void {
    Atomics.store(this.pulse, pulse.state, state);
    Atomics.add(this.pulse, pulse.beats, 1);
  }

  private takeMessages(): void {
    for (;;) {
      const received = receiveMessageOnPort(this.port) as { message: ToCompute } | undefined;
      if (!received) return;
      this.beat(received.message.type === 'load' ? pulseStates.loading : pulseStates.computing);
      this.take(received.message);
    }
  }

  private take(message: ToCompute): void {
    switch (message.type) {
      case 'load':
        this.load(message);
        return;
      case 'unload':
        this.loads.abort(message.name);
        this.measured.abort(message.name);
        this.resting.end(message.name);
        this.weights.forget(message.name);
        this.close(message.name);
        this.schedule.forget(message.name);
        this.send({ type: 'unloaded', name: message.name });
        return;
      case 'leave':
        if (this.schedule.isIdle(message.name)) this.lay(message.name, 'move', message.because);
        return;
      case 'submit':
        this.submit(message.submission);
        return;
      case 'cancel':
        this.cancel(message.model, message.id);
        return;
      case 'report': {
        this.send({ type: 'report', id: message.id, report: this.report() });
        return;
      }
      case 'manifest':
        if (this.hasModels) this.send({ type: 'manifest', models: this.pool().manifest() });
        return;
      case 'learned':
        this.learned(message.path);
        return;
      case 'stop':
        this.stopped = true;
    }
  }

  private load(message: LoadMessage): void {
    this.loads.begin(message, this.busy ? 'busy' : this.engines.size > 0 ? 'idle' : 'nobody');
  }

  /** The weights of a model are there. One of which nothing is known is measured before it serves. */
  private opened(message: LoadMessage, engine: Engine): void {
    this.tellLeftOut();
    if (message.profile) {
      this.enter(message, engine, new GrowingProfile(message.profile), 'are known of it on this device');
      return;
    }
    const { tokens_max, max_sequences, prefill_chunk_tokens } = this.scheduled(message, engine);
    const limits = { sequence_tokens_max: tokens_max, max_sequences, prefill_chunk_tokens };
    this.measured.begin(message, engine, { ...limits, step_ms_min: this.step_ms_min }, monotonic_ms());
  }

  /** Every load may have tried kernels that no load before it needed. */
  private tellLeftOut(): void {
    const left_out = this.pool().kernels_left_out;
    if (left_out.length === this.left_out_told) return;
    this.left_out_told = left_out.length;
    this.send({ type: 'kernels_left_out', errors: left_out.map((error) => error.toJSON()) });
  }

  /** A model enters the schedule, and serves. */
  private enter(message: LoadMessage, engine: Engine, growing: GrowingProfile, how: string): void {
    const { name, vocabulary, utf8, lengths } = message;
    this.schedule.add(
      this.scheduled(message, engine),
      { growing, ...(lengths && { lengths }) },
      engine,
      this.pool().memory.bytes,
      monotonic_ms(),
    );
    const { prefill, decode } = growing.points;
    const because = `${prefill} lengths of prompts and ${decode} decode steps ${how}`;
    this.schedule.decisions.note({ kind: 'profile', model: name, because });
    this.tellProfile(name);
    this.messages.set(name, message);
    this.engines.set(name, new HostedEngine(name, engine, vocabulary, utf8));
    this.weights.opened(name, this.pool().store);
    this.send({ type: 'loaded', name, info: engine.info, stats: engine.stats() });
    // What is promised counts from now: nobody is late because a model was away.
    for (const submission of this.resting.end(name))
      this.submit({ ...submission, arrival_ms: monotonic_ms() });
  }

  /** A model that rests and cannot come back now rests on; its requests are told when to ask again. */
  private notLoaded({ name }: LoadMessage, error: HpcserveError): void {
    const waiting = this.resting.turnAway(name);
    if (waiting === undefined) {
      this.send({ type: 'load_failed', name, error: error.toJSON() });
      return;
    }
    const details = { ...error.details, retry_after_s: this.schedule.retryAfter_s(monotonic_ms()) };
    const { code, message: what, because } = error;
    const told = new HpcserveError(code, { what, because: [...because], details }).toJSON();
    for (const { id } of waiting) this.send({ type: 'refused', id, error: told });
    if (code === 'E_POOL_FULL') return;
    this.resting.end(name);
    this.send({ type: 'load_failed', name, error: error.toJSON() });
  }

  /** The model that has been idle longest gives way to another: its tensors stay while there is room. */
  private rest(forModel: string): boolean {
    const idle = this.schedule.longestIdle();
    const because = `nobody asks for it, and ${forModel} has no room: its tensors stay while nothing else needs theirs`;
    return idle !== undefined && this.lay(idle, 'rest', because);
  }

  /** Closes the engine of a model without requests; its tensors stay, and the next request brings it back. */
  private lay(model: string, kind: 'rest' | 'move', because: string): boolean {
    const message = this.messages.get(model);
    if (message === undefined) return false;
    const learned = this.schedule.learned(model);
    this.schedule.decisions.note({ kind, model, because });
    this.close(model);
    this.resting.rest({ ...message, ...learned });
    return true;
  }

  /** Instances whose keep-alive is over rest (LLM-Mesh §4). @returns ms until the next one may; undefined where none waits */
  private recycle(): number | undefined {
    for (;;) {
      const next = this.schedule.nextToRecycle();
      if (!next) return undefined;
      const left_ms = next.at_ms - monotonic_ms();
      if (left_ms > 0) return left_ms;
      const because = 'its keep-alive is over: its tensors stay while nothing else needs theirs';
      if (!this.lay(next.model, 'rest', because)) return undefined;
    }
  }

  private close(name: string): void {
    this.tellProfile(name);
    this.messages.delete(name);
    this.engines.get(name)?.close();
    this.engines.delete(name);
    this.schedule.remove(name, monotonic_ms());
  }

  private learned(path: string): void {
    try {
      this.pool().adoptContents(path);
    } catch (error) {
      // A file that changed meanwhile is not the one whose tensors are here: they are found by file alone.
      if (!(error instanceof HpcserveError)) throw error;
    }
  }

  private get busy(): boolean {
    return [...this.engines.values()].some(({ engine }) => engine.busy);
  }

  /** @throws HpcserveError E_POOL_INTEGRITY: the worker must not go on */
  private verify(): void {
    if (this.engines.size === 0 || performance.now() - this.verified_ms < verify_interval_ms) return;
    this.verified_ms = performance.now();
    for (const { engine } of this.engines.values()) engine.verify();
    this.pool().verify();
  }

  private submit(submission: (ToCompute & { type: 'submit' })['submission']): void {
    const { id, model } = submission;
    const hosted = this.engines.get(model);
    if (!hosted) {
      const back = this.resting.ask(submission);
      if (back && back !== 'waits') this.load(back);
      if (back) return;
    }
    try {
      if (!hosted)
        throw new HpcserveError('E_MODEL_NOT_READY', { what: `the model ${model} is not loaded any more` });
      this.schedule.admit(submission, monotonic_ms());
      try {
        hosted.add(submission);
      } catch (error) {
        this.schedule.cancelled(model, id, hosted.engine.progress(), monotonic_ms());
        throw error;
      }
      this.schedule.sync(model, hosted.engine.progress(), monotonic_ms());
      this.send({ type: 'admitted', id });
    } catch (error) {
      this.send({ type: 'refused', id, error: HpcserveError.from(error).toJSON() });
    }
  }

  /** There is a pool, and something in it. */
  private get hasModels(): boolean {
    return this.messages.size + this.resting.names.length > 0;
  }

  private report(): ScheduleReport {
    const { schedule } = this;
    return {
      instances: schedule.instances(monotonic_ms()),
      scheduler: schedule.counted,
      view: schedule.view(monotonic_ms(), this.resting.names.length),
      decisions: schedule.decisions.last,
      resting: this.resting.names,
      ...(this.hasModels && { pool: this.pool().report() }),
    };
  }

  /**
   * Intermediate results of graphs take memory of the pool that no budget counts, so that a request that was let in may find
   * none: it is told when to ask again, and a gateway asks another replica at once.
   */
  private withoutRefused(model: string, outputs: TokenOutput[]): TokenOutput[] {
    return outputs.filter(({ id, error, short_of_memory }) => {
      if (short_of_memory === undefined) return true;
      const told = new HpcserveError('E_POOL_FULL', {
        what: `${model} has no memory for this request now`,
        ...(error !== undefined && { because: error }),
        try: 'ask again after the seconds that Retry-After says, or give the device a larger pool (`sharing.pool_gb`)',
        details: { retry_after_s: this.schedule.retryAfter_s(monotonic_ms()) },
      });
      this.send({ type: 'refused', id, error: told.toJSON() });
      return false;
    });
  }

  private cancel(model: string, id: number): void {
    this.resting.cancel(model, id);
    const hosted = this.engines.get(model);
    if (!hosted) return;
    hosted.cancel(id);
    this.schedule.cancelled(model, id, hosted.engine.progress(), monotonic_ms());
  }

  private step(hosted: HostedEngine, chosen: ChosenIteration | undefined): void {
    const { name, engine } = hosted;
    const started_ms = performance.now();
    try {
      const report = this.iterate(hosted, chosen?.turn);
      const { prefill_tokens, decode_tokens, elapsed_us } = report;
      const stats = engine.stats();
      this.keepPace(started_ms);
      const elapsed_ms = performance.now() - started_ms;
      // Without a turn it did whatever it had: that says nothing of how long anything takes.
      const turn = chosen?.turn ?? { decode: true, prefill_tokens: prefill_tokens + 1 };
      this.schedule.ended(
        { model: name, turn },
        report,
        engine.progress(),
        stats,
        elapsed_ms,
        monotonic_ms(),
      );
      const outputs = this.withoutRefused(name, report.outputs);
      this.send({ type: 'step', name, outputs, stats, prefill_tokens, decode_tokens, elapsed_us });
      if (performance.now() - this.profiles_told_ms > profile_interval_ms) this.tellProfiles();
    } catch (error) {
      this.engines.delete(name);
      this.messages.delete(name);
      this.schedule.remove(name, monotonic_ms());
      try {
        hosted.close();
      } finally {
        // Only now may the main thread free the vocabulary.
        this.send({ type: 'model_failed', name, error: HpcserveError.from(error).toJSON() });
      }
    }
  }

  /** One iteration. Where KV is exhausted the schedule makes room, and the engine, which has done nothing yet, tries again. */
  private iterate(hosted: HostedEngine, turn: IterationPlan | undefined): ReturnType<HostedEngine['step']> {
    for (;;) {
      const report = hosted.step(turn);
      if (!report.kv_exhausted) return report;
      this.schedule.handleKvExhausted(hosted.name, report.kv_exhausted, monotonic_ms());
    }
  }

  /** What of a model there is to schedule; others make room for its KV. */
  private scheduled({ name, options, slo }: LoadMessage, engine: Engine): ScheduledModel {
    const stats = engine.stats();
    const { max_sequences, prefill_chunk_tokens } = options;
    const tokens_max = Math.min(options.context_tokens, stats.kv_tokens_total);
    const model = { name, ...(slo && { slo }), max_sequences, prefill_chunk_tokens, tokens_max };
    const { bytes: pool_bytes } = this.pool().memory;
    while (!this.schedule.couldAdd(model, stats, pool_bytes) && this.rest(name));
    // One that rested can rest on; a model that is new here shares what there is.
    if (this.resting.names.includes(name) && !this.schedule.couldAdd(model, stats, pool_bytes))
      throw new HpcserveError('E_POOL_FULL', {
        what: `the model ${name} has no room for its KV now`,
        because: 'requests of other models hold the rest of the memory pool',
      });
    return model;
  }

  /** One iteration of a model that is being measured, where others have time for it. @returns whether it serves now */
  private measure(): boolean {
    if (!this.measured.any) return false;
    this.beat(pulseStates.loading);
    const now_ms = monotonic_ms();
    const started_ms = performance.now();
    const ended = this.measured.advance(this.schedule.spare_ms(now_ms), now_ms);
    if (!ended) {
      this.keepPace(started_ms);
      return false;
    }
    const { message, engine } = ended;
    try {
      if ('error' in ended) throw ended.error;
      this.enter(message, engine, ended.growing, `were measured in ${Math.round(ended.took_ms)} ms`);
    } catch (error) {
      engine.close();
      this.loads.failed(message, error);
    }
    return true;
  }

  private tellWeights(idle: boolean): void {
    const models = this.weights.due(
      () => this.pool().store,
      (name) => this.resting.has(name),
      idle,
    );
    if (models) this.send({ type: 'weights', models });
  }

  private tellProfiles(): void {
    this.profiles_told_ms = performance.now();
    for (const name of this.engines.keys()) this.tellProfile(name);
  }

  private tellProfile(name: string): void {
    const learned = this.schedule.learned(name);
    if (learned) this.send({ type: 'profile', name, ...learned, too_slow: this.schedule.isTooSlow(name) });
  }

  private keepPace(started_ms: number): void {
    const left_ms = this.step_ms_min - (performance.now() - started_ms);
    if (left_ms > 0) Atomics.wait(noSignal, 0, 0, left_ms);
  }

  private send(message: FromCompute): void {
    this.port.postMessage(message);
  }
}
