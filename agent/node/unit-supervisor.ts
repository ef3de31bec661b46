import { mkdirSync, rmSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { OwnSession, type Registry } from '../../mesh/index.ts';
import type { ModelLoad, SessionState } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ServedModel, SessionMetadata } from '../../spec/session-record.ts';
import { DeviceWorkerProcess } from './device-worker-process.ts';
import { EngineProcess } from './engine-process.ts';
import { oneLine, pendingModel } from './model-path.ts';
import type { HandOver } from './proxy.ts';
import { RestartPolicy } from './restart-policy.ts';
import type { ProcessContext, ProcessEnd, ServingProcess } from './serving-process.ts';

/** Least time between two records that differ only in progress of loading, ms. */
const progress_pause_ms = 1000;
/**
 * Slurm signals all processes of a step at once: a child may be seen to end a moment before the agent's own
 * SIGTERM arrives. So long an orderly end is not yet a failure.
 */
const shared_signal_ms = 300;

export interface SupervisorOptions extends Omit<ProcessContext, 'onChange' | 'runtime_folder'> {
  registry: Registry;
  /** What all sessions of this agent have in common. */
  metadata: Omit<SessionMetadata, 'role' | 'devices' | 'models' | 'unit' | 'engine'>;
  /** Beginning of the path of each start's folder, unique on the node. */
  runtime_folder: string;
  onChange(): void;
}

/**
 * One serving unit over time: a process, the session that stands for it, and the next process where one ended.
 * A session's lifecycle never goes back, so each start is a session of its own: the end of a process is seen at
 * once as DOWN, and what comes after it has a new id.
 */
export class UnitSupervisor {
  readonly name: string;
  readonly #options: SupervisorOptions;
  readonly #restarts = new RestartPolicy();
  readonly #stopped = new AbortController();
  #session: OwnSession | undefined;
  #process: ServingProcess | undefined;
  #error: HpcserveError | undefined;
  /** Between the end of a process and the next start, or for good. */
  #ended = false;
  #given_up = false;
  #draining = false;
  #starts = 0;
  #in_flight = 0;
  readonly #hand_overs = new Set<HandOver>();
  #idle: (() => void)[] = [];
  #published = '';
  #published_ms = Number.NEGATIVE_INFINITY;
  #publish_timer: NodeJS.Timeout | undefined;
  #running: Promise<void> = Promise.resolve();
  readonly #endings = new Set<() => void>();

  constructor(options: SupervisorOptions) {
    this.#options = options;
    this.name = options.group.name;
  }

  get session(): OwnSession | undefined {
    return this.#session;
  }

  get upstream(): ServingProcess['upstream'] {
    return this.#process?.upstream;
  }

  get draining(): boolean {
    return this.#draining;
  }

  get models(): readonly ServedModel[] {
    return this.#process?.models ?? this.#options.group.units.map(pendingModel);
  }

  get error(): HpcserveError | undefined {
    return this.#error;
  }

  /** Why single models failed on a process that lives. */
  get model_errors(): ReadonlyMap<string, HpcserveError> {
    return this.#process?.model_errors ?? new Map();
  }

  /** Nothing of it will serve any more: its process is given up, or lives with all of its models failed. */
  get failed(): boolean {
    return this.#given_up || (!this.#ended && this.models.every((model) => model.state === 'failed'));
  }

  /** Resolves when the first process was started; what becomes of it is told by `onChange`. */
  start(): void {
    this.#running = this.#run();
  }

  loads(): ModelLoad[] {
    return this.#process?.loads(this.#in_flight) ?? [];
  }

