import type { ServiceTimes } from '../routing/service-times.ts';
import type { WorkloadMeter } from '../workload/workload-meter.ts';
import type { ModelMeasures } from './told-measures.ts';

/** Between two tellings, ms. Lower: workers know sooner how long answers take now; higher: less is said under load. */
const tell_ms = 1000;

export interface MeasuredAnswers {
  serviceTimes: Pick<ServiceTimes, 'measured' | 'models'>;
  workload: Pick<WorkloadMeter, 'lengths' | 'models'>;
}

/** Tells workers what the primary measures: of the first answer at once, then of those that changed each second. */
export class MeasureTeller {
  readonly #measured: MeasuredAnswers;
  readonly #tell: (measures: ModelMeasures[]) => void;
  readonly #changed = new Set<string>();
  #timer: NodeJS.Timeout | undefined;
  #told_at_ms = Number.NEGATIVE_INFINITY;

  constructor(measured: MeasuredAnswers, tell: (measures: ModelMeasures[]) => void) {
    this.#measured = measured;
    this.#tell = tell;
  }

  /** An answer of this model was measured. */
  noted(model: string): void {
    this.#changed.add(model);
    this.#timer ??= setTimeout(
      () => {
        this.#timer = undefined;
        this.#told_at_ms = performance.now();
        this.#tell([...this.#changed].map((each) => this.#of(each)));
        this.#changed.clear();
      },
      Math.max(0, this.#told_at_ms + tell_ms - performance.now()),
    ).unref();
  }

  /** Of every model. */
  all(): ModelMeasures[] {
    const { serviceTimes, workload } = this.#measured;
    const models = new Set([...serviceTimes.models(), ...workload.models()]);
    return [...models].map((model) => this.#of(model));
  }

  close(): void {
    clearTimeout(this.#timer);
  }

  #of(model: string): ModelMeasures {
    const { serviceTimes, workload } = this.#measured;
    return [model, serviceTimes.measured(model) ?? null, workload.lengths(model)];
  }
}
