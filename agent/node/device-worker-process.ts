import { createHash } from 'node:crypto';
import { dirname, join } from 'node:path';
import { compiledFile } from '../../host/programs.ts';
import type { PipelineLayout } from '../../solver/refactoring/layout.ts';
import type { SharingSettings } from '../../solver/sharing/settings.ts';
import { isFull, type ModelLoad } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { concurrencyOf, type UnitSpec } from '../../spec/launch.ts';
import type { MovesReport } from '../../spec/moves-report.ts';
import type { SessionModel } from '../../spec/session-record.ts';
import type { SiteSharing } from '../../spec/sharing-settings.ts';
import type { ParkingFolder } from '../device-worker/compute/messages.ts';
import type { FromWorker, NativeModel, ToWorker } from '../device-worker/messages.ts';
import { lockIdentity } from '../devices/node-device.ts';
import type { RefactoringReport } from '../pipeline/live-refactoring.ts';
import type { WayNews } from '../pipeline/ring-messages.ts';
import type { GroupUnit } from './assign-devices.ts';
import { cacheFolder } from './cache-folder.ts';
import { Child, type ChildEnd } from './child.ts';
import { environmentFor } from './device-visibility.ts';
import { FrameNotices } from './frame-notices.ts';
import { answers, checkModelPath, oneLine, pendingModel } from './model-path.ts';
import { ModelReports } from './model-reports.ts';
import { ModelRestarts } from './model-restarts.ts';
import { nativeModel } from './native-model.ts';
import { parkingFolder } from './parking-folder.ts';
import { checkPool, plannedBeside_bytes, poolSize_bytes } from './pool-size.ts';
import type { ProcessContext, ProcessEnd, ServingProcess, Upstream } from './serving-process.ts';
import { isSpare } from './stage-place.ts';
import { areNews, type StageTimes, stageTimes } from './stage-times.ts';
import { type EndedWorker, exitedWorker, hungWorker, toldEnd } from './worker-end.ts';

type Received<K extends FromWorker['type']> = Extract<FromWorker, { type: K }>;

/** Built worker, whether the agent runs from dist/ or from the sources. */
const workerModule = compiledFile('agent/device-worker/main.js');

/**
 * A worker that says nothing for so many of its reporting intervals hangs (stopped, or stuck in a driver). Counted
 * in ticks of the agent's own timer, so that a job that was suspended as a whole, or a clock that jumps, is no hang.
 * Lower: requests fail over sooner; higher: tolerates busy nodes.
 */
const silent_ticks_max = 10;
/**
 * A request whose preparation holds up the worker was passed on so long before the worker's last words at most, by a
 * worker that was busy with others. Lower: it may not be found; higher: more that have nothing to do with it are named.
 */
const prepared_ms_max = 5000;
/** A worker that said it cannot go on is gone by then, or killed; one that hangs in the kernel is not waited for. */
const gone_ms = 500;
/** Least length of a tick. */
const tick_ms_min = 1000;
/** Before anything is served, libraries and vocabularies are read from filesystems that may be slow. */
const silent_start_ticks_max = 300;

/**
 * Size of V8's young generation, each of its two threads. Lower: less memory beside the model; higher: fewer
 * collections, which a thread that makes a few tokens a millisecond does not feel. With V8's own 16 a burst leaves 60
 * MB behind.
 */
const semi_space_mib = 2;

/** One device worker: the process that owns one device and runs the native engine for all native units on it. */
export class DeviceWorkerProcess implements ServingProcess {
  readonly engine = 'native';
  readonly log_file: string;
  readonly models: SessionModel[];
  readonly ended: Promise<ProcessEnd>;
  readonly model_errors = new Map<string, HpcserveError>();
  #kernels_left_out: readonly HpcserveError[] = [];
  /** What is less than it was to be, and takes nothing else away: the pool, the disk for KV. */
  readonly #lesser: HpcserveError[] = [];
  readonly #frame_notices = new FrameNotices();
  stage_times: StageTimes | undefined;
  engine_version: string | undefined;
  moves: MovesReport | undefined;
  upstream: Upstream | undefined;
  readonly #context: ProcessContext;
  readonly #child: Child;
  readonly #socket: string;
  /** Those of `models`. */
  readonly #units: GroupUnit[];
  readonly #reports = new ModelReports();
  readonly #restarts: ModelRestarts;
  #loads: ModelLoad[] = [];
  #fatal: HpcserveError | undefined;
  #stopping = false;
  #has_served = false;
  #silent_ticks = 0;
  #heard_ms = performance.now();
  #onFatal: () => void = () => undefined;
  #onStuck: (end: ProcessEnd) => void = () => undefined;
  /** Who waits for the end of a change of layout, by its number. */
  readonly #refactored = new Map<number, (end: Received<'refactored'> | ProcessEnd) => void>();
  readonly #onEnded = new Set<() => void>();
  #end: ProcessEnd | undefined;

