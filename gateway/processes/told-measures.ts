import { type AnswerMeans, ServiceTimes } from '../routing/service-times.ts';
import { type AnswerLengths, lengthsUnknown } from '../workload/workload-meter.ts';

/** What was measured of the answers of a model, as far as routing and limits go by it. */
export type ModelMeasures = [model: string, means: AnswerMeans | null, lengths: AnswerLengths];

/**
 * What the primary measured of the answers of all workers: by this each of them routes, so that they agree, and one
 * that has just started knows as much as the others.
 */
export class ToldMeasures {
  readonly serviceTimes = new ServiceTimes();
  readonly #lengths = new Map<string, AnswerLengths>();

  take(measures: readonly ModelMeasures[]): void {
    for (const [model, means, lengths] of measures) {
      if (means) this.serviceTimes.take(model, means);
      this.#lengths.set(model, lengths);
    }
  }

  expectedLength_tokens(model: string): number {
    return this.#of(model).expected_tokens;
  }

  longAnswer(model: string): number {
    return this.#of(model).long_answer_tokens;
  }

  #of(model: string): AnswerLengths {
    return this.#lengths.get(model) ?? lengthsUnknown;
  }
}
