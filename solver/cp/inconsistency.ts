/**
 * What a propagator throws when no solution is left below the present node. One frozen object without a
 * stack: it is thrown at every dead end of a search and caught only by the search.
 */
export const inconsistency: unique symbol = Symbol('inconsistency');

/** @throws inconsistency always */
export function fail(): never {
  throw inconsistency;
}
