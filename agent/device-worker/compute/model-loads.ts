/** Models whose weights are on their way, while the compute thread goes on with those that are there. */
import type { Engine, EngineOptions } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { DevicePool } from '../../memory/device-pool.ts';
import type { FromCompute, ToCompute } from './messages.ts';

/** Progress of a load is told at most this often. Lower: smoother; higher: fewer messages. */
const progress_interval_ms = 250;

export type LoadMessage = ToCompute & { type: 'load' };

interface Opening {
  advance(help: boolean): Engine | undefined;
  abort(): void;
}

export class ModelLoads {
  private readonly pool: () => DevicePool;
  private readonly send: (message: FromCompute) => void;
  /** Something came on. */
  private readonly beat: () => void;
  private readonly kvShort: (model: string) => ReturnType<NonNullable<EngineOptions['on_kv_short']>>;
  private readonly openings = new Map<string, { message: LoadMessage; opening: Opening }>();

  /** @param kvShort see `EngineOptions.on_kv_short` */
  constructor(
    pool: () => DevicePool,
    send: (message: FromCompute) => void,
    beat: () => void,
    kvShort: (model: string) => ReturnType<NonNullable<EngineOptions['on_kv_short']>>,
  ) {
    this.kvShort = kvShort;
    this.pool = pool;
    this.send = send;
    this.beat = beat;
  }

  get any(): boolean {
    return this.openings.size > 0;
  }

  /** @param beside what the other models do */
  begin(message: LoadMessage, beside: 'nobody' | 'idle' | 'busy'): void {
    const { name, options } = message;
    let told = 0;
    try {
      const opening = this.pool().open(
        {
          ...options,
          on_kv_short: () => this.kvShort(name),
          on_progress: ({ bytes_loaded, bytes_total, elapsed_ms }) => {
            this.beat();
            if (bytes_loaded < bytes_total && elapsed_ms - told < progress_interval_ms) return;
            told = elapsed_ms;
            this.send({ type: 'progress', name, bytes_loaded, bytes_total });
          },
        },
        { model: name },
        beside,
      );
      this.openings.set(name, { message, opening });
    } catch (error) {
      this.fail(name, error);
    }
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
        this.fail(name, error);
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

  private fail(name: string, error: unknown): void {
    this.send({ type: 'load_failed', name, error: HpcserveError.from(error).toJSON() });
  }
}
