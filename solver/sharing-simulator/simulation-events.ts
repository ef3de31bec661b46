/** Events in the order of their times; those of one time in the order in which they were added. */
export class SimulationEvents<T> {
  readonly #times: number[] = [];
  readonly #orders: number[] = [];
  readonly #events: T[] = [];
  #added = 0;

  get size(): number {
    return this.#events.length;
  }

  add(at_ms: number, event: T): void {
    let at = this.#events.length;
    const order = this.#added++;
    this.#times.push(at_ms);
    this.#orders.push(order);
    this.#events.push(event);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!this.#before(at, parent)) break;
      this.#swap(at, parent);
      at = parent;
    }
  }

  /** The earliest event; undefined where there is none. */
  next(): { at_ms: number; event: T } | undefined {
    const last = this.#events.length - 1;
    if (last < 0) return undefined;
    this.#swap(0, last);
    const at_ms = this.#times.pop()!;
    this.#orders.pop();
    const event = this.#events.pop()!;
    for (let at = 0; ; ) {
      let least = at;
      for (const child of [2 * at + 1, 2 * at + 2])
        if (child < last && this.#before(child, least)) least = child;
      if (least === at) break;
      this.#swap(at, least);
      at = least;
    }
    return { at_ms, event };
  }

  #before(a: number, b: number): boolean {
    const [left, right] = [this.#times[a]!, this.#times[b]!];
    return left < right || (left === right && this.#orders[a]! < this.#orders[b]!);
  }

  #swap(a: number, b: number): void {
    swap(this.#times, a, b);
    swap(this.#orders, a, b);
    swap(this.#events, a, b);
  }
}

function swap<T>(array: T[], a: number, b: number): void {
  const held = array[a]!;
  array[a] = array[b]!;
  array[b] = held;
}
