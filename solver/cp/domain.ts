/**
 * What a variable may still be. Three representations: `BitsetDomain` for dense small ranges,
 * `SparseDomain` for sets of values that are removed one by one and iterated often, `IntervalDomain` for
 * wide ranges where only the bounds matter (objectives). All shrink only, and reversibly.
 */
export interface Domain {
  readonly min: number;
  readonly max: number;
  readonly size: number;
  /** Whether inner values can be removed. */
  readonly holes: boolean;
  has(value: number): boolean;
  /** Each mutation returns whether anything changed. @throws inconsistency when nothing is left. */
  remove(value: number): boolean;
  removeBelow(value: number): boolean;
  removeAbove(value: number): boolean;
  fix(value: number): boolean;
  /** The values left, ascending. */
  values(): number[];
}
