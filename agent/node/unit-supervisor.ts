import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { type CurrentDelegation, LocalSession, type Registry } from '../../mesh/index.ts';
import type { ModelLoad, SessionState } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { SessionMetadata, SessionModel } from '../../spec/session-record.ts';
import type { SleepReport } from '../../spec/sleep-report.ts';
import { clientPaths } from '../../spec/wire.ts';
import { adapterOf } from '../adapters/index.ts';
import { EnergyMeter } from '../devices/energy-meter.ts';
import type { BlockReader } from '../kv-events/block-feed.ts';
import { AnswerPace } from './answer-pace.ts';
import { AnswerTimes } from './answer-times.ts';
import type { UnitGroup } from './assign-devices.ts';
import { DeviceWorkerProcess } from './device-worker-process.ts';
import { EngineProcess } from './engine-process.ts';
import { EngineRank } from './engine-rank.ts';
import { failedUnits, toldModels, wantedUnits } from './failed-units.ts';
import { failureReport, shipFailure } from './failure-report.ts';
import { answers, oneLine, pendingModel } from './model-path.ts';
import type { HandOver } from './proxy.ts';
import { unitReasons } from './reasons.ts';
import { type RequestDeadlines, requestDeadlines } from './request-deadlines.ts';
import { pausesBesideOthers, RestartPolicy } from './restart-policy.ts';
import { removeRuntimeFolder } from './runtime-folder.ts';
import type { ProcessContext, ProcessEnd, ServingProcess, Traffic } from './serving-process.ts';
import { SessionNews, type UnitNews } from './session-news.ts';
import { stagesOf } from './stage-place.ts';
import type { Waking } from './waking.ts';

/**
 * Slurm signals all processes of a step at once: a child may be seen to end a moment before the agent's own
 * SIGTERM arrives. So long an orderly end is not yet a failure.
 */
const shared_signal_ms = 300;

/**
 * Between two writes of the agent's state because of what prefix caches found. Lower: `status` is nearer to the truth;
 * higher: less is written to the shared filesystem.
 */
const prefix_cache_ms = 30_000;
/** Time to put a failure report onto a shared filesystem, which may hang: the agent leaves all the same. */
const ship_ms = 5000;
/** What is done with bodies before a wrapped engine gets them. */
export interface BodyRules {
  /** Hosts from which it may fetch what requests name. */
  media_domains: readonly string[];
  takes_cache_salt: boolean;
}

export interface SupervisorOptions
  extends Omit<
    ProcessContext,
    'onChange' | 'onFullness' | 'onStalled' | 'runtime_folder' | 'session_id' | 'traffic'
  > {
  registry: Registry;
  delegation: CurrentDelegation;
  /** What all sessions of this agent have in common. */
  metadata: Omit<SessionMetadata, 'role' | 'devices' | 'models' | 'unit' | 'engine'>;
  /** Beginning of the path of each start's folder, unique on the node. */
  runtime_folder: string;
  /** Where to report why it was given up. */
  failure_file: string;
  onChange(): void;
  /** See `lostUnits`. */
  lostUnits(): ReadonlyMap<string, HpcserveError>;
  /** The device failed under this unit: nothing else on it may go on. */
  onDeviceFailed(error: HpcserveError): void;
}

/**
 * One serving unit over time: a process, the session that stands for it, and the next process where one ended.
 * A session's lifecycle never goes back, so each start is a session of its own: the end of a process is seen at
 * once as DOWN, and what comes after it has a new id.
 */
export class UnitSupervisor {
  readonly name: string;
  readonly #options: SupervisorOptions;
  #restarts = new RestartPolicy();
  /** After it was given up. */
  readonly #later: RestartPolicy;
  /** When that is, Unix ms. */
  #next_try_ms: number | undefined;
  readonly #stopped = new AbortController();
  /** Ends a pause before the next start: that the agent stops, or that there is to be none. */
  readonly #interrupted = new AbortController();
  /** Why it must not go on, though it would. */
  #permanentFailure: HpcserveError | undefined;
  readonly #reasons = new Map<string, boolean>();
  readonly traffic: Traffic = {
    in_flight: 0,
    passed: 0,
    streams: 0,
    answer_bytes: 0,
    pace: new AnswerPace(),
    times: new AnswerTimes(),
    unanswered: new Set(),
  };
  #energy: EnergyMeter | undefined;
  #session: LocalSession | undefined;
  #process: ServingProcess | undefined;
  #error: HpcserveError | undefined;
  /** Between the end of a process and the next start, or for good. */
  #ended = false;
  #given_up = false;
  #draining = false;
  #starts = 0;
  readonly #hand_overs = new Set<HandOver>();
  #idle: (() => void)[] = [];
  readonly #news: SessionNews;
  #running: Promise<void> = Promise.resolve();
  readonly #watchers = new Set<() => void>();
  readonly #endings = new Set<(error: HpcserveError) => void>();

