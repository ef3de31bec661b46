/** Answers remembered. Lower: it follows changes of load sooner; higher: rare long answers are known longer. */
const answers_max = 256;

/** One answer that an engine computes. */
export interface AnswerClock {
  /** Its first token came. */
  began(now_ms: number): void;
  /** Nothing more comes. @param isWhole it was answered to its end: others say nothing of how long answers take */
  ended(now_ms: number, isWhole: boolean): void;
}

/** How long an engine's answers take, from when a request is passed on to it. All times are ms of one clock. */
export class AnswerTimes {
  /** When those that run were passed on. */
  readonly #running = new Map<AnswerClock, number>();
  readonly #answers_ms: number[] = [];
  #at = 0;
  #first_token_ms: number | undefined;
  /** Of those that were passed on while nothing else ran. */
  #alone_ms: number | undefined;
  #least_ms: number | undefined;

  pass(passed_ms: number): AnswerClock {
    const isAlone = this.#running.size === 0;
    let isFirst = true;
    const answer: AnswerClock = {
      began: (now_ms) => {
        if (!isFirst) return;
        isFirst = false;
        const took_ms = now_ms - passed_ms;
        this.#first_token_ms = followed(this.#first_token_ms, took_ms);
        this.#least_ms = Math.min(this.#least_ms ?? took_ms, took_ms);
        if (isAlone) this.#alone_ms = followed(this.#alone_ms, took_ms);
      },
      ended: (now_ms, isWhole) => {
        if (!this.#running.delete(answer) || !isWhole) return;
        this.#answers_ms[this.#at] = now_ms - passed_ms;
        this.#at = (this.#at + 1) % answers_max;
      },
    };
    this.#running.set(answer, passed_ms);
    return answer;
  }

  /** Of streams, as loaded as the engine is; 0 until one was seen. */
  get first_token_ms(): number {
    return this.#first_token_ms ?? 0;
  }

  /** Of streams on an engine that computes nothing else; until one was seen, the least of all. */
  get idle_first_token_ms(): number {
    return this.#alone_ms ?? this.#least_ms ?? 0;
  }

  /** Mean of all; 0 until one was seen. */
  get answer_ms(): number {
    return meanOf(this.#answers_ms) ?? 0;
  }

  /**
   * Expected until each of those that run is answered: by the mean of the answers that took longer than it does
   * already. Where none did, it takes as long again.
   */
  left_ms(now_ms: number): number[] {
    return [...this.#running.values()].map((passed_ms) => {
      const elapsed_ms = now_ms - passed_ms;
      const whole_ms = meanOf(this.#answers_ms.filter((each) => each > elapsed_ms)) ?? 2 * elapsed_ms;
      return whole_ms - elapsed_ms;
    });
  }
}

/** The newest counts for a tenth, as in profiles of native models. */
function followed(mean_ms: number | undefined, took_ms: number): number {
  return mean_ms === undefined ? took_ms : mean_ms + (took_ms - mean_ms) / 10;
}

function meanOf(values: readonly number[]): number | undefined {
  if (values.length === 0) return undefined;
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
