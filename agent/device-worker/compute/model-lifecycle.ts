import { monotonic_ms } from '../../../host/clock.ts';
import { GrowingProfile } from '../../../solver/sharing/growing-profile.ts';
import type { Engine } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { LoadBeside } from '../../engine/weights.ts';
import type { DevicePool } from '../../memory/device-pool.ts';
import type { WeightLoad } from '../../memory/pooled-loading.ts';
import type { RingSurroundings } from '../../pipeline/ring-port.ts';
import { StreamedModels, type StreamingShare } from '../../streaming/streamed-models.ts';
import type { DeviceSchedule } from './device-schedule.ts';
import { HostedEngine } from './hosted-engine.ts';
import { kvShapeOf } from './kv-moves.ts';
import type { LeavingLoads } from './leaving-loads.ts';
import { keptStages, LiveRefactorings } from './live-refactorings.ts';
import type { FromCompute, Submission, ToCompute } from './messages.ts';
import { ModelLoads } from './model-loads.ts';
import { ModelProfiler } from './model-profiler.ts';
import type { ScheduledModel } from './scheduled-instance.ts';
import type { StageRows } from './stage-rows.ts';
import { WeightResidency } from './weight-residency.ts';
import { type LoadMessage, WorkerModel } from './worker-model.ts';
import { WorkerModels } from './worker-models.ts';

/**
 * Profiles are told to be kept at most this often while models compute. Higher: more is lost where a worker is killed.
 */
const profile_interval_ms = 60_000;

/** What the life of models needs of the thread around it. */
export interface LifecycleSurroundings {
  send(message: FromCompute): void;
  /** Something came on with a load. */
  beat(): void;
  /** See `LoadSurroundings`. */
  ring: RingSurroundings;
  rows: StageRows;
  leaving: LeavingLoads;
  /** Weights are in their places. */
  loaded(load: WeightLoad): void;
  /** A model serves: requests that waited for it are asked anew. */
  ask(submission: Submission): void;
  /** Of models whose weights are streamed; absent: there are none. */
  streaming?: StreamingShare | undefined;
}

/** What holds the arena, among names of models: none of them has a space. */
const arena_holder = 'streamed weights';

/** Decides how models come and go on the device, and moves them from state to state; see `WorkerModel`. */
export class ModelLifecycle {
  readonly models = new WorkerModels();
  readonly loads: ModelLoads;
  readonly refactorings: LiveRefactorings;
  readonly profiler = new ModelProfiler(this.models);
  readonly #streamed: StreamedModels;
  readonly #residency = new WeightResidency(this.models);
  readonly #schedule: DeviceSchedule;
  readonly #pool: () => DevicePool;
  readonly #around: LifecycleSurroundings;
  readonly #step_ms_min: number;
  #profiles_told_ms = performance.now();
  /** How many of the pool's kernels that are left out were told. */
  #left_out_told = 0;

