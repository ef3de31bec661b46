/** Weight of the newest answer. Lower: steadier; higher: follows changes of load sooner. */
const weight = 0.1;
/** Assumed of a model of which no answer is known yet. */
const unknown_s = 10;

/** How long answers of each model take from arrival to end, as a moving average. */
export class ServiceTimes {
  readonly #mean_s = new Map<string, number>();

  answered(model: string, duration_s: number): void {
    const mean_s = this.#mean_s.get(model);
    this.#mean_s.set(model, mean_s === undefined ? duration_s : mean_s + weight * (duration_s - mean_s));
  }

  of(model: string): number {
    return this.#mean_s.get(model) ?? unknown_s;
  }
}