  constructor(options: SupervisorOptions) {
    this.#options = options;
    this.name = options.group.name;
    this.#later = pausesBesideOthers(options.environment);
    this.#news = new SessionNews(() => this.#toTell(), options.log);
  }

  get session(): LocalSession | undefined {
    return this.#session;
  }

  /** The group of the device whose worker it looks after. */
  get group(): UnitGroup {
    return this.#options.group;
  }

  /** What its devices take. */
  get energy(): EnergyMeter {
    if (!this.#energy) {
      this.#energy = new EnergyMeter(this.group.devices.map(({ description }) => description));
      const { because } = this.#energy;
      const facts = { unit: this.name, because };
      this.#options.log.info(facts, because === undefined ? 'energy is measured' : 'energy is not measured');
    }
    return this.#energy;
  }

  /** Its device worker, while that lives. */
  get worker(): DeviceWorkerProcess | undefined {
    return !this.#ended && this.#process instanceof DeviceWorkerProcess ? this.#process : undefined;
  }

  /** What is on its device has changed. */
  changed(): void {
    this.#options.onChange();
  }

  get upstream(): ServingProcess['upstream'] {
    return this.#process?.upstream;
  }

  /** See `ServingProcess.wake`. */
  wake(isCertain: boolean): Waking | undefined {
    return this.#process?.wake?.(isCertain);
  }

  get draining(): boolean {
    return this.#draining;
  }

