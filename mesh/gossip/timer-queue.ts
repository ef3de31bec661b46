interface Event {
  at_ms: number;
  /** Of events at the same time, in the order in which they were made. */
  order: number;
  callback: () => void;
}

/** What is to happen, by time and then by order: a binary heap. */
export class TimerQueue {
  readonly #events: Event[] = [];
  #order = 0;

  /** Infinity where nothing is to happen. */
  get next_ms(): number {
    return this.#events[0]?.at_ms ?? Number.POSITIVE_INFINITY;
  }

  push(at_ms: number, callback: () => void): void {
    const events = this.#events;
    const event = { at_ms, order: this.#order++, callback };
    let at = events.length;
    events.push(event);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!before(event, events[parent]!)) break;
      events[at] = events[parent]!;
      at = parent;
    }
    events[at] = event;
  }

  /** Takes the next one out. @throws TypeError where there is none */
  pop(): () => void {
    const events = this.#events;
    const [first] = events;
    const last = events.pop()!;
    if (events.length > 0) {
      let at = 0;
      for (;;) {
        let child = 2 * at + 1;
        if (child >= events.length) break;
        if (child + 1 < events.length && before(events[child + 1]!, events[child]!)) child++;
        if (!before(events[child]!, last)) break;
        events[at] = events[child]!;
        at = child;
      }
      events[at] = last;
    }
    return first!.callback;
  }
}

function before(a: Event, b: Event): boolean {
  return a.at_ms < b.at_ms || (a.at_ms === b.at_ms && a.order < b.order);
}
