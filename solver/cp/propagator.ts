/**
 * A constraint at work: removes values that can be in no solution. It may be weak, but it must never remove
 * a value of a solution, and with all its variables fixed it must decide.
 */
export abstract class Propagator {
  /** Held by the engine: whether it waits in a queue. */
  queued = false;
  /** `late` ones run when all `early` ones are done; for expensive filtering. */
  readonly priority: 'early' | 'late' = 'early';

  /** Registers with the variables it watches; called once by `Engine.post`. */
  abstract watch(): void;

  /** @throws inconsistency when no solution is left */
  abstract propagate(): void;
}
