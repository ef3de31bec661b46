import { setImmediate as nextTurn } from 'node:timers/promises';
import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import { monotonic_ms } from '../../../host/clock.ts';
import { pageCacheRoom_bytes } from '../../../host/page-cache-room.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import type { IterationPlan } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { isSystemError } from '../../../spec/errors/system-error.ts';
import type { LoadBeside } from '../../engine/weights.ts';
import { describeLoad, weightSources } from '../../memory/describe-load.ts';
import type { DevicePool } from '../../memory/device-pool.ts';
import type { WeightLoad } from '../../memory/pooled-loading.ts';
import type { FabricPlace } from '../../pipeline/fabric-frames.ts';
import type { WayNews } from '../../pipeline/ring-messages.ts';
import type { StreamingShare } from '../../streaming/streamed-models.ts';
import { DeviceSchedule } from './device-schedule.ts';
import type { HostedEngine } from './hosted-engine.ts';
import { HostedStages } from './hosted-stages.ts';
import type { KvAsk } from './kv-messages.ts';
import { KvMoves } from './kv-moves.ts';
import { LeavingLoads } from './leaving-loads.ts';
import type {
  DeviceFailed,
  FromCompute,
  ScheduleReport,
  Submission,
  TensorsAsk,
  ToCompute,
  TokenOutput,
} from './messages.ts';
import { ModelLifecycle } from './model-lifecycle.ts';
import type { ParkingDiskView } from './parked-requests.ts';
import { StageRows } from './stage-rows.ts';
import { pulse, pulseStates } from './watchdog.ts';
import type { LoadMessage, WorkerModel } from './worker-model.ts';
import type { WorkerModels } from './worker-models.ts';

/** Nobody wakes this: to wait on it is to sleep. */
const noSignal = new Int32Array(new SharedArrayBuffer(4));
/** How long the thread sleeps while others load. Lower: a loaded model serves sooner; higher: fewer wake-ups. */
const load_wait_ms = 2;
/** The same where only stages on other devices are waited for. */
const stage_wait_ms = 100;
/**
 * Integrity is checked at most this often, when nothing is to be done. Lower: a fault is found sooner; higher: less
 * work.
 */
const verify_interval_ms = 10_000;
/**
 * Node's event loop gets a turn this often, in which it gives back what the collector found unused of native memory:
 * views of tensors, of which each iteration makes some, leave 200 bytes each until then. Lower: less of it waits;
 * higher: fewer turns, of some microseconds.
 */
const turn_interval_ms = 1000;

/** What models have beside the pool. */
export interface ComputeResources {
  /** Absent: no weights are streamed. */
  streaming?: StreamingShare | undefined;
  /** Absent: KV of evicted requests waits in host memory alone. */
  disk?: ParkingDiskView | undefined;
  /** See `RingThreadData`. */
  fabrics?: FabricPlace | undefined;
}

/** Who computes next. */
interface Chosen {
  model: WorkerModel;
  hosted: HostedEngine;
  /** Absent: the schedule has nothing for it, and it does whatever it has. */
  plan?: IterationPlan;
}

/**
 * The compute thread's life: between iterations it takes messages and looks after models that come, then computes one
 * iteration of one busy engine, the one that the schedule chooses; where nothing is busy it sleeps until the main
 * thread wakes it. A round is synchronous.
 *
 *     messages ──► choose ──► loads come on ──► profile a step ──► an iteration ──┐
 *        ▲                                                          │ or: sleep   │
 *        └──────────────────────────────────────────────────────────┴─────────────┘
 *
 *     DeviceSchedule: who computes, who is let in       ModelLifecycle: which models there are, and in what state
 */
export class ComputeLoop {
  readonly #port: MessagePort;
  /** Words of `pulse`. */
  readonly #pulse: Int32Array;
  readonly #pool: () => DevicePool;
  /** The same, once a model has made it necessary. */
  #opened: DevicePool | undefined;
  readonly #schedule: DeviceSchedule;
  readonly #lifecycle: ModelLifecycle;
  readonly #models: WorkerModels;
  readonly #moves: KvMoves;
  /** Of models whose first stage is elsewhere. */
  readonly #stages: HostedStages;
  readonly #rows: StageRows;
  readonly #leaving = new LeavingLoads();
  /** Least time of an iteration, ms: the declared speed of an emulated device. */
  readonly #step_ms_min: number;
  #verified_ms = 0;
  #stopped = false;

