/** Weight of the newest answer. Lower: steadier; higher: follows changes of load sooner. */
const weight = 0.1;
/** Assumed of a model of which no answer is known yet. */
const unknown_s = 10;

/** Moving averages over the answers of one model, seconds. */
export interface AnswerMeans {
  /** As `ServiceTime.duration_ms`. */
  duration_s: number;
  /** Of streams: until the first byte where nothing had to be waited for, and between two tokens. */
  ttft_s?: number;
  tpot_s?: number;
}

/** How long a replica worked for one answer. */
export interface ServiceTime {
  /** From when it had a place in its batch until its end: what is before that is waiting, whoever has caused it. */
  duration_ms: number;
  /** The request had to wait, so that this is what is left of its time by the number of those before it. */
  is_estimate: boolean;
  /** Until the first byte; undefined where the request had to wait, or came to no answer. */
  ttft_ms: number | undefined;
}

/** What else counts of an answer, as the ledger has it. */
interface TimedAnswer {
  duration_ms: number;
  stream: boolean;
  ttft_ms?: number | undefined;
  completion_tokens?: number | undefined;
}

/**
 * How long replicas of each model work for an answer, and how fast its tokens come. Waiting is no part of the work:
 * queues are foretold from it, and would grow shorter the longer they are.
 */
export class ServiceTimes {
  readonly #means = new Map<string, AnswerMeans>();
  readonly #clientTtft_s = new Map<string, number>();

  /** @param service undefined where it is not known how long a replica worked for it */
  answered(model: string, answer: TimedAnswer, service: ServiceTime | undefined): void {
    const { duration_ms, stream, ttft_ms, completion_tokens } = answer;
    if (stream && ttft_ms !== undefined)
      this.#clientTtft_s.set(model, moved(this.#clientTtft_s.get(model), ttft_ms / 1000));
    if (!service) return;
    const service_s = service.duration_ms / 1000;
    const known = this.#means.get(model);
    const means = known ?? { duration_s: service_s };
    this.#means.set(model, means);
    // How many were before it is known from heartbeats, which may be late: an estimate is for want of better.
    if (known && !service.is_estimate) means.duration_s = moved(means.duration_s, service_s);
    if (!stream || ttft_ms === undefined) return;
    if (service.ttft_ms !== undefined) means.ttft_s = moved(means.ttft_s, service.ttft_ms / 1000);
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

  /** Mean time from a stream's arrival until its first byte, as clients see it. */
  clientTtft_s(model: string): number | undefined {
    return this.#clientTtft_s.get(model);
  }

  models(): Iterable<string> {
    return this.#means.keys();
  }

  /** Mean time that a replica works for an answer, seconds. */
  of(model: string): number {
    return this.#means.get(model)?.duration_s ?? unknown_s;
  }
}

function moved(mean: number | undefined, value: number): number {
  return mean === undefined ? value : mean + weight * (value - mean);
}
