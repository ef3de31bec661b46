import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { compiledFile } from '../../host/programs.ts';
import { nativeDefaults } from '../../solver/catalog/engine-defaults.ts';
import type { SharingSettings } from '../../solver/sharing/settings.ts';
import { isFull, type ModelLoad } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { concurrencyOf, type UnitSpec } from '../../spec/launch.ts';
import type { ServedModel } from '../../spec/session-record.ts';
import type { SiteSharing } from '../../spec/sharing-settings.ts';
import { fatalSign } from '../adapters/fatal.ts';
import type { FromWorker, NativeModel, ToWorker } from '../device-worker/messages.ts';
import { cacheFolder } from './cache-folder.ts';
import { Child, type ChildEnd } from './child.ts';
import { environmentFor } from './device-visibility.ts';
import { checkModelPath, oneLine, pendingModel } from './model-path.ts';
import { checkPool, poolBytes } from './pool-size.ts';
import type { ProcessContext, ProcessEnd, ServingProcess, Upstream } from './serving-process.ts';

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
  readonly models: ServedModel[];
  readonly ended: Promise<ProcessEnd>;
  readonly model_errors = new Map<string, HpcserveError>();
  notices: readonly HpcserveError[] = [];
  engine_version: string | undefined;
  upstream: Upstream | undefined;
  readonly #context: ProcessContext;
  readonly #child: Child;
  readonly #socket: string;
  #loads: ModelLoad[] = [];
  #fatal: HpcserveError | undefined;
  #stopping = false;
  #has_served = false;
  #silent_ticks = 0;
  #heard_ms = performance.now();
  #onFatal: () => void = () => undefined;

  constructor(context: ProcessContext) {
    this.#context = context;
    this.log_file = context.log_file;
    this.models = context.group.units.map(pendingModel);
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
    ]);
    this.#send({
      type: 'configure',
      socket_path: this.#socket,
      threads: context.group.threads,
      pool_bytes: poolBytes(context),
      cores: context.group.cores?.slice(),
      ...(context.library_dir === undefined ? {} : { library_dir: context.library_dir }),
      heartbeat_ms: context.heartbeat_ms,
      cache_dir: cacheFolder(context.environment),
      ...(context.peers_socket !== undefined && { peers_socket: context.peers_socket }),
      ...manifestOf(context),
      device: describeDevices(context),
      ...(context.step_ms_min === undefined ? {} : { step_ms_min: context.step_ms_min }),
      ...(context.sharing && { sharing: sharingOf(context.sharing) }),
      // Slurm signals the worker together with the agent: both then give running answers the same time.
      limits: {
        drain_ms: context.drain_ms,
        stall_ms: 1000 * Math.min(...context.group.units.map(({ model }) => model.timeouts.stall_s)),
      },
    });
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  loads(): ModelLoad[] {
    const known = new Map(this.#loads.map((load) => [load.name, load]));
    return this.models.map((model, index) => ({
      ...(known.get(model.name) ?? emptyLoad(this.#context.group.units[index]!)),
      name: model.name,
      state: model.state,
    }));
  }

  drain(): void {
    for (const model of this.models) if (model.state === 'serving') model.state = 'draining';
    this.#send({ type: 'drain' });
  }

  async stop(grace_ms: number): Promise<void> {
    this.#stopping = true;
    // One that has not come to itself has nothing to bring to an end, and would read this when it has.
    if (this.upstream === undefined) {
      this.#child.kill();
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
    if (outcome === 'late') await this.#child.stop(1000);
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
        for (const unit of this.#context.group.units) this.#load(unit);
        break;
      case 'progress':
        this.#update(message.name, {
          state: 'loading',
          bytes_loaded: message.bytes_loaded,
          bytes_total: message.bytes_total,
          ...(message.elapsed_ms > 0 && {
            load_bytes_per_s: Math.round((1000 * message.bytes_loaded) / message.elapsed_ms),
          }),
        });
        break;
      case 'model':
        if (message.state === 'serving') this.#has_served = true;
        this.#update(message.name, {
          state: message.state,
          ...(message.precision === undefined ? {} : { precision: message.precision }),
          ...(message.error === undefined ? {} : { error: oneLine(message.error.what) }),
        });
        if (message.error) this.model_errors.set(message.name, HpcserveError.fromJSON(message.error));
        else this.model_errors.delete(message.name);
        break;
      case 'kernels_left_out':
        this.notices = message.errors.map((error) => HpcserveError.fromJSON(error));
        for (const notice of this.notices) this.#context.log.warn({ error: notice.toJSON() }, notice.message);
        this.#context.onChange();
        break;
      case 'load_report':
        this.#takeLoads(message.models);
        break;
      case 'drained':
        break; // the agent counts what it passed on itself
      case 'fatal':
        this.#fatal = HpcserveError.fromJSON(message.error);
        this.#onFatal();
        break;
    }
  }

  #takeLoads(loads: ModelLoad[]): void {
    const full = (all: ModelLoad[]) => all.map((load) => `${load.name} ${isFull(load)}`).join();
    const changed = full(loads) !== full(this.#loads);
    this.#loads = loads;
    if (changed) this.#context.onFullness();
  }

  #load(unit: UnitSpec): void {
    try {
      checkModelPath(unit);
      checkPool(unit, this.#context);
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      this.#context.log.error({ unit: unit.unit, error: error.toJSON() }, error.message);
      this.model_errors.set(unit.model.name, error);
      this.#update(unit.model.name, { state: 'failed', error: oneLine(error.message) });
      return;
    }
    this.#send({ type: 'load', model: nativeModel(unit) });
    this.#update(unit.model.name, { state: 'loading', bytes_loaded: 0, bytes_total: unit.weight_bytes });
  }

  #update(name: string, change: Partial<ServedModel>): void {
    const index = this.models.findIndex((model) => model.name === name);
    if (index < 0) return;
    this.models[index] = { ...this.models[index]!, ...change };
    this.#context.onChange();
  }

  #conclude(end: ChildEnd): ProcessEnd {
    this.upstream = undefined;
    if (this.#stopping) return { restartable: false };
    const told = this.#fatal && this.#told(this.#fatal);
    if (told) return { ...told, exit_code: end.code, signal: end.signal, tail: end.tail };
    const sign = end.orderly ? undefined : fatalSign(end.tail);
    const fatal = sign?.scope ?? (end.out_of_memory ? 'process' : undefined);
    const error = new HpcserveError('E_AGENT_WORKER', {
      what: `the device worker of ${describeDevices(this.#context)} ${end.words}`,
      because: [...(sign ? [`${sign.what}: ${sign.line}`] : []), ...end.last_lines.flatMap(complaint)],
      details: { log_file: this.log_file, exit_code: end.code, signal: end.signal },
    });
    return {
      error,
      restartable: this.#has_served && fatal === undefined,
      orderly: end.orderly,
      ...(fatal === undefined ? {} : { fatal }),
      exit_code: end.code,
      signal: end.signal,
      tail: end.tail,
    };
  }

  /** The end of a worker that said itself that it cannot go on. */
  #told(error: HpcserveError): ProcessEnd {
    return { error, restartable: false, fatal: error.code === 'E_WORKER_STUCK' ? 'device' : 'process' };
  }

  /** Resolves where the worker said that it cannot go on and is not gone soon after. */
  #untilFatal(): Promise<ProcessEnd> {
    return new Promise((resolve) => {
      this.#onFatal = () => {
        setTimeout(() => {
          if (!this.#child.alive) return;
          this.upstream = undefined;
          this.#child.kill();
          resolve({ ...this.#told(this.#fatal!), tail: this.#child.log.tail() });
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

  /**
   * Resolves where the worker lives and is silent. It is killed; one that hangs in the kernel may not even end by
   * that, so its session is over without waiting for it.
   */
  #untilSilent(): Promise<ProcessEnd> {
    const tick_ms = Math.max(tick_ms_min, this.#context.heartbeat_ms);
    return new Promise((resolve) => {
      const timer = setInterval(() => {
        if (!this.#child.alive) return clearInterval(timer);
        const limit = this.#has_served ? silent_ticks_max : silent_start_ticks_max;
        if (++this.#silent_ticks <= limit || this.#stopping) return;
        clearInterval(timer);
        this.upstream = undefined;
        this.#child.kill();
        const error = new HpcserveError('E_REPLICA_SILENT', {
          what: `the device worker of ${describeDevices(this.#context)} does not answer any more and was killed`,
          because: `it has said nothing for ${Math.round((limit * tick_ms) / 1000)} s`,
          details: { log_file: this.log_file, pid: this.pid, requests: this.#beingPrepared(tick_ms) },
        });
        resolve({ error, restartable: false, fatal: 'device', tail: this.#child.log.tail() });
      }, tick_ms);
      timer.unref();
    });
  }
}

/** What a site says, in the words of the solver. */
function sharingOf({
  keep_alive_s,
  pool_gb: _,
  peer_loads: __,
  ...same
}: SiteSharing): Partial<SharingSettings> {
  const told = Object.entries(same).filter(([, value]) => value !== undefined);
  return {
    ...(Object.fromEntries(told) as Partial<SharingSettings>),
    ...(keep_alive_s !== undefined && { keep_alive_ms: 1000 * keep_alive_s }),
  };
}

function nativeModel(unit: UnitSpec): NativeModel {
  const { model } = unit;
  return {
    name: model.name,
    aliases: model.aliases,
    model_path: unit.model_path,
    ...(model.chat_template === undefined ? {} : { chat_template_file: model.chat_template }),
    context_tokens: unit.context_tokens,
    max_sequences: concurrencyOf(unit),
    prefill_chunk_tokens: model.prefill_chunk_tokens ?? nativeDefaults.batched_tokens,
    kv_tokens: unit.kv_tokens,
    kv_type: model.kv_type,
    batch_invariant: model.batch_invariant,
    latency_sensitivity: model.latency_sensitivity,
    ...(Object.keys(model.slo).length > 0 && { slo: model.slo }),
  };
}

/** One for all workers of the deployment with the same models: whichever node its successor is on, it finds it. */
function manifestOf({ manifest_folder, group }: ProcessContext): { manifest_file?: string } {
  if (manifest_folder === undefined) return {};
  const names = [...new Set(group.units.map(({ model }) => model.name))].sort();
  const hash = createHash('sha256').update(JSON.stringify(names)).digest('hex');
  return { manifest_file: join(manifest_folder, `${hash.slice(0, 16)}.json`) };
}

/** Of a line of the worker's log what says why it ended: warnings and worse, and what libraries wrote. */
function complaint(line: string): string[] {
  if (!line.startsWith('{"level":')) return [line];
  const told = /^\{"level":(\d+),.*"msg":("(?:[^"\\]|\\.)*")\}$/.exec(line);
  return told && Number(told[1]) >= 40 ? [JSON.parse(told[2]!) as string] : [];
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
