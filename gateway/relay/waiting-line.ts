import type { RouteRequest } from '../routing/router.ts';

/** Between two looks while nothing is known to have changed. */
const look_ms = 100;

/** Looks for a replica once. @returns undefined where it waits on */
type Look<T> = (pass: LinePass) => T | undefined;

/**
 * Requests that wait for a replica, in the order in which they came. A replica that comes is not given all of them at
 * once: each goes when one has a free place, so that the next replica finds some to take, and what comes later does not
 * pass those that wait.
 *
 * ```
 *  nobody serves ──► in line ──► one serves, has a place ──────────────────────────────► goes there
 *                        │       one serves, all its places are taken: held, until ──┬─► a place is free
 *                        │                                                           └─► held_ms are over
 *                        └─ nobody comes in time: refused
 * ```
 */
export class WaitingLine {
  readonly #waiting = new Set<(pass: LinePass) => boolean>();
  readonly #held = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;
  #woken = false;

  /** Requests for this name that wait though replicas serve: their places are taken. */
  held(model: string): number {
    return this.#held.get(model) ?? 0;
  }

  /** @param by 1 for one more, -1 for one less */
  changeHeld(model: string, by: 1 | -1): void {
    const count = this.held(model) + by;
    if (count > 0) this.#held.set(model, count);
    else this.#held.delete(model);
  }

  /**
   * Looks until something is found, whoever came first before the others.
   * @param atOnce it looks before its turn comes, as nobody waits whom it would pass
   */
  async until<T>(look: Look<T>, atOnce: boolean): Promise<T> {
    const found = atOnce ? look(new LinePass()) : undefined;
    if (found !== undefined) return found;
    return new Promise((resolve, reject) => {
      this.#waiting.add((pass) => {
        try {
          const later = look(pass);
          if (later === undefined) return false;
          resolve(later);
        } catch (error) {
          reject(error);
        }
        return true;
      });
      this.#timer ??= setInterval(() => this.#look(), look_ms);
      if (!atOnce) this.wake();
    });
  }

  /** A place may have become free. */
  wake(): void {
    if (this.#woken || this.#waiting.size === 0) return;
    this.#woken = true;
    setImmediate(() => this.#look());
  }

  #look(): void {
    this.#woken = false;
    const pass = new LinePass();
    for (const look of [...this.#waiting]) if (look(pass)) this.#waiting.delete(look);
    if (this.#waiting.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}

/** What one walk along the line has found out: those behind need not ask again. */
export class LinePass {
  readonly #full = new Map<string, Set<RouteRequest['filter']>>();

  /** All replicas that serve such a request are full. */
  noteFull({ model, filter }: RouteRequest): void {
    const filters = this.#full.get(model);
    if (filters) filters.add(filter);
    else this.#full.set(model, new Set([filter]));
  }

  isFull({ model, filter }: RouteRequest): boolean {
    return this.#full.get(model)?.has(filter) === true;
  }
}
