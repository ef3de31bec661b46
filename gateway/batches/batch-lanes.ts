interface Waiting {
  owner: string;
  begin: () => void;
}

/**
 * Lets so many batches run at a time, and shares that out among those whose they are: a lane that is free goes to who
 * has the fewest running, of equals to who was given one the longest ago, and then to who came first. So whoever has
 * one batch waits for one lane, however many batches another has before it.
 */
export class BatchLanes {
  #free: number;
  #given = 0;
  readonly #running = new Map<string, number>();
  /** By owner: which of all lanes that were given was the last of theirs. */
  readonly #lastGiven = new Map<string, number>();
  /** In the order in which they came. */
  readonly #waiting: Waiting[] = [];

  constructor(lanes: number) {
    this.#free = lanes;
  }

  /**
   * @param signal of a batch that is stopped: it waits for no lane, and takes none
   * @returns what gives the lane back
   */
  async take(owner: string, signal: AbortSignal): Promise<() => void> {
    if (signal.aborted) return () => undefined;
    if (this.#free > 0) this.#give(owner);
    else if (!(await this.#turn(owner, signal))) return () => undefined;
    return () => this.#leave(owner);
  }

  /** @returns whether it came: false where the batch was stopped before */
  #turn(owner: string, signal: AbortSignal): Promise<boolean> {
    return new Promise((resolve) => {
      const stopped = (): void => {
        this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
        resolve(false);
      };
      const waiting: Waiting = {
        owner,
        begin: () => {
          signal.removeEventListener('abort', stopped);
          resolve(true);
        },
      };
      this.#waiting.push(waiting);
      signal.addEventListener('abort', stopped, { once: true });
    });
  }

  #give(owner: string): void {
    this.#free--;
    this.#running.set(owner, this.#runningOf(owner) + 1);
    this.#lastGiven.set(owner, ++this.#given);
  }

  #leave(owner: string): void {
    this.#free++;
    const running = this.#runningOf(owner) - 1;
    if (running > 0) this.#running.set(owner, running);
    else this.#running.delete(owner);
    const next = this.#next();
    if (!next) {
      // Who came before whom matters only to those who wait.
      this.#lastGiven.clear();
      return;
    }
    this.#waiting.splice(this.#waiting.indexOf(next), 1);
    this.#give(next.owner);
    next.begin();
  }

  #next(): Waiting | undefined {
    let best: Waiting | undefined;
    for (const one of this.#waiting) if (!best || this.#isBefore(one.owner, best.owner)) best = one;
    return best;
  }

  #isBefore(one: string, other: string): boolean {
    const more = this.#runningOf(one) - this.#runningOf(other);
    if (more !== 0) return more < 0;
    return (this.#lastGiven.get(one) ?? 0) < (this.#lastGiven.get(other) ?? 0);
  }

  #runningOf(owner: string): number {
    return this.#running.get(owner) ?? 0;
  }
}
