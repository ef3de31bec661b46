import { fail } from '../cp/inconsistency.ts';
import { Propagator } from '../cp/propagator.ts';
import type { SparseDomain } from '../cp/sparse-domain.ts';
import type { Trail } from '../cp/trail.ts';
import type { Variable } from '../cp/variable.ts';
import type { ModelPatterns } from './patterns.ts';
import { Relaxation } from './relaxation.ts';

/**
 * The constraint at the heart of placement: one pattern for every model, capacities for every type, least
 * cost. Three filters, cheapest first: what surely does not fit; the bound of the linear relaxation; and
 * reduced costs.
 */
export class CapacitatedChoice extends Propagator {
  override readonly priority = 'late';
  /** The relaxation of the present node, solved by the last propagation. */
  readonly relaxation: Relaxation;

  readonly #choices: readonly Variable[];
  readonly #domains: readonly SparseDomain[];
  readonly #objective: Variable;
  readonly #types: number;
  readonly #stride: number;
  readonly #counts: Float64Array;
  readonly #least: Float64Array;
  readonly #flags: Uint8Array;

  /** @param choices one variable a model over its pattern numbers, with sparse domains */
  constructor(
    trail: Trail,
    choices: readonly Variable[],
    patterns: readonly ModelPatterns[],
    counts: Float64Array,
    objective: Variable,
  ) {
    super();
    const types = counts.length;
    this.#choices = choices;
    this.#domains = choices.map((choice) => choice.domain as SparseDomain);
    this.#objective = objective;
    this.#types = types;
    this.#stride = types + 1;
    this.#counts = counts;
    this.#least = new Float64Array(types);
    this.relaxation = new Relaxation(trail, this.#domains, patterns, counts);
    this.#flags = new Uint8Array(Math.max(1, ...patterns.map(({ count }) => count)));
  }

  watch(): void {
    for (const choice of this.#choices) choice.wakeOnChange(this);
    this.#objective.wakeOnBounds(this);
  }

  propagate(): void {
    // What this propagator removes itself need not wake it again.
    this.queued = true;
    try {
      this.#filter();
    } finally {
      this.queued = false;
    }
  }

  #filter(): void {
    this.#filterByCapacity();
    this.relaxation.solve(this.#objective.max);
    this.#objective.removeBelow(this.relaxation.leastCost);
    this.#filterByReducedCost();
    if (this.#choices.every(({ fixed }) => fixed)) {
      let cost = 0;
      this.#choices.forEach((choice, model) => {
        cost += this.relaxation.costOf(model, choice.min);
      });
      this.#objective.removeBelow(cost);
    }
  }

  /** Whether capacities hold with these patterns for `models` and the fixed ones of the others. */
  fits(models: readonly number[], patterns: readonly number[]): boolean {
    for (let type = 0; type < this.#types; type++) {
      let room = this.#counts[type]!;
      this.#choices.forEach((choice, model) => {
        const at = models.indexOf(model);
        room -= this.relaxation.devices(model, at < 0 ? choice.min : patterns[at]!, type);
      });
      if (room < 0) return false;
    }
    return true;
  }

  /** Removes patterns that do not fit beside the least that the other models take. */
  #filterByCapacity(): void {
    const types = this.#types;
    const stride = this.#stride;
    const data = this.relaxation.data;
    const models = this.#domains.length;
    const least = this.#least;
    for (let again = true; again; ) {
      again = false;
      for (let type = 0; type < types; type++) {
        let room = this.#counts[type]!;
        let widest = 0;
        for (let model = 0; model < models; model++) {
          const { dense, size } = this.#domains[model]!;
          let at = this.relaxation.first[model]! * stride + 1 + type;
          let min = Number.POSITIVE_INFINITY;
          let max = 0;
          for (let index = 0; index < size; index++) {
            const devices = data[at + dense[index]! * stride]!;
            if (devices < min) min = devices;
            if (devices > max) max = devices;
          }
          at = max - min;
          if (at > widest) widest = at;
          room -= min;
        }
        if (room < 0) fail();
        least[type] = room;
        if (widest <= room) continue;
        for (let model = 0; model < models; model++) {
          const domain = this.#domains[model]!;
          const { dense, size } = domain;
          const start = this.relaxation.first[model]! * stride + 1 + type;
          let min = Number.POSITIVE_INFINITY;
          for (let index = 0; index < size; index++) {
            const devices = data[start + dense[index]! * stride]!;
            if (devices < min) min = devices;
          }
          let removed = 0;
          for (let index = 0; index < size; index++) {
            const pattern = dense[index]!;
            const over = data[start + pattern * stride]! > min + room;
            this.#flags[pattern] = over ? 1 : 0;
            if (over) removed++;
          }
          if (removed > 0) {
            this.#remove(model);
            again = true;
          }
        }
      }
    }
  }

  /** Removes patterns that would cost more than the objective allows, even with the rest at its cheapest. */
  #filterByReducedCost(): void {
    const { relaxation } = this;
    const { first, priced, least } = relaxation;
    const flags = this.#flags;
    // The bound from the patterns that are left, in case the dual simplex ended early.
    relaxation.bound = relaxation.boundAtPrices();
    const slack = this.#objective.max - relaxation.bound + relaxation.slop;
    if (slack < 0) fail();
    for (let model = 0; model < this.#domains.length; model++) {
      const { dense, size } = this.#domains[model]!;
      if (size === 1) continue;
      const start = first[model]!;
      const most = least[model]! + slack;
      let removed = 0;
      for (let index = 0; index < size; index++) {
        const pattern = dense[index]!;
        const out = priced[start + pattern]! > most;
        flags[pattern] = out ? 1 : 0;
        if (out) removed++;
      }
      if (removed > 0) this.#remove(model);
    }
  }

  /** Removes the flagged patterns of a model and wakes its watchers. */
  #remove(model: number): void {
    const choice = this.#choices[model]!;
    const { min, max } = choice;
    if (this.#domains[model]!.removeFlagged(this.#flags)) choice.changed(min, max);
  }
}