  get models(): readonly SessionModel[] {
    const own = this.#process?.models ?? this.#pendingModels();
    return toldModels(this.group, own, this.#options.lostUnits);
  }

  get error(): HpcserveError | undefined {
    return this.#error;
  }

  /** Why single models failed on a process that lives. */
  get model_errors(): ReadonlyMap<string, HpcserveError> {
    return this.#process?.model_errors ?? new Map();
  }

  /** What is wrong with the process that lives, and does not stop it. */
  get notices(): readonly HpcserveError[] {
    return this.#ended ? [] : (this.#process?.notices ?? []);
  }

  /** Its process is not started again, or only after a while; see `pausesBesideOthers`. */
  get given_up(): boolean {
    return this.#given_up;
  }

  /** Units that do not come to serve any more: its process is given up, or lives without their models or stages. */
  get failed_units(): string[] {
    if (this.#given_up) return wantedUnits(this.group).map(({ unit }) => unit);
    return this.#ended ? [] : failedUnits(this.group, this.#process?.models ?? [], this.model_errors);
  }

  /** Resolves when the first process was started, or never will be; what becomes of it is told by `onChange`. */
  start(): Promise<void> {
    return new Promise((resolve) => {
      this.#onStarted = resolve;
      this.#running = this.#run().finally(resolve);
    });
  }
  #onStarted: () => void = () => undefined;

  loads(): ModelLoad[] {
    const { models } = this;
    const loads = this.#process?.loads(this.traffic.in_flight) ?? [];
    for (const load of loads) load.state = models.find(({ name }) => name === load.name)?.state ?? load.state;
    return loads;
  }

  /** Undefined where its engine does not serve, or never sleeps. */
  sleepReport(): SleepReport | undefined {
    return this.#process?.sleepReport?.();
  }

  state(): SessionState {
    const failed = [...this.model_errors].map(([name, error]) => [name, error.toJSON()] as const);
    const error = this.#error ?? this.model_errors.values().next().value;
    const { group } = this.#options;
    const state: SessionState = {
      session_id: this.#session?.id ?? '',
      role: this.#role(),
      unit: this.name,
      units: group.units.filter(answers).map((unit) => unit.unit),
      stages: stagesOf(group),
      devices: group.devices.map(({ description }, at) => ({
        index: group.first_device + at,
        ...description,
      })),
      engine: group.engine,
      models: this.models.map((model) => ({ ...model })),
      cores: group.cores,
      log_file: this.#options.log_file,
      limits: this.#process?.limits,
      layouts: this.#process?.layouts,
      loaded: this.#process?.loaded,
      streamed: this.#process?.streamed,
      stage_times: this.#process?.stage_times,
      host_bytes: this.#process?.host_bytes,
      asleep: this.#process?.asleep,
      turns: this.#process?.turns,
      moves: this.#process?.moves,
      prefix_caches: this.#prefixCaches(),
    };
    if (this.#process?.pid !== undefined && !this.#ended) state.pid = this.#process.pid;
    if (error !== undefined) state.error = error.toJSON();
    if (failed.length > 0) state.model_errors = Object.fromEntries(failed);
    const tries = this.#nextTries();
    if (tries.length > 0) state.next_tries_ms = Object.fromEntries(tries);
    return state;
  }

  #nextTries(): [unit: string, at_ms: number][] {
    return this.failed_units.flatMap((unit) => {
      const { name } = this.group.units.find((each) => each.unit === unit)!.model;
      const at_ms = this.#given_up ? this.#next_try_ms : this.#process?.nextTry_ms?.(name);
      return at_ms === undefined ? [] : [[unit, at_ms]];
    });
  }

  /** What its engine's cache holds, for one who watches; undefined where it does not say. */
  blockReader(): BlockReader | undefined {
    return this.#process?.blocks?.reader();
  }

  #prefixCaches(): SessionState['prefix_caches'] {
    const said = this.loads().flatMap(({ name, prefix_cache }) =>
      prefix_cache === undefined ? [] : [[name, prefix_cache] as const],
    );
    return said.length === 0 ? undefined : Object.fromEntries(said);
  }

  /** Has the agent's state written where its caches were asked since it was last. */
  #followPrefixCaches(): () => void {
    let told = '';
    const timer = setInterval(() => {
      const now = JSON.stringify(this.#prefixCaches() ?? {});
      if (now === told) return;
      told = now;
      this.#options.onChange();
    }, prefix_cache_ms);
    timer.unref();
    return () => clearInterval(timer);
  }

  /** How long an answer of a model may take. */
  deadlines(name: string): RequestDeadlines {
    const unit = this.#options.group.units.find(({ model }) => model.name === name)!;
    return requestDeadlines(unit.model.timeouts, () => this.#unitReasons(unit));
  }

  /** Where its engine spells tokens; undefined where it does not. */
  get detokenize_path(): string | undefined {
    const { engine } = this.#options.group;
    return engine === 'native' ? clientPaths.detokenize : adapterOf(engine).detokenize_path;
  }

  /** Where its engine tells tokens of texts; undefined where it does not. */
  get tokenize_path(): string | undefined {
    const { engine } = this.#options.group;
    return engine === 'native' ? clientPaths.tokenize : adapterOf(engine).tokenize_path;
  }

  /** Undefined where its engine gets bodies as they come: the native one reads them itself. */
  bodyRules(name: string): BodyRules | undefined {
    const { engine, model } = this.#options.group.units.find((unit) => unit.model.name === name)!;
    if (engine === 'native') return undefined;
    return {
      media_domains: model.remote_media.domains,
      takes_cache_salt: adapterOf(engine).takes_cache_salt ?? false,
    };
  }

  /** Looked up once: the model is being served, so it can be read. */
  #unitReasons(unit: UnitSpec): boolean {
    const known = this.#reasons.get(unit.model.name);
    if (known !== undefined) return known;
    let reasons = false;
    try {
      reasons = unitReasons(unit);
    } catch (error) {
      this.#options.log.warn(
        { unit: unit.unit, error: (error as Error).message },
        'whether the model reasons cannot be told; taken for one that does not',
      );
    }
    this.#reasons.set(unit.model.name, reasons);
    return reasons;
  }

