/**
 * Work of one turn of the event loop, ms. Lower: others wait for less long; higher: fewer turns where much comes at
 * once.
 */
const turn_ms = 20;

/** Does one piece of work after the other, and lets everything else of the process go on in between. */
export class Turns {
  readonly #waiting: (() => void)[] = [];
  readonly #waiting_max: number;
  #next: NodeJS.Immediate | undefined;
  #used_ms = 0;

  /**
   * @param waiting_max pieces that may wait. Lower: less memory for who sends faster than is read; higher: fewer that
   * do not count.
   */
  constructor(waiting_max: number) {
    this.#waiting_max = waiting_max;
  }

  /** @returns whether it is done, or will be; false where too many wait */
  run(work: () => void): boolean {
    if (this.#waiting.length >= this.#waiting_max) return false;
    this.#waiting.push(work);
    if (this.#used_ms < turn_ms) this.#turn();
    return true;
  }

  #turn(): void {
    while (this.#waiting.length > 0 && this.#used_ms < turn_ms) {
      const began_ms = performance.now();
      this.#waiting.shift()!();
      this.#used_ms += performance.now() - began_ms;
    }
    this.#next ??= setImmediate(() => {
      this.#next = undefined;
      this.#used_ms = 0;
      if (this.#waiting.length > 0) this.#turn();
    });
  }
}
