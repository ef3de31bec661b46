import { IterationPace } from '../../../solver/disaggregation/pace.ts';
import type { FromCompute } from '../compute/messages.ts';

/** How fast the models of this worker are, by name, from the iterations that it computes. */
export class ModelPaces {
  readonly #paces = new Map<string, IterationPace>();
  readonly #step_s_min: number;

  /** @param step_ms_min least time of an iteration, where the device's speed is declared */
  constructor(step_ms_min: number) {
    this.#step_s_min = step_ms_min / 1000;
  }

  observe({ name, prefill_tokens, decode_tokens, elapsed_us }: FromCompute & { type: 'step' }): void {
    this.of(name).observe(prefill_tokens, decode_tokens, Math.max(elapsed_us / 1e6, this.#step_s_min));
  }

  of(name: string): IterationPace {
    let pace = this.#paces.get(name);
    if (!pace) {
      pace = new IterationPace();
      this.#paces.set(name, pace);
    }
    return pace;
  }
}