  constructor(
    schedule: DeviceSchedule,
    pool: () => DevicePool,
    step_ms_min: number,
    around: LifecycleSurroundings,
  ) {
    this.#schedule = schedule;
    this.#pool = pool;
    this.#step_ms_min = step_ms_min;
    this.#around = around;
    this.refactorings = new LiveRefactorings({
      ring: around.ring,
      pool,
      rows: around.rows,
      leaving: around.leaving,
      loaded: (load) => around.loaded(load),
      changes: (name, does) => schedule.changesStages(name, does),
      changed: (load) => this.#changed(load),
      send: (message) => around.send(message),
    });
    this.#streamed = new StreamedModels(pool, around.streaming, {
      beat: () => around.beat(),
      held: (bytes) =>
        bytes > 0
          ? schedule.memory.hold(arena_holder, bytes, pool().memory.bytes)
          : schedule.memory.letGo(arena_holder),
    });
    this.loads = new ModelLoads(pool, this.models, {
      stream: (name, options, part) => this.#streamed.open(name, options, part),
      ring: around.ring,
      send: (message) => around.send(message),
      beat: () => around.beat(),
      areChanging: () => this.refactorings.any,
      giveWay: (model) => this.#giveWay(model),
      loaded: (load) => around.loaded(load),
      opened: (model, engine) => this.#opened(model, engine),
      pipelineOpened: (opened) => this.refactorings.opened(opened),
      failed: (model, error) => this.#notLoaded(model, error),
    });
  }

  /** One that is on its way or serves stays as it is. */
  load(message: LoadMessage): void {
    const known = this.models.get(message.name);
    if (known && known.state !== 'failed') return;
    known?.reload(message);
    const model = known ?? new WorkerModel(message);
    this.#around.leaving.settle();
    if (!known) this.models.add(model);
    this.loads.begin(model, this.beside);
  }

  /** A pipeline changes its layout; one that is away comes back first, as for a request. */
  refactor(message: ToCompute & { type: 'refactor' }): void {
    const model = this.models.get(message.load.name);
    if (!model?.isAway || !model.message.pipeline)
      this.refactorings.begin(message, model?.hosted?.engine, this.beside);
    else if (this.refactorings.await(message) && model.resume()) this.#setOut(model);
  }

  /**
   * A request for a model that is away: with the first that is let in the model sets out, and all of them wait for it.
   * @throws HpcserveError E_SLO_REFUSED
   */
  resume(model: WorkerModel, submission: Submission): void {
    const now_ms = monotonic_ms();
    const admitted = this.#schedule.admitAway(submission, this.loadTime_ms(model.name), now_ms, (name) =>
      this.#restFor(model, name),
    );
    // What it was promised holds when the model is there: it is not judged once more.
    const asked = admitted ? { ...submission, certain: true } : submission;
    if (model.resume(asked)) this.#setOut(model);
  }

  /** A model comes back, where there is room for what it takes at once. */
  #setOut(model: WorkerModel): void {
    if (this.#schedule.setsOut(model.name, (name) => this.#restFor(model, name)))
      this.loads.begin(model, this.beside);
    else this.#notLoaded(model, noRoomFor(model));
  }

  #restFor(model: WorkerModel, idle: string): void {
    const because = `nobody asks for it, and ${model.name} needs its room`;
    this.#suspend(this.models.get(idle)!, 'rest', because);
  }

  /** The client of a request is gone, which may have waited for its model. */
  withdraw(model: WorkerModel, id: number): void {
    model.withdraw(id);
    this.#schedule.withdraw(model.name, id);
  }

  /** Until a model that is away would be there. */
  loadTime_ms(name: string): number {
    const model = this.models.get(name);
    return model ? this.#residency.loadTime_ms(model, this.#pool().store) : 0;
  }

  unload(name: string): void {
    this.#tellProfile(name);
    this.models.remove(name);
    this.refactorings.staysAway(name, keptStages(name, 'it was unloaded'));
    this.#schedule.forget(name);
    this.#around.send({ type: 'unloaded', name });
  }

  /** Its requests were taken away: it is suspended, unless others came. */
  leave(name: string, because: string): void {
    const model = this.models.get(name);
    if (model && this.#schedule.mayRest(name)) this.#suspend(model, 'move', because);
  }

  /**
   * An iteration threw. Only when its engine is closed may the main thread free the vocabulary: it is told last.
   * @throws HpcserveError E_DEVICE_FAILED: no model of the device goes on
   */
  fail(model: WorkerModel, thrown: unknown): void {
    const failure = HpcserveError.from(thrown);
    if (failure.code === 'E_DEVICE_FAILED') throw failure;
    const error = failure.toJSON();
    try {
      model.fail();
    } finally {
      this.#schedule.lost(model.name, monotonic_ms());
      this.#around.send({ type: 'model_failed', name: model.name, error });
    }
  }

  /** Models that serve and have lost stages on other devices fail now, and not with their next request. */
  check(): void {
    for (const model of this.models.in('serving'))
      try {
        model.hosted!.engine.check?.();
      } catch (error) {
        this.fail(model, error);
      }
  }

  /**
   * Instances whose keep-alive is over are suspended (LLM-Mesh §4). @returns ms until the next one may; undefined where
   * none waits
   */
  recycle(): number | undefined {
    for (;;) {
      const next = this.#schedule.nextToRecycle();
      if (!next) return undefined;
      const left_ms = next.at_ms - monotonic_ms();
      if (left_ms > 0) return left_ms;
      const because = 'its keep-alive is over: its tensors stay while nothing else needs theirs';
      const model = this.models.get(next.model);
      if (!model || !this.#suspend(model, 'rest', because)) return undefined;
    }
  }

  /** One iteration of a model that is profiled, where others have time for it. @returns whether it was its last */
  profile(): boolean {
    const now_ms = monotonic_ms();
    const ended = this.profiler.advance(this.#schedule.spare_ms(now_ms), now_ms);
    if (!ended) return false;
    const { model } = ended;
    try {
      if ('error' in ended) throw ended.error;
      this.#serve(model, ended.engine, ended.growing, `were measured in ${Math.round(ended.took_ms)} ms`);
    } catch (error) {
      model.reopen();
      this.loads.fail(model, error);
    }
    return true;
  }

  /** What of models lies in the pool, where that changed. @param idle nothing else is to be done: it is told at once */
  tellWeights(idle: boolean): void {
    const share = this.#schedule.promised_share;
    const models = this.#residency.due(() => this.#pool().store, idle, share);
    if (models) this.#around.send({ type: 'weights', models });
  }

  /** What was learned of the models that serve. @param now else where it was not told for a while */
  tellProfiles(now = false): void {
    if (!now && performance.now() - this.#profiles_told_ms <= profile_interval_ms) return;
    this.#profiles_told_ms = performance.now();
    for (const { name } of this.models.engines) this.#tellProfile(name);
  }

  /** Closes everything: the thread ends. */
  async close(): Promise<void> {
    this.tellProfiles(true);
    for (const { name } of [...this.models]) this.models.remove(name);
    await this.#streamed.close();
  }

  /** What the models do beside which another one loads. */
  get beside(): LoadBeside {
    const { engines } = this.models;
    if (engines.some(({ engine }) => engine.busy)) return 'busy';
    return engines.length > 0 ? 'idle' : 'nobody';
  }

  /** The weights of a model are there. One of which nothing is known is measured before it serves. */
  #opened(model: WorkerModel, engine: Engine): void {
    this.#tellLeftOut();
    const { profile } = model.message;
    if (profile) {
      this.#serve(model, engine, new GrowingProfile(profile), 'are known of it on this device');
      return;
    }
    const { tokens_max, max_sequences, prefill_chunk_tokens } = this.#makeRoom(model, engine);
    const step_ms_min = this.#step_ms_min;
    const limits = { sequence_tokens_max: tokens_max, max_sequences, prefill_chunk_tokens, step_ms_min };
    this.profiler.begin(model, engine, limits, monotonic_ms());
  }

  /** A model enters the schedule, and serves. */
  #serve(model: WorkerModel, engine: Engine, growing: GrowingProfile, how: string): void {
    const { name, message } = model;
    const known = message.lengths ? { growing, lengths: message.lengths } : { growing };
    const scheduled = this.#makeRoom(model, engine);
    const weight_bytes = this.#pool().store.usedWeights_bytes(name);
    const hosted = new HostedEngine(name, engine, message.vocabulary, message.utf8);
    this.#schedule.add(scheduled, known, engine, this.#pool().memory.bytes, monotonic_ms());
    const waiting = model.serve({
      hosted,
      leaveSchedule: () => this.#schedule.remove(name, monotonic_ms()),
    });
    const { prefill, decode } = growing.points;
    const because = `${prefill} lengths of prompts and ${decode} decode steps ${how}`;
    this.#schedule.decisions.note({ kind: 'profile', model: name, because });
    this.#tellProfile(name);
    model.weight_bytes = weight_bytes;
    this.#residency.changed();
    const loaded: FromCompute = { type: 'loaded', name, info: engine.info, stats: engine.stats() };
    const kv = kvShapeOf(engine, this.#pool().memory.transferMemory);
    if (kv) loaded.kv = kv;
    const stage_kv = this.refactorings.stageKvOf(engine);
    if (stage_kv) loaded.stage_kv = stage_kv;
    this.#around.send(loaded);
    // What is promised counts from now: nobody is late because a model was away.
    for (const submission of waiting) this.#around.ask({ ...submission, arrival_ms: monotonic_ms() });
    this.refactorings.cameBack(name, engine, this.beside);
  }

  /** The layout of a pipeline is another one: its stage here has other sizes. */
  #changed(message: LoadMessage): void {
    const { name } = message;
    const model = this.models.get(name)!;
    model.change(message);
    model.weight_bytes = this.#pool().store.usedWeights_bytes(name);
    this.#residency.changed();
    this.#schedule.resized(name, model.hosted!.engine.stats(), monotonic_ms());
  }

  /** What of a model there is to schedule; others make room for its KV. @throws HpcserveError E_POOL_FULL */
  #makeRoom(model: WorkerModel, engine: Engine): ScheduledModel {
    const { options, slo } = model.message;
    const stats = engine.stats();
    const { max_sequences } = stats;
    const { prefill_chunk_tokens } = options;
    const tokens_max = Math.min(options.context_tokens, stats.kv_tokens_total);
    const scheduled: ScheduledModel = { name: model.name, max_sequences, prefill_chunk_tokens, tokens_max };
    if (slo) scheduled.slo = slo;
    const fits = (): boolean => this.#schedule.couldAdd(scheduled, stats, this.#pool().memory.bytes);
    while (!fits() && this.#giveWay(model));
    // One that was suspended can stay so; a model that is new here shares what there is.
    if (model.isAway && !fits()) throw noRoomFor(model);
    return scheduled;
  }

  /** The model that has been idle longest gives way to another: its tensors stay while there is room. */
  #giveWay({ name }: WorkerModel): boolean {
    const idle = this.models.get(this.#schedule.longestIdle() ?? '');
    const because = `nobody asks for it, and ${name} has no room: its tensors stay while nothing else needs theirs`;
    return idle !== undefined && this.#suspend(idle, 'rest', because);
  }

  /** Closes the engine of a model without requests; its tensors stay, and the next request brings it back. */
  #suspend(model: WorkerModel, kind: 'rest' | 'move', because: string): boolean {
    if (model.state !== 'serving') return false;
    const { name } = model;
    const learned = this.#schedule.learned(name);
    this.#schedule.decisions.note({ kind, model: name, because });
    this.#tellProfile(name);
    model.suspend(learned);
    return true;
  }

  /**
   * A model that cannot come back now stays away, and its requests are told when to ask again; any other one has
   * failed.
   */
  #notLoaded(model: WorkerModel, error: HpcserveError): void {
    const { name, isAway } = model;
    const staysAway = isAway && error.code === 'E_POOL_FULL';
    if (staysAway) this.#schedule.keepAway(name, monotonic_ms());
    else this.#schedule.lost(name, monotonic_ms());
    const waiting = staysAway ? model.keepAway() : model.fail();
    const details = { ...error.details, retry_after_s: this.#schedule.retryAfter_s(monotonic_ms()) };
    const { code, message: what, because } = error;
    const told = new HpcserveError(code, { what, because: [...because], details }).toJSON();
    for (const { id } of waiting) this.#around.send({ type: 'refused', id, error: told });
    const reasons = [what, ...because].join(': ');
    const kept = keptStages(name, `it rests, and cannot come back now: ${reasons}`);
    this.refactorings.staysAway(name, staysAway ? kept : error);
    if (!staysAway) this.#around.send({ type: 'load_failed', name, error: error.toJSON() });
  }

  /** Every load may have tried kernels that no load before it needed. */
  #tellLeftOut(): void {
    const left_out = this.#pool().kernels_left_out;
    if (left_out.length === this.#left_out_told) return;
    this.#left_out_told = left_out.length;
    this.#around.send({ type: 'kernels_left_out', errors: left_out.map((error) => error.toJSON()) });
  }

  #tellProfile(name: string): void {
    const learned = this.#schedule.learned(name);
    if (learned)
      this.#around.send({ type: 'profile', name, ...learned, too_slow: this.#schedule.isTooSlow(name) });
  }
}

function noRoomFor({ name }: WorkerModel): HpcserveError {
  return new HpcserveError('E_POOL_FULL', {
    what: `the model ${name} has no room for its KV now`,
    because: 'requests of other models hold the rest of the memory pool',
  });
}
