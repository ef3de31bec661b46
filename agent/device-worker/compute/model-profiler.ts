import type { GrowingProfile } from '../../../solver/sharing/growing-profile.ts';
import type { Engine } from '../../../spec/engine-contract.ts';
import { measureProfile, type ProfilingLimits } from './profile-measurement.ts';
import type { Profiling, WorkerModel } from './worker-model.ts';
import type { WorkerModels } from './worker-models.ts';

/**
 * An iteration that others have no time for is computed after so long all the same: else a model would never serve on a
 * busy device. Lower: it serves sooner; higher: fewer tokens of others are late, by one iteration each.
 */
const patience_ms = 500;

/** How the profiling of a model ended. */
export type ProfiledModel = { model: WorkerModel } & (
  | { engine: Engine; growing: GrowingProfile; took_ms: number }
  | { error: unknown }
);

/**
 * Measures models whose weights are there and of which nothing is known yet: by single iterations, while the models
 * that serve can spare the time. The one that began first is measured first; then it serves too.
 */
export class ModelProfiler {
  readonly #models: WorkerModels;

  constructor(models: WorkerModels) {
    this.#models = models;
  }

  get any(): boolean {
    return this.#models.has('profiling');
  }

  begin(model: WorkerModel, engine: Engine, limits: ProfilingLimits, now_ms: number): void {
    const measurement = measureProfile(engine, limits, model.message.profile_ms);
    model.profile({ engine, measurement, expected_ms: 0, began_ms: now_ms, waits_since_ms: now_ms });
  }

  /**
   * Computes one iteration of the first model, where there is time for it.
   * @param spare_ms how long everybody else can wait
   * @returns the model, where that was its last
   */
  advance(spare_ms: number, now_ms: number): ProfiledModel | undefined {
    const first = this.#first();
    if (!first) return undefined;
    const { model, profiling } = first;
    if (profiling.expected_ms > spare_ms && now_ms - profiling.waits_since_ms < patience_ms) return undefined;
    try {
      const next = profiling.measurement.next();
      if (next.done)
        return { model, engine: profiling.engine, growing: next.value, took_ms: now_ms - profiling.began_ms };
      profiling.expected_ms = next.value.expected_ms;
      profiling.waits_since_ms = now_ms;
      return undefined;
    } catch (error) {
      return { model, error };
    }
  }

  #first(): { model: WorkerModel; profiling: Profiling } | undefined {
    let first: { model: WorkerModel; profiling: Profiling } | undefined;
    for (const model of this.#models) {
      const { profiling } = model;
      if (profiling && (!first || profiling.began_ms < first.profiling.began_ms))
        first = { model, profiling };
    }
    return first;
  }
}
