import type { KeyChange } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { WorkerState } from '../../spec/gateway-processes.ts';
import { afterEnd } from '../holder/restart.ts';
import type { GatewayLog } from '../log.ts';
import { SilenceTimer } from '../silence-timer.ts';
import { type MeasuredAnswers, MeasureTeller } from './measure-teller.ts';
import type { FromPrimary, MetricsJson, WorkerStart } from './messages.ts';
import { type GivenConnection, WorkerProcess, type WorkerProcessServices } from './worker-process.ts';

/** Until all workers answer when a gateway starts, ms. Higher: very slow filesystems. */
const start_ms = 120_000;
/** How long a worker may take to start that takes the place of another; after that it is ended. */
export interface StartLimit {
  /**
   * So many times what the slowest start took. Lower: one that hangs is replaced sooner; higher: starts on a machine
   * that is busier by then are waited for.
   */
  factor: number;
  /** However fast the others were. */
  limit_ms_min: number;
}
const startLimitDefault: StartLimit = { factor: 20, limit_ms_min: 60_000 };
/** It is twice as long after each that ended at once, and no longer than this. */
const start_limit_ms_max = 600_000;
/** Behind the time that answers may still take: until a worker has ended with its last connection. */
const end_ms = 2000;
/** Connections that wait while no worker is ready. Higher: more clients outlive that; lower: less memory at risk. */
const waiting_max = 1024;

export interface WorkersOptions extends WorkerProcessServices {
  count: number;
  start_limit?: StartLimit | undefined;
  measured: MeasuredAnswers;
  /** What a worker that starts now has to know. */
  start(): Omit<WorkerStart, 'keys' | 'workers' | 'measures'>;
  /** Keys that are known, and from then on each change at once. */
  followKeys(callback: (change: KeyChange) => void): () => void;
  log: GatewayLog;
}

/**
 * The processes that relay a gateway's requests. Each connection goes to the one that has the fewest; one that ends is
 * replaced, at once where it lived for a while, and after growing pauses where they die again and again.
 */
export class Workers {
  readonly #options: WorkersOptions;
  readonly #running = new Map<number, WorkerProcess>();
  readonly #pauses = new Set<NodeJS.Timeout>();
  readonly #quick_ends = new Map<number, number>();
  /** Keys as they are now, for workers that start. */
  readonly #keys = new Map<string, KeyChange>();
  #keys_version = 0;
  readonly #unfollow: () => void;
  readonly #measures: MeasureTeller;
  #waiting: GivenConnection[] = [];
  #given = 0;
  #is_ending = false;
  /** All have answered, and whoever starts from then on takes the place of another. */
  #has_started = false;
  #slowest_start_ms = 0;
  #onReady: () => void = () => undefined;
  #onFailed: (error: HpcserveError) => void = () => undefined;

  constructor(options: WorkersOptions) {
    this.#options = options;
    this.#unfollow = options.followKeys((change) => this.#keyChanged(change));
    this.#measures = new MeasureTeller(options.measured, (measures) => this.tell(['measures', measures]));
  }

