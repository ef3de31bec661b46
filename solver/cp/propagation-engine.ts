import type { Propagator } from './propagator.ts';
import { Trail } from './trail.ts';

/** The state of a search and the queue of propagators that wait to run. */
export class PropagationEngine {
  readonly trail = new Trail();
  readonly #early: Propagator[] = [];
  readonly #late: Propagator[] = [];

  /** Adds a constraint and propagates to a fixed point. @throws inconsistency */
  post(...propagators: Propagator[]): void {
    for (const propagator of propagators) {
      propagator.watch();
      this.schedule(propagator);
    }
    this.propagate();
  }

  schedule(propagator: Propagator): void {
    if (propagator.queued) return;
    propagator.queued = true;
    (propagator.priority === 'early' ? this.#early : this.#late).push(propagator);
  }

  /** Runs propagators, first come first served, until none is waiting. @throws inconsistency */
  propagate(): void {
    try {
      for (;;) {
        const next = this.#early.shift() ?? this.#late.shift();
        if (next === undefined) return;
        next.queued = false;
        next.propagate();
      }
    } finally {
      this.forget();
    }
  }

  /** Empties the queues: for those that catch `inconsistency` from changes made outside `propagate`. */
  forget(): void {
    for (const queue of [this.#early, this.#late]) {
      for (const propagator of queue) propagator.queued = false;
      queue.length = 0;
    }
  }
}