  constructor(
    port: MessagePort,
    words: Int32Array,
    pool: () => DevicePool,
    settings: SharingSettings,
    step_ms_min = 0,
    { streaming, disk, fabrics }: ComputeResources = {},
  ) {
    this.#port = port;
    this.#pulse = words;
    this.#pool = () => {
      this.#opened = pool();
      return this.#opened;
    };
    this.#step_ms_min = step_ms_min;
    this.#schedule = new DeviceSchedule(settings, disk, () => {
      // What is still to be written of a pool in host memory has been given away.
      const { bytes, resident_bytes } = this.#pool().memory;
      return pageCacheRoom_bytes() - Math.max(0, bytes - resident_bytes);
    });
    this.#rows = new StageRows({
      targetOf: (model) => this.#stages.of(model) ?? this.#lifecycle.refactorings.of(model),
      send: (message) => this.#send(message),
    });
    const news = (of: WayNews): void => this.#send({ type: 'frames', news: of });
    const loaded = (load: WeightLoad): void => this.#loaded(load);
    this.#stages = new HostedStages({
      // Not while another stage is served: one frame is done after the other.
      ring: { signal: words, meanwhile: () => false, fabrics, news },
      pool: this.#pool,
      step_ms_min,
      rows: this.#rows,
      leaving: this.#leaving,
      loaded,
      holds: (model, bytes) => this.#hold(model, bytes),
      send: (message) => this.#send(message),
    });
    this.#lifecycle = new ModelLifecycle(this.#schedule, this.#pool, step_ms_min, {
      send: (message) => this.#send(message),
      beat: () => this.#beat(pulseStates.loading),
      ask: (submission) => this.#submit(submission),
      ring: { signal: words, meanwhile: () => this.#serveMeanwhile(), fabrics, news },
      rows: this.#rows,
      leaving: this.#leaving,
      loaded,
      streaming,
    });
    this.#models = this.#lifecycle.models;
    this.#moves = new KvMoves(this.#models, this.#schedule, (message) => this.#send(message));
  }

  /** @throws what no model can be blamed for: the thread is to end */
  async run(): Promise<void> {
    let turned_ms = performance.now();
    while (!this.#stopped) {
      try {
        this.#goRound();
      } catch (error) {
        // Nothing is closed: what the device has of it is not to be touched any more.
        if (error instanceof HpcserveError && error.code === 'E_DEVICE_FAILED')
          this.#send({ type: 'device_failed', error: error.toJSON() });
        throw error;
      }
      if (performance.now() - turned_ms < turn_interval_ms) continue;
      await nextTurn();
      turned_ms = performance.now();
    }
    this.#moves.close();
    this.#rows.close();
    await this.#lifecycle.close();
    this.#stages.close();
  }

  /** Messages, then what is on its way, then one iteration; with nothing to do it sleeps. */
  #goRound(): void {
    // Read before the messages are: one that comes in between changes the word, and the wait ends at once.
    const seen = Atomics.load(this.#pulse, pulse.signal);
    this.#beat(pulseStates.computing);
    this.#takeMessages();
    if (this.#stopped) return;
    const served = this.#serveStages();
    this.#lifecycle.check();
    const chosen = this.#choose();
    const loading = this.#lifecycle.loads.any;
    // A file that hangs must not hang what is there: then only its own threads read it.
    const isNeeded = this.#models.has('serving') || this.#stages.areServing;
    this.#stages.advance(!chosen && !served && !isNeeded);
    if (loading) this.#lifecycle.loads.advance(!chosen && !isNeeded);
    const { refactorings } = this.#lifecycle;
    const refactoring = refactorings.any;
    // The pipeline that changes serves.
    if (refactoring) refactorings.advance(false);
    this.#leaving.advance();
    this.#lifecycle.tellWeights(!chosen && !loading);
    const profiling = this.#lifecycle.profiler.any;
    if (profiling && this.#profile()) return;
    if (chosen) this.#iterate(chosen);
    else if (profiling || served) return;
    // Also after the last load: requests may have waited for it.
    else if (refactoring) this.#sleep(seen, load_wait_ms);
    else if (loading || this.#stages.areLoading) this.#sleep(seen, this.#loadWait_ms());
    else if (this.#leaving.any) this.#sleep(seen, load_wait_ms);
    else this.#rest(seen);
  }

  /** Who helps with a load does not wait, and neighbours of a stage that come up wake this thread. */
  #loadWait_ms(): number {
    if (!this.#stages.areLoading && this.#lifecycle.loads.onlyWait) return stage_wait_ms;
    return this.#models.has('serving') || this.#stages.areServing ? load_wait_ms : 0;
  }

  /** What the models and stages do beside which another one loads: batches come at any time to a stage. */
  get #beside(): LoadBeside {
    return this.#stages.areServing ? 'busy' : this.#lifecycle.beside;
  }

  /**
   * While a coordinator waits for its pipeline. It is not stuck: a stage that is has a watchdog of its own, and one
   * that is silent breaks the ring.
   */
  #serveMeanwhile(): boolean {
    const served = this.#serveStages();
    if (!served) this.#beat(pulseStates.computing);
    return served;
  }

  #serveStages(): boolean {
    const served = this.#stages.serve();
    if (served) this.#beat(pulseStates.computing);
    return served;
  }

  /** Nothing is to be done until a message comes, or a model has been idle for long enough. */
  #rest(seen: number): void {
    this.#verify();
    const recycle_ms = this.#lifecycle.recycle();
    // What was suspended just now, too: nobody may wake this thread for long.
    this.#lifecycle.tellWeights(true);
    this.#beat(pulseStates.idle);
    this.#sleep(seen, recycle_ms);
  }

  #sleep(seen: number, ms: number | undefined): void {
    Atomics.wait(this.#pulse, pulse.signal, seen, ms);
  }

  /** What the schedule says; else an engine that has something to tell, or sequences that only it can begin. */
  #choose(): Chosen | undefined {
    const chosen = this.#schedule.choose(monotonic_ms());
    const model = chosen && this.#models.get(chosen.model);
    if (model?.hosted) return { model, hosted: model.hosted, plan: chosen!.plan };
    for (const other of this.#models)
      if (other.hosted?.engine.busy) return { model: other, hosted: other.hosted };
    return undefined;
  }

  /** Tells the watchdog that something new has begun. */
  #beat(state: number): void {
    Atomics.store(this.#pulse, pulse.state, state);
    Atomics.add(this.#pulse, pulse.beats, 1);
  }

  #takeMessages(): void {
    for (;;) {
      const received = receiveMessageOnPort(this.#port) as { message: ToCompute } | undefined;
      if (!received) return;
      this.#beat(received.message.type === 'load' ? pulseStates.loading : pulseStates.computing);
      this.#take(received.message);
    }
  }

  #take(message: ToCompute): void {
    switch (message.type) {
      case 'load':
        this.#load(message);
        break;
      case 'prepare':
        this.#prepare(message);
        break;
      case 'unprepare':
        this.#stages.unprepare(message.name, message.refactoring);
        break;
      case 'refactor':
        this.#lifecycle.refactor(message);
        break;
      case 'cancel_refactoring':
        this.#lifecycle.refactorings.cancel(message.name, message.because);
        break;
      case 'unload':
        this.#stages.unload(message.name);
        this.#lifecycle.unload(message.name);
        break;
      case 'leave':
        this.#lifecycle.leave(message.name, message.because);
        break;
      case 'submit':
        this.#submit(message.submission);
        break;
      case 'cancel':
        this.#cancel(message.model, message.id);
        break;
      case 'report':
        this.#send({ type: 'report', id: message.id, report: this.#report() });
        break;
      case 'kv':
        this.#answerKv(message.ask, message.asked);
        break;
      case 'rows_sent':
        this.#rows.sent(message.id, message.because);
        break;
      case 'tensors':
        this.#tellTensors(message.ask, message.asked);
        break;
      case 'manifest':
        if (this.#opened) this.#send({ type: 'manifest', models: this.#opened.manifest() });
        break;
      case 'learned':
        this.#learned(message.path);
        break;
      case 'stop':
        this.#stopped = true;
    }
  }

  #load(message: LoadMessage): void {
    const { pipeline } = message;
    if (pipeline && pipeline.stage > 0) this.#stages.load({ ...message, pipeline }, this.#beside);
    else this.#lifecycle.load(message);
  }

  #loaded(load: WeightLoad): void {
    const { model: name } = load;
    const because = describeLoad(load);
    this.#schedule.decisions.note({ kind: 'load', model: name, because });
    this.#send({ type: 'weights_loaded', name, loaded: weightSources(load), because });
  }

  /** What a stage of a pipeline holds here is not promised to models beside it. @param bytes 0: it is gone */
  #hold(stage: string, bytes: number): void {
    if (bytes > 0) this.#schedule.memory.hold(stage, bytes, this.#pool().memory.bytes);
    else this.#schedule.memory.letGo(stage);
  }

  #answerKv(ask: number, asked: KvAsk): void {
    switch (asked.do) {
      case 'read_rows':
      case 'reserve_rows':
      case 'commit_rows':
      case 'abort_rows':
        try {
          this.#send({ type: 'kv', ask, told: this.#rows.answer(asked) });
        } catch (error) {
          this.#send({ type: 'kv', ask, error: HpcserveError.from(error).toJSON() });
        }
        break;
      default:
        this.#moves.answer(ask, asked);
    }
  }

  #prepare({ refactoring, load }: ToCompute & { type: 'prepare' }): void {
    const { pipeline } = load;
    if (pipeline) this.#stages.prepare({ ...load, pipeline }, refactoring, this.#beside);
  }

  #submit(submission: Submission): void {
    const { id, model: name } = submission;
    const model = this.#models.get(name);
    const hosted = model?.hosted;
    try {
      if (model?.isAway) {
        this.#lifecycle.resume(model, submission);
        return;
      }
      if (!hosted)
        throw new HpcserveError('E_MODEL_NOT_READY', { what: `the model ${name} is not loaded any more` });
      this.#schedule.admit(submission, monotonic_ms());
      try {
        hosted.add(submission);
      } catch (error) {
        this.#schedule.cancelled(name, id, hosted.engine.progress(), monotonic_ms());
        throw error;
      }
      this.#schedule.sync(name, hosted.engine.progress(), monotonic_ms());
      this.#send({ type: 'admitted', id });
    } catch (error) {
      this.#send({ type: 'refused', id, error: HpcserveError.from(error).toJSON() });
    }
  }

  #cancel(name: string, id: number): void {
    const model = this.#models.get(name);
    if (model) this.#lifecycle.withdraw(model, id);
    this.#moves.cancelled(id);
    const hosted = model?.hosted;
    if (!hosted) return;
    hosted.cancel(id);
    this.#schedule.cancelled(name, id, hosted.engine.progress(), monotonic_ms());
  }

  /** One iteration of a model, and what came of it; one that throws takes its model out, and no other. */
  #iterate({ model, hosted, plan }: Chosen): void {
    // Others may have needed its room meanwhile.
    if (model.hosted !== hosted) return;
    const { name, engine } = hosted;
    const started_ms = performance.now();
    try {
      const report = this.#step(hosted, plan);
      const { prefill_tokens, decode_tokens, elapsed_us } = report;
      const stats = engine.stats();
      this.#keepPace(started_ms);
      const elapsed_ms = performance.now() - started_ms;
      // Without a plan it did whatever it had: that says nothing of how long anything takes.
      const done = { model: name, plan: plan ?? { decode: true, prefill_tokens: prefill_tokens + 1 } };
      this.#schedule.ended(done, report, engine.progress(), stats, elapsed_ms, monotonic_ms());
      const outputs = this.#withoutRefused(name, report.outputs);
      const compute_ms = this.#schedule.stepTime_ms(name, stats);
      this.#send({
        type: 'step',
        name,
        outputs,
        stats,
        compute_ms,
        prefill_tokens,
        decode_tokens,
        elapsed_us,
      });
      this.#lifecycle.tellProfiles();
    } catch (error) {
      this.#lifecycle.fail(model, error);
    }
  }

  /** Where KV is exhausted the schedule makes room, and the engine, which has done nothing yet, tries again. */
  #step(hosted: HostedEngine, plan: IterationPlan | undefined): ReturnType<HostedEngine['step']> {
    for (;;) {
      const report = hosted.step(plan);
      if (!report.kv_exhausted) return report;
      if (this.#moves.giveUp(hosted.name)) continue;
      this.#schedule.handleKvExhausted(hosted.name, report.kv_exhausted, monotonic_ms());
    }
  }

  /** One iteration of a model that is profiled, where others have time for it. @returns whether it was the last */
  #profile(): boolean {
    this.#beat(pulseStates.loading);
    const started_ms = performance.now();
    if (this.#lifecycle.profile()) return true;
    this.#keepPace(started_ms);
    return false;
  }

  /**
   * Intermediate results of graphs take memory of the pool that no budget counts, so that a request that was let in may
   * find none: it is told when to ask again, and a gateway asks another replica at once.
   */
  #withoutRefused(model: string, outputs: TokenOutput[]): TokenOutput[] {
    return outputs.filter(({ id, error, short_of_memory }) => {
      if (short_of_memory === undefined) return true;
      const told = new HpcserveError('E_POOL_FULL', {
        what: `${model} has no memory for this request now`,
        because: error ?? [],
        try: 'ask again after the seconds that Retry-After says, or give the device a larger pool (`sharing.pool_gb`)',
        details: { retry_after_s: this.#schedule.retryAfter_s(monotonic_ms()) },
      });
      this.#send({ type: 'refused', id, error: told.toJSON() });
      return false;
    });
  }

  #learned(path: string): void {
    try {
      this.#pool().adoptContents(path);
    } catch (error) {
      // A file that changed meanwhile is not the one whose tensors are here, and one that cannot be read says nothing
      // of them: they are found by file alone.
      if (!(error instanceof HpcserveError) && !isSystemError(error)) throw error;
    }
  }

  /** @throws HpcserveError E_POOL_INTEGRITY: the worker must not go on */
  #verify(): void {
    if (!this.#models.has('serving')) return;
    if (performance.now() - this.#verified_ms < verify_interval_ms) return;
    this.#verified_ms = performance.now();
    for (const { engine } of this.#models.engines) engine.verify();
    this.#pool().verify();
  }

  #report(): ScheduleReport {
    const report: ScheduleReport = {
      instances: this.#schedule.instances(monotonic_ms()),
      scheduler: this.#schedule.counted,
      view: this.#schedule.view(monotonic_ms(), (model) => this.#lifecycle.loadTime_ms(model)),
      decisions: this.#schedule.decisions.last,
      resting: this.#models.away,
    };
    if (this.#opened) report.pool = this.#opened.report();
    return report;
  }

  /**
   * For a peer that loads them, also where no model serves: a later stage serves nobody by itself, a first one may
   * wait for the others, and tensors stay when their model goes. Nothing moves or goes while they are read: this thread
   * alone changes the pool.
   */
  #tellTensors(ask: number, asked: TensorsAsk): void {
    const pool = this.#opened;
    if ('contents' in asked) {
      const held = pool?.heldContents(asked.contents) ?? [];
      this.#send({ type: 'tensors', ask, told: { held } });
      return;
    }
    const bytes = pool?.readContent(asked.range);
    this.#send({ type: 'tensors', ask, told: { bytes } }, bytes ? [bytes.buffer] : []);
  }

  #keepPace(started_ms: number): void {
    const left_ms = this.#step_ms_min - (performance.now() - started_ms);
    if (left_ms > 0) Atomics.wait(noSignal, 0, 0, left_ms);
  }

  #send(message: FromCompute | DeviceFailed, moved: ArrayBuffer[] = []): void {
    this.#port.postMessage(message, moved);
  }
}
