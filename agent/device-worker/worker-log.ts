import pino from 'pino';
import type { HpcserveError } from '../../spec/errors/error.ts';
import type { FromWorker, ToWorker } from './messages.ts';
import type { ServedModel } from './served-model.ts';

interface Loading {
  began_ms: number;
  bytes: number;
}

/**
 * What a device worker writes into its unit's log: JSON lines as the agent's, one for each change of state. It
 * sees the messages between agent and worker, so nothing that the agent is told can be missing here.
 */
export class WorkerLog {
  readonly #log: pino.Logger;
  readonly #loading = new Map<string, Loading>();

  /** @param descriptor where the lines go: the agent connects stdout with the log file */
  constructor(descriptor = 1) {
    const destination = pino.destination({ fd: descriptor, sync: true });
    destination.on('error', () => undefined); // a full disk costs lines, never the worker
    this.#log = pino({ base: { pid: process.pid } }, destination);
  }

  asked(message: ToWorker): void {
    switch (message.type) {
      case 'configure': {
        const { device, threads, cores, library_dir, ggml_device } = message;
        this.#log.info({ device, threads, cores, library_dir, ggml_device }, 'device worker started');
        return;
      }
      case 'load':
        this.#loading.set(message.model.name, { began_ms: performance.now(), bytes: 0 });
        this.#log.info(message.model, 'loading a model');
        return;
      case 'unload':
        this.#log.info({ name: message.name }, 'asked to unload a model');
        return;
      case 'prepare':
        this.#log.info(
          { name: message.model.name, refactoring: message.refactoring, place: message.model.pipeline },
          'asked to prepare a stage of a layout to come',
        );
        return;
      case 'unprepare':
        this.#log.info(
          { name: message.name, refactoring: message.refactoring },
          'asked to give back the stage of a layout that does not come',
        );
        return;
      case 'refactor':
        this.#log.info(
          { name: message.model.name, refactoring: message.refactoring, to: message.to },
          'asked to change the stages of a model',
        );
        return;
      case 'cancel_refactoring':
        this.#log.info({ name: message.name, because: message.because }, 'asked not to change its stages');
        return;
      case 'drain':
      case 'stop':
        this.#log.info(`asked to ${message.type}`);
    }
  }

  /** @param modelOf the model of a name, as the worker knows it now */
  told(message: FromWorker, modelOf: (name: string) => ServedModel | undefined): void {
    switch (message.type) {
      case 'listening': {
        const { library_version, isa } = message;
        this.#log.info({ library_version, isa }, 'listening');
        return;
      }
      case 'progress': {
        const loading = this.#loading.get(message.name);
        if (loading) loading.bytes = message.bytes_loaded;
        return;
      }
      case 'model':
        this.#changed(message, modelOf(message.name));
        return;
      case 'weights_loaded': {
        const { name, loaded, because } = message;
        this.#log.info({ name, because, ...loaded }, 'weights are there');
        return;
      }
      case 'kernels_left_out':
        for (const error of message.errors) this.#log.warn({ error }, error.what);
        return;
      case 'pool_cut':
        this.#log.warn({ error: message.error }, message.error.what);
        return;
      case 'frames': {
        const { news } = message;
        if (news.type === 'notice') this.#log.warn({ error: news.error }, news.error.what);
        else this.#log.info(news, 'long frames go so to the stage behind');
        return;
      }
      case 'refactored':
        this.#log.info(
          {
            name: message.name,
            refactoring: message.refactoring,
            report: message.report,
            error: message.error,
          },
          'a change of stages has ended',
        );
        return;
      case 'drained':
        this.#log.info('drained');
        return;
      case 'fatal':
      case 'load_report':
    }
  }

  /** What a predecessor had in memory is in the page cache, too. */
  warmed(path: string, read_bytes: number): void {
    this.#log.info({ path, read_bytes }, 'read ahead');
  }

  /** Something works worse than it should. */
  notice(notice: HpcserveError): void {
    this.#log.warn({ error: notice.toJSON() }, notice.toText());
  }

  warn(text: string): void {
    this.#log.warn(text);
  }

  /** The worker ends by this. */
  fatal(error: HpcserveError): void {
    const { stack } = (error.cause ?? error) as Error;
    this.#log.fatal({ error: error.toJSON(), ...(error.code === 'E_INTERNAL' && { stack }) }, error.message);
  }

  ended(reason: string): void {
    this.#log.info({ reason }, 'device worker ends');
  }

  #changed(message: FromWorker & { type: 'model' }, model: ServedModel | undefined): void {
    const { name, state, error } = message;
    if (state === 'failed') this.#log.error({ name, state, error }, error?.what ?? 'the model failed');
    else if (state === 'serving' && model) this.#log.info(this.#summary(name, model), 'serving a model');
    else if (state !== 'loading') this.#log.info({ name, state, ...(error && { error }) }, `model ${state}`);
    if (state !== 'loading') this.#loading.delete(name);
  }

  #summary(name: string, { info, stats }: ServedModel): Record<string, unknown> {
    const { began_ms, bytes } = this.#loading.get(name) ?? { began_ms: performance.now(), bytes: 0 };
    const load_s = (performance.now() - began_ms) / 1000;
    return {
      name,
      state: 'serving',
      architecture: info?.architecture,
      precision: info?.file_type,
      parameters: info?.n_params,
      bytes_loaded: bytes,
      load_s: Number(load_s.toFixed(3)),
      load_bytes_per_s: load_s > 0 ? Math.round(bytes / load_s) : undefined,
      weight_bytes: stats?.weight_bytes,
      arena_bytes: stats?.streamed?.arena_bytes,
      resident_bytes: stats?.streamed?.resident_bytes,
      layouts: stats?.layouts,
      batch_invariant: stats?.batch_invariant,
      kv_tokens: stats?.kv_tokens_total,
      kv_bytes: stats?.kv_bytes,
      compute_bytes: stats?.compute_bytes,
    };
  }
}
