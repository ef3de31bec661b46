/**
 * Divides the time of a session's devices among the requests that it has: at each moment an equal share each, so that
 * the shares of all add up to the time in which there was one at least. It counts this gateway's requests alone.
 *
 * A clock runs at 1/n while n requests are there; what one has used is how far the clock came meanwhile. So beginning
 * and ending cost the same, however many there are.
 */
export class DeviceTime {
  readonly #now_ms: () => number;
  #requests = 0;
  #clock_ms = 0;
  #busy_ms = 0;
  #at_ms = 0;
  #idle_since_ms = 0;

  constructor(now_ms: () => number = () => performance.now()) {
    this.#now_ms = now_ms;
  }

  /** Time in which there was a request at least, s. */
  get busy_s(): number {
    this.#turn();
    return this.#busy_ms / 1000;
  }

  /**
   * @param age_ms since it began, where that is told late. What it has used since then goes off the shares of those
   * that are there now; where nobody is, it is time in which nobody was.
   * @returns ends the request's use, and tells its share, s; to be called once
   */
  begin(age_ms = 0): () => number {
    this.#turn();
    const others = this.#requests++;
    let used_ms: number;
    if (others > 0) {
      used_ms = age_ms / (others + 1);
      this.#clock_ms -= used_ms / others;
    } else {
      used_ms = Math.min(age_ms, this.#at_ms - this.#idle_since_ms);
      this.#busy_ms += used_ms;
    }
    const began_ms = this.#clock_ms - used_ms;
    return () => {
      this.#turn();
      if (--this.#requests === 0) this.#idle_since_ms = this.#at_ms;
      // One that came later than was said of another may have had nothing.
      return Math.max(0, this.#clock_ms - began_ms) / 1000;
    };
  }

  #turn(): void {
    const now_ms = this.#now_ms();
    if (this.#requests > 0) {
      this.#clock_ms += (now_ms - this.#at_ms) / this.#requests;
      this.#busy_ms += now_ms - this.#at_ms;
    }
    this.#at_ms = now_ms;
  }
}
