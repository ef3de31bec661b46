/** The program of the device worker: what its agent says to it, and the signals it gets. */
import { join } from 'node:path';
import { restrictToCores } from '../../native/affinity.ts';
import { holdDevice } from '../../native/device-lock.ts';
import { errorLog } from '../../native/error-log.ts';
import { nativeLogVariable } from '../../native/ggml.ts';
import { nativeFolderVariable } from '../../native/libraries.ts';
import { loadLlama } from '../../native/llama.ts';
import { returnFreedMemory } from '../../native/malloc.ts';
import { probeNativeLibraries } from '../../native/probe.ts';
import type { DeviceReport } from '../../spec/device-report.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ManifestModel } from '../memory/pool-manifest.ts';
import { warmCache } from './cache-warmer.ts';
import { WorkerServer } from './http/server.ts';
import { readManifest } from './manifest-file.ts';
import { reportMemory } from './memory-report.ts';
import type { FromWorker, ToWorker } from './messages.ts';
import { WorkerMetrics } from './metrics.ts';
import { Models } from './models.ts';
import type { ModelsOptions } from './models-options.ts';
import { AnswerMover } from './moving/answer-mover.ts';
import { fabricPlaceOf } from './moving/moves-place.ts';
import { OutputLengthStore } from './output-length-store.ts';
import { ProfileStore } from './profile-store.ts';
import { WorkerLog } from './worker-log.ts';
import { defaultLimits, type WorkerLimits, workerSharing } from './worker-options.ts';

type Configuration = ToWorker & { type: 'configure' };

/** Exit code after `fatal`, as documented for engine failures. */
const fatal_exit_code = 11;

returnFreedMemory();
const log = new WorkerLog();

/**
 * The device worker: a process that owns one device and serves many models on it. It is forked by a node
 * agent, which tells it what to load; clients' requests come over its unix socket.
 */
class DeviceWorker {
  #limits: WorkerLimits = defaultLimits;
  #models: Models | undefined;
  #server: WorkerServer | undefined;
  #mover: AnswerMover | undefined;
  #heartbeat: NodeJS.Timeout | undefined;
  #ending = false;
  #drains = false;
  #warms = false;
  readonly #warming = new AbortController();

  async take(message: ToWorker): Promise<void> {
    log.asked(message);
    switch (message.type) {
      case 'configure':
        return this.#configure(message);
      case 'load':
        return this.#configured.models.load(message.model);
      case 'prepare':
        return this.#configured.models.prepare(message.refactoring, message.model);
      case 'unprepare':
        return this.#configured.models.unprepare(message.refactoring, message.name);
      case 'refactor':
        return this.#configured.models.refactor(message.refactoring, message.to, message.model);
      case 'cancel_refactoring':
        return this.#configured.models.cancelRefactoring(message.name, message.because);
      case 'unload':
        return this.#configured.models.unload(message.name);
      case 'drain':
        return this.#drain();
      case 'stop':
        return this.end(0, 'the agent said so');
    }
  }

