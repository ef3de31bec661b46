/** Models whose weights are on their way, while the compute thread goes on with those that are there. */
import type { Engine, EngineOptions } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { LoadBeside } from '../../engine/weights.ts';
import type { DevicePool } from '../../memory/device-pool.ts';
import type { WeightLoad } from '../../memory/pooled-loading.ts';
import type { FromCompute, ToCompute } from './messages.ts';

/** Progress of a load is told at most this often. Lower: smoother; higher: fewer messages. */
const progress_interval_ms = 250;

export type LoadMessage = ToCompute & { type: 'load' };

/** What loads need of the thread around them. */
export interface LoadSurroundings {
  send(message: FromCompute): void;
  /** Something came on. */
  beat(): void;
  /** See `EngineOptions.on_kv_short`. */
  kvShort(model: string): ReturnType<NonNullable<EngineOptions['on_kv_short']>>;
  /** A model does not fit: whether another gave way to it, so that it may fit now. */
  giveWay(model: string): boolean;
  /** Weights are in their places. */
  loaded(load: WeightLoad): void;
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
  private readonly openings = new Map<string, { message: LoadMessage; opening: Opening }>();

  constructor(pool: () => DevicePool, around: LoadSurroundings) {
    this.pool = pool;
    this.around = around;
  }

  get any(): boolean {
    return this.openings.size > 0;
  }

  /** @param beside what the other models do */
  begin(message: LoadMessage, beside: LoadBeside): void {
    try {
      this.openings.set(message.name, { message, opening: this.open(message, beside) });
    } catch (error) {
      this.fail(message, error, beside);
    }
  }

  private open({ name, options, latency_sensitivity }: LoadMessage, beside: LoadBeside): Opening {
    let told = 0;
    return this.pool().open(
      {
        ...options,
        on_kv_short: () => this.around.kvShort(name),
        on_progress: ({ bytes_loaded, bytes_total, elapsed_ms }) => {
          this.around.beat();
          if (bytes_loaded < bytes_total && elapsed_ms - told < progress_interval_ms) return;
          told = elapsed_ms;
          this.around.send({ type: 'progress', name, bytes_loaded, bytes_total });
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
  }

  /** @returns whether it was loading */
  abort(name: string): boolean {
    const found = this.openings.get(name);
    found?.opening.abort();
    return this.openings.delete(name);
  }

  abortAll(): void {
    for (const name of [...this.openings.keys()]) this.abort(name);
  }

  /** What was opened could not serve. */
  failed(message: LoadMessage, error: unknown): void {
    this.fail(message, error, 'idle');
  }

  /** Begins anew where the pool was full and another model gives way. */
  private fail(message: LoadMessage, thrown: unknown, beside: LoadBeside): void {
    const error = HpcserveError.from(thrown);
    if (error.code === 'E_POOL_FULL' && this.around.giveWay(message.name)) this.begin(message, beside);
    else this.around.failed(message, error);
  }
}