  /** Starts all of them, and waits until they answer. @throws HpcserveError E_GATEWAY_WORKER */
  async start(): Promise<void> {
    const { count } = this.#options;
    await new Promise<void>((resolve, reject) => {
      const limit = setTimeout(
        () => this.#onFailed(failed(`they do not answer after ${start_ms / 1000} s`)),
        start_ms,
      );
      this.#onFailed = (error) => {
        clearTimeout(limit);
        reject(error);
      };
      this.#onReady = () => {
        if (this.#ready.length < count) return;
        clearTimeout(limit);
        resolve();
      };
      for (let number = 1; number <= count; number++) this.#startOne(number);
    });
    this.#onFailed = () => undefined;
    this.#has_started = true;
  }

  /** Workers that answer. */
  get ready(): number {
    return this.#ready.length;
  }

  /** To the one that has the fewest connections; where none is ready, to the first that is. */
  give(connection: GivenConnection): void {
    const ready = this.#ready;
    let least: WorkerProcess | undefined;
    // Of several that have as few, each time another one.
    const first = this.#given++;
    for (let at = 0; at < ready.length; at++) {
      const worker = ready[(first + at) % ready.length]!;
      if (!least || worker.connections < least.connections) least = worker;
    }
    if (least) least.give(connection);
    else if (this.#waiting.length < waiting_max && !this.#is_ending) this.#waiting.push(connection);
    else connection[1].destroy();
  }

  tell(message: FromPrimary): void {
    for (const worker of this.#running.values()) worker.tell(message);
  }

  /** An answer of this model was measured. */
  measured(model: string): void {
    this.#measures.noted(model);
  }

  /** How each is, in the order of their numbers. */
  states(): WorkerState[] {
    return Array.from({ length: this.#options.count }, (_, index): WorkerState => {
      const number = index + 1;
      return this.#running.get(number)?.state ?? { number, state: 'ended', connections: 0 };
    });
  }

  /** When no worker lets anybody in with a key as it was before this call. */
  async tookKeys(): Promise<void> {
    const version = this.#keys_version;
    await Promise.all([...this.#running.values()].map((worker) => worker.tookKeys(version)));
  }

  /** What those measure of themselves that answer. */
  async measure(): Promise<MetricsJson[]> {
    const told = await Promise.all(this.#ready.map((worker) => worker.measure()));
    return told.filter((metrics) => metrics !== undefined);
  }

  /** Lets answers end, for at most `drain_ms`; then all have ended. */
  async drain(drain_ms: number): Promise<void> {
    this.#stop();
    await Promise.all([...this.#running.values()].map((worker) => worker.drain(drain_ms + end_ms)));
  }

  async close(): Promise<void> {
    this.#stop();
    this.#unfollow();
    this.#measures.close();
    await Promise.all([...this.#running.values()].map((worker) => worker.end()));
  }

  get #ready(): WorkerProcess[] {
    return [...this.#running.values()].filter(({ isReady }) => isReady);
  }

  #stop(): void {
    this.#is_ending = true;
    for (const pause of this.#pauses) clearTimeout(pause);
    for (const [, socket] of this.#waiting) socket.destroy();
    this.#waiting = [];
  }

  #startOne(number: number): void {
    const { log, count, start } = this.#options;
    const start_limit = new SilenceTimer((limit_ms) =>
      worker.kill(`it does not answer ${limit_ms / 1000} s after its start`),
    );
    const worker = new WorkerProcess(number, this.#options, {
      ready: () => {
        start_limit.stop();
        this.#slowest_start_ms = Math.max(this.#slowest_start_ms, performance.now() - worker.began_ms);
        log.info({ worker: number, worker_pid: worker.pid }, 'a worker answers');
        for (const connection of this.#waiting.splice(0)) this.give(connection);
        this.#onReady();
      },
      ended: (how, left) => {
        start_limit.stop();
        this.#endedOne(worker, how);
        for (const connection of left) this.give(connection);
      },
    });
    this.#running.set(number, worker);
    if (this.#has_started) start_limit.expectWithin(this.#startLimit_ms(number));
    const [keys, measures] = [[...this.#keys.values()], this.#measures.all()];
    worker.tell(['start', { ...start(), workers: count, keys, measures }]);
    worker.tell(['keys', this.#keys_version, []]);
  }

  #startLimit_ms(number: number): number {
    const { factor, limit_ms_min } = this.#options.start_limit ?? startLimitDefault;
    const limit_ms = Math.round(Math.max(limit_ms_min, factor * this.#slowest_start_ms));
    return Math.min(start_limit_ms_max, limit_ms * 2 ** (this.#quick_ends.get(number) ?? 0));
  }

  #endedOne(worker: WorkerProcess, how: string): void {
    const { number } = worker;
    this.#running.delete(number);
    if (this.#is_ending) return;
    const { log } = this.#options;
    this.#onFailed(failed(`number ${number} ended: ${how}`));
    const next = afterEnd({
      code: 1,
      // One that has never answered ended at once, however long it was waited for.
      lived_ms: worker.hasAnswered ? performance.now() - worker.began_ms : 0,
      has_listened: true,
      is_told: false,
      quick_ends: this.#quick_ends.get(number) ?? 0,
    });
    if (next.do === 'end') return;
    this.#quick_ends.set(number, next.quick_ends);
    log.warn({ worker: number, because: how, pause_ms: next.pause_ms }, 'a worker ended; another is started');
    const pause = setTimeout(() => {
      this.#pauses.delete(pause);
      this.#startOne(number);
    }, next.pause_ms);
    this.#pauses.add(pause);
  }

  #keyChanged(change: KeyChange): void {
    if ('forgotten' in change) this.#keys.delete(change.forgotten);
    else this.#keys.set(change.file.id, change);
    this.#keys_version++;
    this.tell(['keys', this.#keys_version, [change]]);
  }
}

function failed(because: string): HpcserveError {
  return new HpcserveError('E_GATEWAY_WORKER', { what: 'the workers of the gateway did not start', because });
}
