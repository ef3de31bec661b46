import { ownPause_ms } from '../host/own-pause.ts';

/** A timer that is later than this was held up by this process itself. */
const tolerance_ms = 100;
/** A timer may be so much too early: Node's clock of timers has whole milliseconds. */
const early_ms = 2;

/** Calls back where nothing was heard for a time in which this process itself was able to hear. */
export class SilenceTimer {
  readonly #onSilence: (limit_ms: number) => void;
  /** Not set anew whenever something was heard: it looks what is due when it comes, which is far more rarely. */
  #timer: NodeJS.Timeout | undefined;
  #wakes_at_ms = 0;
  #immediate: NodeJS.Immediate | undefined;
  #due_ms = 0;
  #limit_ms = 0;

  constructor(onSilence: (limit_ms: number) => void) {
    this.#onSilence = onSilence;
  }

  /** Something was heard; the next is expected within this time. */
  expectWithin(limit_ms: number): void {
    clearImmediate(this.#immediate);
    this.#limit_ms = limit_ms;
    this.#waitFor(limit_ms);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    clearImmediate(this.#immediate);
  }

  #waitFor(left_ms: number): void {
    this.#due_ms = performance.now() + left_ms;
    if (this.#timer && this.#wakes_at_ms <= this.#due_ms) return;
    clearTimeout(this.#timer);
    this.#wakeWhenDue(left_ms);
  }

  #wakeWhenDue(left_ms: number): void {
    this.#wakes_at_ms = this.#due_ms;
    this.#timer = setTimeout(() => this.#look(), left_ms);
  }

  #look(): void {
    this.#timer = undefined;
    const now_ms = performance.now();
    const left_ms = this.#due_ms - now_ms;
    if (left_ms > early_ms) {
      this.#wakeWhenDue(left_ms);
      return;
    }
    const limit_ms = this.#limit_ms;
    const pause_ms = ownPause_ms(this.#due_ms, now_ms, tolerance_ms);
    if (pause_ms > 0) this.#waitFor(Math.min(pause_ms, limit_ms));
    // Timers come before what has arrived: that may be read first.
    else this.#immediate = setImmediate(() => this.#onSilence(limit_ms));
  }
}
