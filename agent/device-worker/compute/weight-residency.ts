import { estimateLoad_s } from '../../../solver/reuse/affinity.ts';
import type { ModelWeights } from '../../../spec/agent-state.ts';
import type { ReuseStore } from '../../memory/reuse-store.ts';
import type { WorkerModel } from './worker-model.ts';
import type { WorkerModels } from './worker-models.ts';

/** Told at most this often while models compute. Lower: gateways are nearer to the truth; higher: less work. */
const interval_ms = 250;

/**
 * What is told of models' weights in the pool (Tangram §3.4): gateways choose by it where a suspended model comes back.
 */
export class WeightResidency {
  readonly #models: WorkerModels;
  /** Changes of the store when it was told last. */
  #told = -1;
  #told_ms = Number.NEGATIVE_INFINITY;

  constructor(models: WorkerModels) {
    this.#models = models;
  }

  /** A model serves: what is known of it is news. */
  changed(): void {
    this.#told = -1;
  }

  /**
   * What is to be told now; undefined where nothing changed, or not long ago.
   * @param idle nothing else is to be done: it is told at once
   * @param promised_share of the pool, to all instances
   */
  due(
    store: () => ReuseStore,
    idle: boolean,
    promised_share: number,
  ): { name: string; weights: ModelWeights }[] | undefined {
    if (!this.#anyKnown) return undefined;
    const { changes } = store();
    if (changes === this.#told) return undefined;
    const now_ms = performance.now();
    if (!idle && now_ms - this.#told_ms < interval_ms) return undefined;
    this.#told = changes;
    this.#told_ms = now_ms;
    const resident = store().bytesByModel();
    const share = Math.round(promised_share * 1000) / 1000;
    return [...this.#models].flatMap(({ name, weight_bytes: bytes, isAway }) => {
      if (bytes === undefined) return [];
      const resident_bytes = Math.min(bytes, resident.get(name) ?? 0);
      const load_bytes_per_s = store().loadBandwidth(name);
      const weights = { bytes, resident_bytes, load_bytes_per_s, resting: isAway, promised_share: share };
      return [{ name, weights }];
    });
  }

  /** Until a model that is away is there, ms (Tangram Eq. 3); 0 where nothing is known of it. */
  loadTime_ms({ name, weight_bytes: bytes }: WorkerModel, store: ReuseStore): number {
    if (bytes === undefined) return 0;
    const resident_bytes = Math.min(bytes, store.bytesByModel().get(name) ?? 0);
    const load_s = estimateLoad_s({ bytes, resident_bytes, load_bytes_per_s: store.loadBandwidth(name) });
    return Number.isFinite(load_s) ? load_s * 1000 : 0;
  }

  get #anyKnown(): boolean {
    for (const { weight_bytes } of this.#models) if (weight_bytes !== undefined) return true;
    return false;
  }
}