  /** Passes a message on to the agent. */
  tell(message: FromWorker): void {
    log.told(message, (name) => this.#models?.all.find(({ config }) => config.name === name));
    // An agent that goes meanwhile breaks the pipe; that it is gone is told by `disconnect`.
    if (process.connected) process.send!(message, (error: Error | null) => error && log.warn(error.message));
  }

  /**
   * Stops admitting, lets running answers end for a while, and goes. Who computes for them is not always who has them:
   * Slurm tells every process of a job at once, and the agent says when stages here are not needed any more.
   */
  async terminate(): Promise<void> {
    if (!this.#server) return this.end(0, 'SIGTERM');
    const late = new Promise((resolve) => setTimeout(resolve, this.#limits.drain_ms));
    const drained = this.#drain();
    await (this.#configured.models.computesForOthers ? late : Promise.race([drained, late]));
    await this.end(0, 'SIGTERM');
  }

  /** Tells the agent why, and ends. */
  async fatal(error: HpcserveError): Promise<void> {
    log.fatal(error);
    if (process.connected)
      await new Promise<void>((resolve) => {
        process.send!({ type: 'fatal', error: error.toJSON() } satisfies FromWorker, () => resolve());
      });
    // An ordered exit would wait for the compute thread, which may never come back.
    if (error.code === 'E_WORKER_STUCK') process.kill(process.pid, 'SIGKILL');
    process.exit(fatal_exit_code);
  }

  async end(code: number, reason: string): Promise<void> {
    if (this.#ending) return;
    this.#ending = true;
    this.#warming.abort();
    log.ended(reason);
    clearInterval(this.#heartbeat);
    this.#models?.handOver();
    await this.#server?.close();
    await this.#tellMoves();
    // Before the memory goes that transfers read and write.
    await this.#mover?.close();
    await this.#models?.stop();
    process.exit(code);
  }

  /** The last answers may have moved a moment ago, and who ends does not say it later. */
  async #tellMoves(): Promise<void> {
    const report = await this.#mover?.report;
    const moved = report ? report.moved + report.recomputed + report.continued : 0;
    if (!report || !process.connected || moved + (report.handovers?.handed_over ?? 0) === 0) return;
    await new Promise<void>((resolve) => {
      process.send!({ type: 'moves', report } satisfies FromWorker, () => resolve());
    });
  }

  async #configure(message: Configuration): Promise<void> {
    const { socket_path, threads, pool_bytes, library_dir, heartbeat_ms, device, limits } = message;
    // Before the first thread that computes: those inherit it.
    const refused = restrictToCores(message.cores ?? []);
    if (refused !== undefined) log.warn(`the cores of the device cannot be kept to: ${refused}`);
    // Engines and vocabularies of both threads find the libraries here.
    if (library_dir !== undefined) process.env[nativeFolderVariable] = library_dir;
    this.#limits = { ...defaultLimits, ...limits };
    if (message.device_identity !== undefined)
      holdDevice(message.device_identity, device, (text) => log.warn(text));
    // A device's driver says in the log alone why it fails: where errors cannot be had apart, all of it is written.
    if (message.ggml_device !== undefined && errorLog() === undefined) process.env[nativeLogVariable] = '1';
    probeNativeLibraries();
    const llama = loadLlama();
    const metrics = new WorkerMetrics(device);
    const step_ms_min = message.step_ms_min ?? 0;
    const isa = [...llama.ggml.cpuFeatures];
    const words = `${device}, ${threads} threads, ${isa.join(' ')}, ${llama.version}, ${step_ms_min} ms`;
    const { cache_dir, manifest_file } = message;
    // Before this worker writes its own.
    const manifest = manifest_file === undefined ? [] : readManifest(manifest_file);
    const models = new Models({
      threads,
      pool_bytes,
      ...streamingOf(message),
      ggml_device: message.ggml_device,
      parking: message.parking,
      fabrics: message.moves && fabricPlaceOf(message.moves),
      settings: { ...workerSharing, ...message.sharing },
      step_ms_min,
      ...(cache_dir !== undefined && {
        profiles: new ProfileStore(cache_dir, words),
        lengths: new OutputLengthStore(cache_dir),
        hash_dir: join(cache_dir, 'tensors'),
        ...(message.peers_socket !== undefined && { peers_socket: message.peers_socket }),
      }),
      ...(manifest_file !== undefined && { manifest_file }),
      profile_ms: this.#limits.profile_ms,
      warn: (text) => log.warn(text),
      metrics,
      tell: (told) => {
        this.tell(told);
        if (told.type === 'model' && told.state === 'serving') this.#warmOnce(models, manifest);
      },
      failed: (error) => void this.fatal(error),
      stall_ms: this.#limits.stall_ms,
    });
    this.#models = models;
    if (message.moves)
      this.#mover = this.#moverOf(message.moves, models, metrics, {
        library_version: llama.version,
        pool_bytes: message.pool_bytes,
        step_ms_min,
      });
    const mover = this.#mover;
    this.#server = new WorkerServer(models, metrics, this.#limits, mover, () =>
      reportDevice({ name: device, threads, isa }, models, mover),
    );
    await this.#server.listen(socket_path);
    this.tell({ type: 'listening', library_version: llama.version, isa });
    this.#heartbeat = setInterval(
      () => this.tell({ type: 'load_report', models: models.loads }),
      heartbeat_ms,
    );
  }

  #moverOf(
    place: NonNullable<Configuration['moves']>,
    models: Models,
    metrics: WorkerMetrics,
    computes: { library_version: string; pool_bytes: number; step_ms_min: number },
  ): AnswerMover {
    return new AnswerMover({
      models,
      place,
      ...computes,
      isDraining: () => this.#drains,
      warn: (notice) => log.notice(notice),
      changed: (report) => {
        metrics.moves(report);
        this.tell({ type: 'moves', report });
      },
    });
  }

