/** Chooses which of the busy engines computes the next iteration. Smallest headroom first takes this place later. */
export interface IterationOrder<T> {
  /** @param busy not empty, in the order of loading */
  next(busy: readonly T[]): T;
}

/** Every busy engine in turn. */
export class RoundRobin<T> implements IterationOrder<T> {
  private last: T | undefined;

  next(busy: readonly T[]): T {
    const at = this.last === undefined ? -1 : busy.indexOf(this.last);
    const chosen = busy[(at + 1) % busy.length]!;
    this.last = chosen;
    return chosen;
  }
}