  constructor(context: ProcessContext) {
    this.#context = context;
    this.log_file = context.log_file;
    this.#units = context.group.units.filter(answers);
    this.models = this.#units.map(pendingModel);
    this.#restarts = new ModelRestarts({
      log: context.log,
      environment: context.environment,
      load: (name) => this.#loadAgain(name),
    });
    this.#socket = join(context.runtime_folder, 'worker.sock');
    this.#child = new Child({
      argv: [process.execPath, `--max-semi-space-size=${semi_space_mib}`, workerModule],
      env: environmentFor(context.group.devices, context.environment),
      log_file: context.log_file,
      guard: context.guard,
      ipc: true,
      memory_limit_bytes: context.memory_limit_bytes,
    });
    this.#child.process.on('message', (message) => {
      this.#silent_ticks = 0;
      this.#heard_ms = performance.now();
      this.#receive(message as FromWorker);
    });
    this.ended = Promise.race([
      this.#child.ended.then((end) => this.#conclude(end)),
      this.#untilSilent(),
      this.#untilFatal(),
      new Promise<ProcessEnd>((resolve) => {
        this.#onStuck = resolve;
      }),
    ]);
    void this.ended.then((end) => this.#tellEnd(end));
    this.#send(configurationOf(context, this.#socket, this.#parking()));
  }

  /**
   * What has waited for `ended` is kept as long as the process lives: what comes and goes meanwhile listens here.
   * @returns takes the listener away
   */
  onEnded(listener: () => void): () => void {
    if (this.#end) listener();
    else this.#onEnded.add(listener);
    return () => this.#onEnded.delete(listener);
  }

  #tellEnd(end: ProcessEnd): void {
    this.#end = end;
    this.#restarts.close();
    for (const resolve of this.#refactored.values()) resolve(end);
    for (const listener of this.#onEnded) listener();
    this.#refactored.clear();
    this.#onEnded.clear();
  }

  get notices(): readonly HpcserveError[] {
    return [...this.#kernels_left_out, ...this.#lesser, ...this.#frame_notices.all];
  }

  #parking(): ParkingFolder | undefined {
    try {
      return parkingFolder(this.#context.sharing ?? {}, this.#context.environment);
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      this.#noteLesser(error);
      return undefined;
    }
  }

  #noteLesser(notice: HpcserveError): void {
    this.#lesser.push(notice);
    this.#warn(notice);
  }

  #noteFrames(news: WayNews): void {
    const { changed, added } = this.#frame_notices.take(news);
    if (added) this.#warn(added);
    if (changed) this.#context.onChange();
  }

  #warn(notice: HpcserveError): void {
    this.#context.log.warn({ error: notice.toJSON() }, notice.message);
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  get layouts(): ModelReports['layouts'] {
    return this.#reports.layouts;
  }

  get loaded(): ModelReports['loaded'] {
    return this.#reports.loaded;
  }

  get streamed(): ModelReports['streamed'] {
    return this.#reports.streamed;
  }

  loads(): ModelLoad[] {
    const known = new Map(this.#loads.map((load) => [load.name, load]));
    return this.models.map((model, index) => ({
      ...(known.get(model.name) ?? emptyLoad(this.#units[index]!)),
      name: model.name,
      state: model.state,
    }));
  }

  nextTry_ms(model: string): number | undefined {
    return this.#restarts.nextTry_ms(model);
  }

  drain(): void {
    this.#restarts.close();
    for (const model of this.models) if (model.state === 'serving') model.state = 'draining';
    this.#send({ type: 'drain' });
  }

  async stop(grace_ms: number): Promise<void> {
    this.#stopping = true;
    this.#restarts.close();
    // One that has not come to itself has nothing to bring to an end, and would read this when it has.
    if (this.upstream === undefined) {
      this.#child.kill();
      this.#settle(await this.#child.gone());
      await this.ended;
      return;
    }
    this.#send({ type: 'stop' });
    let timer: NodeJS.Timeout | undefined;
    const patience = new Promise<'late'>((resolve) => {
      timer = setTimeout(() => resolve('late'), grace_ms);
    });
    const outcome = await Promise.race([this.ended, patience]);
    clearTimeout(timer);
    if (outcome === 'late') this.#settle(await this.#child.stop(1000));
  }

  /** One that does not end by SIGKILL hangs in the kernel: who waits for its end waits no longer. */
  #settle(has_ended: boolean): void {
    if (!has_ended) this.#onStuck({ restartable: false, gone: Promise.resolve(false), fatal: 'process' });
  }

  /** Its agent's own folder, of all starts. */
  get folder(): string {
    return dirname(this.#context.runtime_folder);
  }

  /** A layout of a unit is to come in which its stage here is that of `next`. */
  prepare(refactoring: number, next: GroupUnit): void {
    this.#send({ type: 'prepare', refactoring, model: this.#modelOf(next) });
  }

  /** That layout does not come. */
  unprepare(refactoring: number, name: string): void {
    this.#send({ type: 'unprepare', refactoring, name });
  }

  /**
   * The pipeline whose first stage is here changes its layout. @returns what came of it
   * @throws HpcserveError E_REFACTOR_*, E_STAGE_LOST
   */
  async refactor(refactoring: number, to: PipelineLayout, next: GroupUnit): Promise<RefactoringReport> {
    const told = new Promise<Received<'refactored'> | ProcessEnd>((resolve) => {
      if (this.#end) resolve(this.#end);
      else this.#refactored.set(refactoring, resolve);
    });
    this.#send({ type: 'refactor', refactoring, to, model: this.#modelOf(next) });
    const end = await told;
    if ('type' in end) {
      if (end.report) return end.report;
      throw HpcserveError.fromJSON(end.error!);
    }
    throw new HpcserveError('E_STAGE_LOST', {
      what: `the device worker that has the requests of ${next.model.name} ended while its stages changed`,
      because: end.error?.message ?? 'it was told to',
    });
  }

  cancelRefactoring(name: string, because: string): void {
    this.#send({ type: 'cancel_refactoring', name, because });
  }

  /** Nothing of the model is needed here any more. */
  unload(name: string): void {
    this.#restarts.forget(name);
    this.#send({ type: 'unload', name });
    this.#frame_notices.clear();
  }

  /** The model is loaded anew, as its unit says; one that has not come to itself loads what its group has by then. */
  reload(unit: GroupUnit): void {
    if (this.upstream === undefined) return;
    this.unload(unit.model.name);
    this.#load(unit);
  }

  #send(message: ToWorker): void {
    // A worker that is gone is dealt with when its end is noticed.
    if (this.#child.process.connected) this.#child.process.send(message, () => undefined);
  }

  #receive(message: FromWorker): void {
    switch (message.type) {
      case 'listening':
        this.engine_version = message.library_version;
        this.upstream = { kind: 'socket', path: this.#socket };
        for (const unit of this.#context.group.units) if (!isSpare(unit)) this.#load(unit);
        // One that has nothing to load is there from now on.
        this.#context.onChange();
        break;
      case 'progress':
        this.#loaded(message);
        break;
      case 'model':
        this.#modelChanged(message);
        break;
      case 'weights_loaded':
        this.#reports.takeLoaded(message);
        this.#context.onChange();
        break;
      case 'kernels_left_out':
        this.#kernels_left_out = message.errors.map((error) => HpcserveError.fromJSON(error));
        for (const notice of this.#kernels_left_out) this.#warn(notice);
        this.#context.onChange();
        break;
      case 'pool_cut':
        this.#noteLesser(HpcserveError.fromJSON(message.error));
        this.#context.onChange();
        break;
      case 'frames':
        this.#noteFrames(message.news);
        break;
      case 'load_report':
        this.#takeLoads(message.models);
        break;
      case 'moves':
        this.moves = message.report;
        this.#context.onChange();
        break;
      case 'refactored':
        this.#refactored.get(message.refactoring)?.(message);
        this.#refactored.delete(message.refactoring);
        break;
      case 'drained':
        break; // the agent counts what it passed on itself
      case 'fatal':
        this.#fatal = HpcserveError.fromJSON(message.error);
        this.#onFatal();
        break;
    }
  }

  #loaded({ name, bytes_loaded, bytes_total, elapsed_ms }: Received<'progress'>): void {
    if (!this.models.some((model) => model.name === name)) return;
    const change: Partial<SessionModel> = { state: 'loading', bytes_loaded, bytes_total };
    if (elapsed_ms > 0) change.load_bytes_per_s = Math.round((1000 * bytes_loaded) / elapsed_ms);
    this.#update(name, change);
  }

  #modelChanged(message: Received<'model'>): void {
    const { name, state, precision, error } = message;
    if (state === 'serving') {
      this.#has_served = true;
      this.#restarts.serves(name);
    }
    if (state === 'failed') this.#restarts.failed(name);
    else this.#restarts.forget(name);
    this.#reports.take(message);
    const change: Partial<SessionModel> = { state };
    if (precision !== undefined) change.precision = precision;
    if (error !== undefined) change.error = oneLine(error.what);
    if (error) this.model_errors.set(name, HpcserveError.fromJSON(error));
    else this.model_errors.delete(name);
    this.#update(name, change);
  }

  #takeLoads(loads: ModelLoad[]): void {
    const full = (all: ModelLoad[]) => all.map((load) => `${load.name} ${isFull(load)}`).join();
    const changed = full(loads) !== full(this.#loads);
    this.#loads = loads;
    if (changed) this.#context.onFullness();
    let news = this.#reports.measured(loads);
    const times = stageTimes(loads);
    if (areNews(this.stage_times, times)) {
      this.stage_times = times;
      news = true;
    }
    if (news) this.#context.onChange();
  }

  #load(unit: GroupUnit): void {
    try {
      checkModelPath(unit);
      checkPool(unit, this.#context);
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      this.#context.log.error({ unit: unit.unit, error: error.toJSON() }, error.message);
      this.model_errors.set(unit.model.name, error);
      this.#restarts.failed(unit.model.name);
      this.#update(unit.model.name, { state: 'failed', error: oneLine(error.message) });
      return;
    }
    this.#send({ type: 'load', model: this.#modelOf(unit) });
    const change: Partial<SessionModel> = { state: 'loading' };
    if (unit.model.weights !== 'streamed') {
      change.bytes_loaded = 0;
      change.bytes_total = unit.weight_bytes;
    }
    this.#update(unit.model.name, change);
  }

  /** Of what its group has on this device by then. */
  #loadAgain(name: string): void {
    const unit = this.#context.group.units.find((each) => each.model.name === name && !isSpare(each));
    if (!unit) return;
    if (answers(unit)) this.#load(unit);
    else this.reload(unit);
  }

  #modelOf(unit: GroupUnit): NativeModel {
    return nativeModel(unit, this.#context, describeDevices(this.#context));
  }

  #update(name: string, change: Partial<SessionModel>): void {
    const index = this.models.findIndex((model) => model.name === name);
    // A later stage is none of them: of it only its error is known.
    if (index >= 0) this.models[index] = { ...this.models[index]!, ...change };
    this.#context.onChange();
  }

  #conclude(end: ChildEnd): ProcessEnd {
    this.upstream = undefined;
    if (this.#stopping) return { restartable: false };
    return exitedWorker(end, this.#ending(), this.#fatal);
  }

  #ending(): EndedWorker {
    return {
      devices: describeDevices(this.#context),
      log_file: this.log_file,
      has_served: this.#has_served,
    };
  }

  /** Kills it. One that hangs in the kernel may not end by that, so its session is over without waiting for it. */
  #killed(end: ProcessEnd): ProcessEnd {
    this.upstream = undefined;
    this.#child.kill();
    return { ...end, gone: this.#child.gone() };
  }

  /** Resolves where the worker said that it cannot go on and is not gone soon after. */
  #untilFatal(): Promise<ProcessEnd> {
    return new Promise((resolve) => {
      this.#onFatal = () => {
        setTimeout(() => {
          if (!this.#child.alive) return;
          resolve(this.#killed(toldEnd(this.#fatal!, this.#child.log.tail(), this.#ending())));
        }, gone_ms).unref();
      };
    });
  }

  /** Ids of the requests that it may have been working on when it fell silent: those that came later it never read. */
  #beingPrepared(tick_ms: number): string[] {
    return [...this.#context.traffic.unanswered].flatMap(({ id, passed_ms }) => {
      if (id === '' || passed_ms === undefined) return [];
      const before_ms = this.#heard_ms - passed_ms;
      return before_ms <= prepared_ms_max && before_ms >= -tick_ms ? [id] : [];
    });
  }

  /** Resolves where the worker lives and is silent. */
  #untilSilent(): Promise<ProcessEnd> {
    const tick_ms = Math.max(tick_ms_min, this.#context.heartbeat_ms);
    return new Promise((resolve) => {
      const timer = setInterval(() => {
        if (!this.#child.alive) return clearInterval(timer);
        const limit = this.#has_served ? silent_ticks_max : silent_start_ticks_max;
        if (++this.#silent_ticks <= limit || this.#stopping) return;
        clearInterval(timer);
        const error = new HpcserveError('E_REPLICA_SILENT', {
          what: `the device worker of ${describeDevices(this.#context)} does not answer any more and was killed`,
          because: `it has said nothing for ${Math.round((limit * tick_ms) / 1000)} s`,
          details: { log_file: this.log_file, pid: this.pid, requests: this.#beingPrepared(tick_ms) },
        });
        resolve(this.#killed(hungWorker(error, this.#child.log.tail(), this.#ending())));
      }, tick_ms);
      timer.unref();
    });
  }
}

function configurationOf(
  context: ProcessContext,
  socket_path: string,
  parking: ParkingFolder | undefined,
): ToWorker {
  const { group, library_dir, peers_socket, step_ms_min, sharing } = context;
  const message: Extract<ToWorker, { type: 'configure' }> = {
    type: 'configure',
    socket_path,
    threads: group.threads,
    pool_bytes: poolSize_bytes(context),
    cores: group.cores?.slice(),
    heartbeat_ms: context.heartbeat_ms,
    cache_dir: cacheFolder(context.environment),
    device: describeDevices(context),
    // Slurm signals the worker together with the agent: both then give running answers the same time.
    limits: {
      drain_ms: context.drain_ms,
      stall_ms: 1000 * Math.min(...group.units.map(({ model }) => model.timeouts.stall_s)),
    },
  };
  const arena_bytes = Math.max(0, ...group.units.map(({ memory }) => memory?.arena_bytes ?? 0));
  if (arena_bytes > 0) message.arena_bytes = arena_bytes;
  const resident_bytes = group.units.reduce((sum, { memory }) => sum + (memory?.resident_bytes ?? 0), 0);
  if (resident_bytes > 0) {
    message.resident_bytes = resident_bytes;
    if (group.units.every(({ memory }) => memory !== undefined))
      message.beside_bytes = plannedBeside_bytes(group.units);
  }
  const manifest_file = manifestOf(context);
  if (manifest_file !== undefined) message.manifest_file = manifest_file;
  if (library_dir !== undefined) message.library_dir = library_dir;
  const [device] = group.devices;
  if (device?.ggml_device !== undefined) {
    message.ggml_device = device.ggml_device;
    message.device_identity = lockIdentity(device)!;
  }
  if (parking) message.parking = parking;
  if (peers_socket !== undefined) message.peers_socket = peers_socket;
  if (context.moves) message.moves = { ...context.moves, session_id: context.session_id };
  if (step_ms_min !== undefined) message.step_ms_min = step_ms_min;
  if (sharing) message.sharing = sharingOf(sharing);
  return message;
}

/** What a site says, in the words of the solver. */
function sharingOf({
  keep_alive_s,
  pool_gb: _,
  peer_loads: __,
  parking_dir: ___,
  parking_gb: ____,
  ...same
}: SiteSharing): Partial<SharingSettings> {
  const told = Object.entries(same).filter(([, value]) => value !== undefined);
  const settings = Object.fromEntries(told) as Partial<SharingSettings>;
  if (keep_alive_s !== undefined) settings.keep_alive_ms = 1000 * keep_alive_s;
  return settings;
}

/** One for all workers of the deployment with the same models: whichever node its successor is on, it finds it. */
function manifestOf({ manifest_folder, group }: ProcessContext): string | undefined {
  if (manifest_folder === undefined) return undefined;
  const names = [...new Set(group.units.map(({ model }) => model.name))].sort();
  const hash = createHash('sha256').update(JSON.stringify(names)).digest('hex');
  return join(manifest_folder, `${hash.slice(0, 16)}.json`);
}

function describeDevices({ group }: ProcessContext): string {
  const names = group.devices.map(({ description }) => {
    return description.emulated ? `${description.model} (emulated)` : description.model;
  });
  return names.length > 0 ? names.join(' + ') : 'the node';
}

export function emptyLoad(unit: UnitSpec): ModelLoad {
  return {
    name: unit.model.name,
    state: 'pending',
    running: 0,
    waiting: 0,
    max_sequences: concurrencyOf(unit),
    kv_tokens_total: unit.kv_tokens,
    kv_tokens_used: 0,
  };
}