  /** Once a model serves: what its predecessor had in memory comes into the page cache, too. */
  #warmOnce(models: Models, manifest: readonly ManifestModel[]): void {
    if (this.#warms) return;
    this.#warms = true;
    const around = {
      loading: () => models.areLoading,
      busy: () => models.busy,
      warmed: (path: string, read_bytes: number) => log.warmed(path, read_bytes),
      warn: (text: string) => log.warn(text),
    };
    warmCache(manifest, around, this.#warming.signal).catch((error: Error) => log.warn(error.message));
  }

  async #drain(): Promise<void> {
    const { server, models } = this.#configured;
    server.draining = true;
    this.#warming.abort();
    if (!this.#drains) {
      models.keepManifest();
      this.#drains = true;
      const names = models.all.map(({ config }) => config.name);
      void this.#mover?.evacuate(names, this.#limits.drain_ms, 'its node goes', true);
    }
    await models.whenIdle();
    this.tell({ type: 'drained' });
  }

  get #configured(): { models: Models; server: WorkerServer } {
    const models = this.#models;
    const server = this.#server;
    if (!models || !server)
      throw new HpcserveError('E_INTERNAL', { what: 'the device worker was not configured yet' });
    return { models, server };
  }
}

async function reportDevice(
  device: Omit<DeviceReport['device'], 'left_out'>,
  models: Models,
  mover: AnswerMover | undefined,
): Promise<DeviceReport> {
  const { pool, view: _, ...schedule } = await models.report();
  const pools = models.all.flatMap(({ config }) =>
    config.pool ? [[config.name, config.pool] as const] : [],
  );
  const memory: DeviceReport['memory'] = reportMemory();
  if (pool) memory.pool = pool;
  return {
    moves: await mover?.report,
    pools: Object.fromEntries(pools),
    format: 1,
    at_ms: Date.now(),
    pid: process.pid,
    device: { ...device, left_out: models.kernels_left_out.map(({ what }) => what) },
    memory,
    loading: models.loading,
    ...schedule,
  };
}

/** What weights are streamed through, and what stays. */
function streamingOf({
  arena_bytes,
  resident_bytes,
  beside_bytes,
}: Configuration): Pick<ModelsOptions, 'arena_bytes' | 'resident_bytes' | 'beside_bytes'> {
  return { arena_bytes, resident_bytes, beside_bytes };
}

if (!process.send) {
  process.stderr.write('error: a device worker is started by a node agent, not by hand\n');
  process.exit(2);
}
const worker = new DeviceWorker();
const fail = (error: unknown) => void worker.fatal(HpcserveError.from(error));
process.on('message', (message: ToWorker) => {
  worker.take(message).catch(fail);
});
// The agent is gone: nobody would ever stop this process.
process.on('disconnect', () => void worker.end(0, 'the agent is gone'));
// It may have gone while this program was loaded, before anyone listened.
if (!process.connected) void worker.end(0, 'the agent is gone');
// Slurm warns every process of a step before its time limit; Node would open its debugger on this signal.
process.on('SIGUSR1', () => undefined);
process.on('SIGTERM', () => {
  worker.terminate().catch(fail);
});
process.on('uncaughtException', fail);
