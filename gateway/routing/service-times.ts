/** Weight of the newest answer. Lower: steadier; higher: follows changes of load sooner. */
const weight = 0.1;
/** Assumed of a model of which no answer is known yet. */
const unknown_s = 10;

/** Moving averages over the answers of one model, seconds. */
export interface AnswerMeans {
  duration_s: number;
  /** Of streams: until the first byte, and between two tokens. */
  ttft_s?: number;
  tpot_s?: number;
}

export interface TimedAnswer {
  duration_ms: number;
  stream: boolean;
  ttft_ms?: number | undefined;
  completion_tokens?: number | undefined;
}

/** How long answers of each model take from arrival to end, and how fast their tokens come. */
export class ServiceTimes {
  readonly #means = new Map<string, AnswerMeans>();

  answered(model: string, answer: TimedAnswer): void {
    const { duration_ms, stream, ttft_ms, completion_tokens } = answer;
    const means = this.#means.get(model) ?? { duration_s: duration_ms / 1000 };
    this.#means.set(model, means);
    means.duration_s += weight * (duration_ms / 1000 - means.duration_s);
    if (!stream || ttft_ms === undefined) return;
    means.ttft_s = moved(means.ttft_s, ttft_ms / 1000);
    if (completion_tokens === undefined || completion_tokens < 2) return;
    means.tpot_s = moved(means.tpot_s, (duration_ms - ttft_ms) / 1000 / (completion_tokens - 1));
  }

  /** What another process measured counts instead of what was known here. */
  take(model: string, means: AnswerMeans): void {
    this.#means.set(model, means);
  }

  /** Undefined where no answer is known yet. */
  measured(model: string): Readonly<AnswerMeans> | undefined {
    return this.#means.get(model);
  }

  models(): Iterable<string> {
    return this.#means.keys();
  }

  /** Mean duration of an answer, seconds. */
  of(model: string): number {
    return this.#means.get(model)?.duration_s ?? unknown_s;
  }
}

function moved(mean: number | undefined, value: number): number {
  return mean === undefined ? value : mean + weight * (value - mean);
}
