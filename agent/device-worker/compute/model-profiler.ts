/**
 * Models whose weights are there and of which nothing is known yet: they are measured by single iterations, while the
 * models that serve can spare the time, and then serve too.
 */
import type { GrowingProfile } from '../../../solver/sharing/growing-profile.ts';
import type { Engine } from '../../../spec/engine-contract.ts';
import type { LoadMessage } from './model-loads.ts';
import { type MeasuredLimits, measureProfile, type ProfileMeasurement } from './profile-measurement.ts';

/**
 * An iteration that others have no time for is computed after so long all the same: else a model would never serve on a
 * busy device. Lower: it serves sooner; higher: fewer tokens of others are late, by one iteration each.
 */
const patience_ms = 500;

interface Measured {
  message: LoadMessage;
  engine: Engine;
  measurement: ProfileMeasurement;
  expected_ms: number;
  began_ms: number;
  /** Since when its next iteration waits. */
  waits_since_ms: number;
}

/** How a measurement ended. */
export type MeasuredModel = { message: LoadMessage; engine: Engine } & (
  | { growing: GrowingProfile; took_ms: number }
  | { error: unknown }
);

export class ModelProfiler {
  readonly #models: Measured[] = [];

  get any(): boolean {
    return this.#models.length > 0;
  }

  begin(message: LoadMessage, engine: Engine, limits: MeasuredLimits, now_ms: number): void {
    const measurement = measureProfile(engine, limits, message.profile_ms);
    this.#models.push({
      message,
      engine,
      measurement,
      expected_ms: 0,
      began_ms: now_ms,
      waits_since_ms: now_ms,
    });
  }

  /**
   * Computes one iteration of the model that has waited longest, where there is time for it.
   * @param spare_ms how long everybody else can wait
   * @returns the model, where that was its last
   */
  advance(spare_ms: number, now_ms: number): MeasuredModel | undefined {
    const first = this.#models[0];
    if (!first) return undefined;
    if (first.expected_ms > spare_ms && now_ms - first.waits_since_ms < patience_ms) return undefined;
    const { message, engine, measurement } = first;
    try {
      const next = measurement.next();
      if (next.done) {
        this.#models.shift();
        return { message, engine, growing: next.value, took_ms: now_ms - first.began_ms };
      }
      first.expected_ms = next.value.expected_ms;
      first.waits_since_ms = now_ms;
      return undefined;
    } catch (error) {
      this.#models.shift();
      return { message, engine, error };
    }
  }

  /** Ends the measurement of a model, and closes its engine. */
  abort(name: string): void {
    const at = this.#models.findIndex(({ message }) => message.name === name);
    if (at < 0) return;
    const [{ engine, measurement }] = this.#models.splice(at, 1) as [Measured];
    measurement.return(undefined as never);
    engine.close();
  }

  abortAll(): void {
    for (const { message } of [...this.#models]) this.abort(message.name);
  }
}
