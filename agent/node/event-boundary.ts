const LF = 10;
const CR = 13;

/** What the bytes so far end with: something else, a line end, the same and CR, or an empty line. */
const Tail = { text: 0, line: 1, return: 2, empty: 3 } as const;
type Tail = (typeof Tail)[keyof typeof Tail];

/** Whether a stream of events that comes in pieces is between two of them; nothing of the pieces is kept. */
export class EventBoundary {
  #tail: Tail = Tail.empty;

  /** Whether an event may follow: the last one is whole, or none has begun. */
  get isBetween(): boolean {
    return this.#tail === Tail.empty;
  }

  push(bytes: Buffer): void {
    // An empty line is told by three bytes at most.
    const from = Math.max(0, bytes.length - 3);
    let tail = from > 0 ? Tail.text : this.#tail;
    for (let at = from; at < bytes.length; at++) tail = after(tail, bytes[at]!);
    this.#tail = tail;
  }
}

function after(tail: Tail, byte: number): Tail {
  if (byte === LF) return tail === Tail.text ? Tail.line : Tail.empty;
  return byte === CR && (tail === Tail.line || tail === Tail.empty) ? Tail.return : Tail.text;
}