  /** Its device failed under another unit: it ends at once, and for good. */
  failPermanently(error: HpcserveError): void {
    if (this.#stopped.signal.aborted) return;
    this.#permanentFailure ??= error;
    this.#interrupted.abort();
    if (!this.#given_up) void this.#process?.stop(0);
  }

  /** Counts a request in; the result counts it out. */
  enter(): () => void {
    this.traffic.in_flight++;
    let counted = true;
    return () => {
      if (!counted) return;
      counted = false;
      if (--this.traffic.in_flight === 0) for (const done of this.#idle.splice(0)) done();
    };
  }

  /** Runs where a drain ends before an answer does; returns its removal. */
  onHandOver(callback: HandOver): () => void {
    this.#hand_overs.add(callback);
    return () => this.#hand_overs.delete(callback);
  }

  /** Runs where loads are to be told before the next heartbeat; returns its removal. */
  onFullness(callback: () => void): () => void {
    this.#watchers.add(callback);
    return () => this.#watchers.delete(callback);
  }

  /** Runs when the current session ends (its watchers' streams are closed then), with why; returns its removal. */
  onSessionEnd(callback: (error: HpcserveError) => void): () => void {
    this.#endings.add(callback);
    return () => this.#endings.delete(callback);
  }

  /**
   * No new requests; resolves when the running ones have ended. Those that have not after `grace_ms` are handed
   * over: their streams end with an error event that tells gateways to go on elsewhere. Announced as DOWN.
   */
  async drain(grace_ms: number): Promise<void> {
    this.#draining = true;
    this.#process?.drain();
    await this.#session?.update({ lifecycle: 'DOWN', metadata: { models: [...this.models] } });
    this.#options.onChange();
    if (this.traffic.in_flight === 0) return;
    const cancel = new AbortController();
    await Promise.race([
      new Promise<void>((resolve) => {
        this.#idle.push(resolve);
      }),
      delay(grace_ms, undefined, { signal: cancel.signal }),
    ]);
    cancel.abort();
    const error = new HpcserveError('E_AGENT_NOT_READY', {
      what: `the unit ${this.name} ends before this answer`,
      because: 'its job ends or its node is drained',
    });
    for (const handOver of [...this.#hand_overs]) handOver(error);
  }

  /** Ends the process and leaves the mesh. */
  async stop(grace_ms: number): Promise<void> {
    this.#draining = true;
    this.#stopped.abort();
    this.#interrupted.abort();
    await this.#process?.stop(grace_ms);
    await this.#running;
    for (const model of this.#process?.models ?? []) if (model.state !== 'failed') model.state = 'unloaded';
    await this.#session?.leave();
    this.#options.onChange();
  }

  async #run(): Promise<void> {
    const { log } = this.#options;
    while (!this.#stopped.signal.aborted) {
      const ended = await this.#runOnce().catch(
        // A full disk, say, or no memory for another process: it is this unit's failure, and of no other.
        (error: unknown): ProcessEnd => ({ error: HpcserveError.from(error), restartable: false }),
      );
      const end = this.#permanentFailure ? { error: this.#permanentFailure, restartable: false } : ended;
      this.#ended = true;
      if (this.#stopped.signal.aborted || !end.error) break;
      if (end.orderly && this.#draining) {
        log.info({ unit: this.name }, 'it ended with the job');
        break;
      }
      await this.#failed(end.error);
      const is_gone = await this.#untilGone(end);
      const again = end.restartable && is_gone && !this.#draining;
      const pause_ms = again ? this.#restarts.next(performance.now()) : undefined;
      if (pause_ms === undefined) {
        await this.#giveUp(is_gone ? end : { ...end, fatal: 'process' });
        if (!is_gone || !(await this.#untilLater(end))) break;
      } else {
        log.warn({ unit: this.name, pause_ms }, 'it is started again after a pause');
        this.#options.onChange();
        await this.#pause(pause_ms);
      }
      if (this.#permanentFailure) {
        await this.#failed(this.#permanentFailure);
        await this.#giveUp({ error: this.#permanentFailure, restartable: false });
        break;
      }
      await this.#session?.leave();
    }
    this.#options.onChange();
  }

  /**
   * It was given up. Where others live, it is tried again a good while later.
   * @returns whether it is now; not where its device failed, nor where it is a part of a replica on several nodes
   */
  async #untilLater({ fatal }: ProcessEnd): Promise<boolean> {
    if (fatal === 'device' || this.#permanentFailure || this.#options.place || this.#draining) return false;
    const pause_ms = this.#later.next(performance.now())!;
    this.#next_try_ms = Date.now() + pause_ms;
    // Where no other unit lives, the agent ends at this.
    this.#options.onChange();
    if (this.#stopped.signal.aborted) return false;
    this.#options.log.warn(
      { unit: this.name, pause_ms },
      'where others live, it is tried again after a long pause',
    );
    await this.#pause(pause_ms);
    if (this.#stopped.signal.aborted || this.#permanentFailure || this.#draining) return false;
    this.#next_try_ms = undefined;
    this.#given_up = false;
    this.#restarts = new RestartPolicy();
    return true;
  }

  async #pause(pause_ms: number): Promise<void> {
    await delay(pause_ms, undefined, { signal: this.#interrupted.signal }).catch(() => undefined); // interrupted
  }

  /** Whether nothing of the last process has its device any more. */
  async #untilGone({ gone }: ProcessEnd): Promise<boolean> {
    if (!gone) return true;
    const { signal } = this.#interrupted;
    if (signal.aborted) return true;
    // Whoever interrupts wants no further start, and so need not know.
    const is_gone = await Promise.race([gone, once(signal, 'abort').then(() => true)]);
    if (!is_gone) this.#options.log.error({ unit: this.name }, 'its process has not ended by SIGKILL');
    return is_gone;
  }

  async #failed(error: HpcserveError): Promise<void> {
    this.#error = error;
    this.#options.log.error({ unit: this.name, error: error.toJSON() }, error.message);
    await this.#announceEnd(error);
  }

  /** No further start. What is known of it is on disk before the agent may leave. */
  async #giveUp(end: ProcessEnd): Promise<void> {
    const { log, failure_file, log_file, metadata } = this.#options;
    const of = { node: metadata.node, unit: this.name, session_id: this.#session?.id ?? '', log_file };
    const report = failureReport(end, of);
    const ship = shipFailure(failure_file, report).catch((error: unknown) =>
      log.error({ failure_file, error: String(error) }, 'no failure report'),
    );
    await Promise.race([ship, delay(ship_ms, undefined, { ref: false })]);
    this.#given_up = true;
    if (end.fatal === 'device') this.#options.onDeviceFailed(end.error!);
  }

  async #runOnce(): Promise<ProcessEnd> {
    const { group, metadata, registry } = this.#options;
    const described: SessionMetadata = {
      ...metadata,
      role: this.#role(),
      engine: group.engine,
      devices: group.devices.map((device) => device.description),
      models: this.#pendingModels(),
    };
    if (group.units.length === 1) described.unit = this.name;
    this.#session = await LocalSession.join(
      registry,
      described,
      () => this.#options.onChange(),
      this.#options.delegation,
    );
    if (this.#interrupted.signal.aborted) return { restartable: false };
    const runtime_folder = `${this.#options.runtime_folder}-${this.#starts++}`;
    mkdirSync(runtime_folder, { mode: 0o700 });
    const { traffic } = this;
    const context: ProcessContext = {
      ...this.#options,
      runtime_folder,
      session_id: this.#session.id,
      traffic,
      onChange: () => this.#changed(),
      onFullness: () => {
        for (const tell of this.#watchers) tell();
      },
      onStalled: (error) => {
        for (const handOver of [...this.#hand_overs]) handOver(error);
      },
    };
    const process = startProcess(context);
    this.#process = process;
    this.#ended = false;
    this.#onStarted();
    this.#changed();
    const unfollow = this.#followPrefixCaches();
    const end = await process.ended;
    unfollow();
    removeRuntimeFolder(runtime_folder, this.#options.log);
    if (end.orderly && !this.#draining) {
      await delay(shared_signal_ms, undefined, { signal: this.#stopped.signal }).catch(() => undefined);
    }
    return end;
  }

  /** What is served here; of a replica on several nodes on the first one. */
  #pendingModels(): SessionModel[] {
    const { group, place } = this.#options;
    if ((place?.rank ?? 0) > 0) return [];
    return group.units.filter(answers).map(pendingModel);
  }

  #role(): 'device-worker' | 'engine' {
    return this.#options.group.engine === 'native' ? 'device-worker' : 'engine';
  }

  #changed(): void {
    this.#options.onChange();
    if (this.models.some((model) => model.state === 'serving')) this.#error = undefined;
    this.tell();
  }

  /** Has others know of its models, where something is new of them, or of other stages that they need. */
  tell(): void {
    this.#news.tell();
  }

  #toTell(): UnitNews {
    const engine_version = this.#process?.engine_version;
    return { session: this.#session, models: this.models, engine_version, draining: this.#draining };
  }

  async #announceEnd(error: HpcserveError): Promise<void> {
    this.#news.cancel();
    for (const model of this.#process?.models ?? []) {
      if (model.state === 'failed') continue;
      model.state = 'failed';
      model.error = oneLine(error.message);
    }
    for (const callback of this.#endings) callback(error);
    this.#endings.clear();
    this.#options.onChange();
    await this.#session?.update({
      lifecycle: 'DOWN',
      metadata: { models: this.models.map((model) => ({ ...model })) },
    });
  }
}

function startProcess(context: ProcessContext): ServingProcess {
  if (context.group.engine === 'native') return new DeviceWorkerProcess(context);
  const { place } = context;
  return place !== undefined && place.rank > 0 ? new EngineRank(context, place) : new EngineProcess(context);
}