  state(): SessionState {
    const failed = [...this.model_errors].map(([name, error]) => [name, error.toJSON()] as const);
    const error = this.#error ?? this.model_errors.values().next().value;
    return {
      session_id: this.#session?.id ?? '',
      role: this.#role(),
      unit: this.name,
      engine: this.#options.group.engine,
      models: this.models.map((model) => ({ ...model })),
      ...(this.#process?.pid === undefined || this.#ended ? {} : { pid: this.#process.pid }),
      log_file: this.#options.log_file,
      ...(error === undefined ? {} : { error: error.toJSON() }),
      ...(failed.length === 0 ? {} : { model_errors: Object.fromEntries(failed) }),
    };
  }

  /** Counts a request in; the result counts it out. */
  enter(): () => void {
    this.#in_flight++;
    let counted = true;
    return () => {
      if (!counted) return;
      counted = false;
      if (--this.#in_flight === 0) for (const done of this.#idle.splice(0)) done();
    };
  }

  /** Runs where a drain ends before an answer does; returns its removal. */
  onHandOver(callback: HandOver): () => void {
    this.#hand_overs.add(callback);
    return () => this.#hand_overs.delete(callback);
  }

  /** Runs when the current session ends (its watchers' streams are closed then); returns its removal. */
  onSessionEnd(callback: () => void): () => void {
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
    if (this.#in_flight === 0) return;
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
    await this.#process?.stop(grace_ms);
    await this.#running;
    for (const model of this.#process?.models ?? []) if (model.state !== 'failed') model.state = 'unloaded';
    await this.#session?.leave();
    this.#options.onChange();
  }

  async #run(): Promise<void> {
    const { log } = this.#options;
    while (!this.#stopped.signal.aborted) {
      const end = await this.#runOnce();
      this.#ended = true;
      if (this.#stopped.signal.aborted || !end.error) break;
      if (end.orderly && this.#draining) {
        log.info({ unit: this.name }, 'it ended with the job');
        break;
      }
      this.#error = end.error;
      log.error({ unit: this.name, error: end.error.toJSON() }, end.error.message);
      const pause_ms =
        end.restartable && !this.#draining ? this.#restarts.next(performance.now()) : undefined;
      await this.#announceEnd(end.error);
      if (pause_ms === undefined) {
        this.#given_up = true;
        break;
      }
      log.warn({ unit: this.name, pause_ms }, 'it is started again after a pause');
      this.#options.onChange();
      await delay(pause_ms, undefined, { signal: this.#stopped.signal }).catch(() => undefined); // stopped
      await this.#session?.leave();
    }
    this.#options.onChange();
  }

  async #runOnce(): Promise<ProcessEnd> {
    const { group, metadata, registry } = this.#options;
    this.#session = await OwnSession.join(
      registry,
      {
        ...metadata,
        role: this.#role(),
        ...(group.units.length === 1 ? { unit: this.name } : {}),
        engine: group.engine,
        devices: group.devices.map((device) => device.description),
        models: group.units.map(pendingModel),
      },
      () => this.#options.onChange(),
    );
    if (this.#stopped.signal.aborted) return { restartable: false };
    const runtime_folder = `${this.#options.runtime_folder}-${this.#starts++}`;
    mkdirSync(runtime_folder, { mode: 0o700 });
    const context: ProcessContext = { ...this.#options, runtime_folder, onChange: () => this.#changed() };
    const process = group.engine === 'native' ? new DeviceWorkerProcess(context) : new EngineProcess(context);
    this.#process = process;
    this.#ended = false;
    this.#changed();
    const end = await process.ended;
    rmSync(runtime_folder, { recursive: true, force: true });
    if (end.orderly && !this.#draining) {
      await delay(shared_signal_ms, undefined, { signal: this.#stopped.signal }).catch(() => undefined);
    }
    return end;
  }

  #role(): 'device-worker' | 'engine' {
    return this.#options.group.engine === 'native' ? 'device-worker' : 'engine';
  }

  #changed(): void {
    this.#options.onChange();
    if (this.models.some((model) => model.state === 'serving')) this.#error = undefined;
    // Changes of state are told at once; progress of loading now and then.
    const told = JSON.stringify(this.models.map((model) => [model.name, model.state, model.error]));
    const pause_ms =
      told === this.#published ? this.#published_ms + progress_pause_ms - performance.now() : 0;
    this.#published = told;
    if (pause_ms <= 0) this.#publish();
    else this.#publish_timer ??= setTimeout(() => this.#publish(), pause_ms);
  }

  #publish(): void {
    clearTimeout(this.#publish_timer);
    this.#publish_timer = undefined;
    this.#published_ms = performance.now();
    const session = this.#session;
    if (!session || session.record.lifecycle === 'LEFT') return;
    const serving = this.models.some((model) => model.state === 'serving');
    const begin = session.record.lifecycle === 'JOIN' && serving && !this.#draining;
    const engine_version = this.#process?.engine_version;
    session
      .update({
        ...(begin ? { lifecycle: 'SERVING' } : {}),
        metadata: {
          models: this.models.map((model) => ({ ...model })),
          ...(engine_version === undefined ? {} : { engine_version }),
        },
      })
      .catch((error: unknown) => this.#options.log.error(error));
  }

  async #announceEnd(error: HpcserveError): Promise<void> {
    clearTimeout(this.#publish_timer);
    this.#publish_timer = undefined;
    for (const model of this.#process?.models ?? []) {
      if (model.state === 'failed') continue;
      model.state = 'failed';
      model.error = oneLine(error.message);
    }
    for (const callback of this.#endings) callback();
    this.#endings.clear();
    this.#options.onChange();
    await this.#session?.update({
      lifecycle: 'DOWN',
      metadata: { models: this.models.map((model) => ({ ...model })) },
    });
  }
}
