import { HpcserveError } from '../../../spec/errors/error.ts';

/**
 * Steps that one request's schemas may take to become a grammar; a step takes about 0.2 µs. It is a count and no time,
 * so that a request is refused on every machine or on none.
 * Lower: hostile schemas hold up the other requests of a worker for less time; higher: larger schemas are taken.
 */
const steps_max = 400_000;
/** Characters that are read, copied or compared in the time of a step. */
const chars_per_step = 32;

/** What is left of the work that the compilation of one request's constraint may be. */
export class StepBudget {
  #left = steps_max;

  /** @throws HpcserveError E_REQUEST_SCHEMA where nothing is left */
  spend(steps: number): void {
    this.#left -= steps;
    if (this.#left >= 0) return;
    throw new HpcserveError('E_REQUEST_SCHEMA', {
      what: `the constraint takes more than ${steps_max} steps to become a grammar`,
      because:
        'references, combinations of anyOf, oneOf and allOf, or long lists make it larger than it looks',
      try: 'use a smaller schema: fewer keywords beside `$ref`, fewer alternatives, shorter lists',
    });
  }

  /** @throws HpcserveError E_REQUEST_SCHEMA where nothing is left */
  spendText(text: string): void {
    this.spend(1 + text.length / chars_per_step);
  }
}
