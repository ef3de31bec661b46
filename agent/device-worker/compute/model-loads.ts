/** Models whose weights are on their way, while the compute thread goes on with those that are there. */
import type { Engine } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { LoadBeside } from '../../engine/weights.ts';
import type { DevicePool } from '../../memory/device-pool.ts';
import type { WeightLoad } from '../../memory/pooled-loading.ts';
import type { FromCompute, ToCompute } from './messages.ts';

/** Progress of a load is told at most this often, once there is any. Lower: smoother; higher: fewer messages. */
const progress_interval_ms = 250;

export type LoadMessage = ToCompute & { type: 'load' };

/** What loads need of the thread around them. */
export interface LoadSurroundings {
  send(message: FromCompute): void;
  /** Something came on. */
  beat(): void;
  /** A model does not fit: whether another gave way to it, so that it may fit now. */
  giveWay(model: string): boolean;
  /** Weights are in their places. */
  loaded(load: WeightLoad): void;
  /** Models that were loaded are about to serve, and cannot give way yet. */
  settling(): boolean;
  /** It is over, without a model. */
  failed(message: LoadMessage, error: HpcserveError): void;
}

interface Opening {
  advance(help: boolean): Engine | undefined;
  abort(): void;
}

export class ModelLoads {
  private readonly pool: () => DevicePool;
  private readonly around: LoadSurroundings;
  /** Of models that did not fit while others were on their way: those may give way once they serve. */
  private readonly waiting: LoadMessage[] = [];
  private readonly openings = new Map<string, { message: LoadMessage; opening: Opening }>();

  constructor(pool: () => DevicePool, around: LoadSurroundings) {
    this.pool = pool;
    this.around = around;
  }

  get any(): boolean {
    return this.openings.size > 0 || this.waiting.length > 0;
  }

  /**
   * One that is on its way already stays so: a second engine of its name would take the place of the first.
   * @param beside what the other models do
   */
  begin(message: LoadMessage, beside: LoadBeside): void {
    if (this.openings.has(message.name) || this.waiting.some(({ name }) => name === message.name)) return;
    try {
      this.openings.set(message.name, { message, opening: this.open(message, beside) });
    } catch (error) {
      this.fail(message, error, beside);
    }
  }

  private open({ name, options, latency_sensitivity }: LoadMessage, beside: LoadBeside): Opening {
    let told = Number.NEGATIVE_INFINITY;
    return this.pool().open(
      {
        ...options,
        on_progress: ({ bytes_loaded, bytes_total, elapsed_ms }) => {
          this.around.beat();
          if (bytes_loaded < bytes_total && elapsed_ms - told < progress_interval_ms) return;
          // The first bytes are news, too: from them on there is a rate.
          if (bytes_loaded > 0) told = elapsed_ms;
          this.around.send({ type: 'progress', name, bytes_loaded, bytes_total, elapsed_ms });
        },
      },
      {
        model: name,
        on_loaded: (load) => this.around.loaded(load),
        ...(latency_sensitivity !== undefined && { latency_sensitivity }),
      },
      beside,
    );
  }

  /**
   * Looks after all loads.
   * @param help does a share of the work, some milliseconds
   * @param opened is told of each engine that is there; what it throws fails the load, and closes the engine
   */
  advance(help: boolean, opened: (message: LoadMessage, engine: Engine) => void): void {
    for (const [name, { message, opening }] of [...this.openings]) {
      try {
        const engine = opening.advance(help);
        if (!engine) continue;
        this.openings.delete(name);
        try {
          opened(message, engine);
        } catch (error) {
          engine.close();
          throw error;
        }
      } catch (error) {
        this.openings.delete(name);
        this.fail(message, error, 'idle');
      }
    }
    this.next();
  }

  /** One that waits begins once nothing else is on its way. */
  private next(): void {
    if (this.openings.size > 0 || this.around.settling()) return;
    const message = this.waiting.shift();
    if (message) this.begin(message, 'idle');
  }

  /** @returns whether it was loading */
  abort(name: string): boolean {
    const waits = this.waiting.findIndex((message) => message.name === name);
    if (waits >= 0) this.waiting.splice(waits, 1);
    const found = this.openings.get(name);
    found?.opening.abort();
    return this.openings.delete(name) || waits >= 0;
  }

  abortAll(): void {
    this.waiting.length = 0;
    for (const name of [...this.openings.keys()]) this.abort(name);
  }

  /** What was opened could not serve. */
  failed(message: LoadMessage, error: unknown): void {
    this.fail(message, error, 'idle');
  }

  /** Begins anew where the pool was full and another model gives way, now or once it serves. */
  private fail(message: LoadMessage, thrown: unknown, beside: LoadBeside): void {
    const error = HpcserveError.from(thrown);
    // Nothing of it is on its way any more.
    this.around.send({
      type: 'progress',
      name: message.name,
      bytes_loaded: 0,
      bytes_total: 0,
      elapsed_ms: 0,
    });
    const full = error.code === 'E_POOL_FULL';
    if (full && this.around.giveWay(message.name)) this.begin(message, beside);
    else if (full && (this.openings.size > 0 || this.around.settling())) this.waiting.push(message);
    else this.around.failed(message, error);
  }
}
