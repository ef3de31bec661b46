import { ownPause_ms } from '../host/own-pause.ts';

/** A timer that is later than this was held up by this process itself. */
const tolerance_ms = 100;

/** Calls back where nothing was heard for a time in which this process itself was able to hear. */
export class SilenceTimer {
  readonly #onSilence: (limit_ms: number) => void;
  #timer: NodeJS.Timeout | undefined;
  #immediate: NodeJS.Immediate | undefined;

  constructor(onSilence: (limit_ms: number) => void) {
    this.#onSilence = onSilence;
  }

  /** Something was heard; the next is expected within this time. */
  expectWithin(limit_ms: number): void {
    this.stop();
    this.#wait(limit_ms, limit_ms);
  }

  stop(): void {
    clearTimeout(this.#timer);
    clearImmediate(this.#immediate);
  }

  #wait(limit_ms: number, left_ms: number): void {
    const due_ms = performance.now() + left_ms;
    this.#timer = setTimeout(() => {
      const pause_ms = ownPause_ms(due_ms, performance.now(), tolerance_ms);
      if (pause_ms > 0) this.#wait(limit_ms, Math.min(pause_ms, limit_ms));
      // Timers come before what has arrived: that may be read first.
      else this.#immediate = setImmediate(() => this.#onSilence(limit_ms));
    }, left_ms);
  }
}
