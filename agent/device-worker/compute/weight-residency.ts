/** What is told of models' weights in the pool (Tangram §3.4): gateways choose by it where a resting model comes back. */
import type { ModelWeights } from '../../../spec/agent-state.ts';
import type { ReuseStore } from '../../memory/reuse-store.ts';

/** Told at most this often while models compute. Lower: gateways are nearer to the truth; higher: less work. */
const interval_ms = 250;

export class WeightResidency {
  /** S of each model, bytes. */
  readonly #sizes = new Map<string, number>();
  #told = -1;
  #told_ms = Number.NEGATIVE_INFINITY;

  /** A model has an instance. */
  opened(name: string, store: ReuseStore): void {
    this.#sizes.set(name, store.usedBytes(name));
    this.#told = -1;
  }

  /** It is not served here any more. */
  forget(name: string): void {
    this.#sizes.delete(name);
  }

  /**
   * What is to be told now; undefined where nothing changed, or not long ago.
   * @param idle nothing else is to be done: it is told at once
   */
  due(
    store: () => ReuseStore,
    rests: (name: string) => boolean,
    idle: boolean,
  ): { name: string; weights: ModelWeights }[] | undefined {
    if (this.#sizes.size === 0) return undefined;
    const { changes } = store();
    if (changes === this.#told) return undefined;
    const now_ms = performance.now();
    if (!idle && now_ms - this.#told_ms < interval_ms) return undefined;
    this.#told = changes;
    this.#told_ms = now_ms;
    const resident = store().bytesByModel();
    return [...this.#sizes].map(([name, bytes]) => ({
      name,
      weights: {
        bytes,
        resident_bytes: Math.min(bytes, resident.get(name) ?? 0),
        load_bytes_per_s: store().loadBandwidth(name),
        resting: rests(name),
      },
    }));
  }
}
