import { join } from 'node:path';
import { writeFileAtomicallyAsync } from '../../host/whole-file.ts';
import { ArrivalWindows } from '../../solver/granularity/arrival-windows.ts';
import type { DemandFile, MeasuredDemand } from '../../spec/demand.ts';
import { systemMessage } from '../../spec/errors/system-error.ts';
import { gatewayFiles } from '../../spec/state-layout.ts';
import type { GatewayLog } from '../log.ts';

/** Least time between two writes, ms. Lower: replicas are started sooner; higher: less load on a shared filesystem. */
const write_ms = 1000;
/** Last answers of a model that are told. Lower: smaller files; higher: fewer are missed between two looks at them. */
const answers_max = 64;
/** Tokens of a prompt that are computed at once, where nobody says: what the native engine takes. */
const chunk_tokens = 512;
/** Models kept; the oldest go. */
const models_max = 1000;

interface Demand {
  request_s: number;
  in_flight: number;
  asked_ms: number;
  /** Until when `request_s` is summed up. */
  summed_ms: number;
  arrivals: ArrivalWindows;
  /** Answers so far, and of the last ones when they ended and what a pass took. */
  answered: number;
  answers: [ended_ms: number, pass_ms: number][];
}

/** What is measured of an answer. */
export interface MeasuredAnswer {
  duration_ms: number;
  prompt_tokens?: number | undefined;
  completion_tokens?: number | undefined;
}

/** Counts what is asked for now, and tells who decides how many replicas there are. */
export class DemandMeter {
  readonly #path: string;
  readonly #log: GatewayLog;
  readonly #ttft_s: (model: string) => number | undefined;
  readonly #now_ms: () => number;
  readonly #started_ms: number;
  readonly #models = new Map<string, Demand>();
  #dirty = false;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> = Promise.resolve();

  /** @param ttft_s measured mean of a model's streams */
  constructor(
    folder: string,
    log: GatewayLog,
    ttft_s: (model: string) => number | undefined,
    now_ms: () => number = Date.now,
  ) {
    this.#path = join(folder, gatewayFiles.demand);
    this.#log = log;
    this.#ttft_s = ttft_s;
    this.#now_ms = now_ms;
    this.#started_ms = now_ms();
  }

  /** A request came; `ended` follows, however it ends. @param age_ms since then, where it is told late */
  began(model: string, age_ms = 0): void {
    let demand = this.#models.get(model);
    const now_ms = this.#now_ms();
    if (!demand) {
      if (this.#models.size >= models_max) this.#models.delete(this.#models.keys().next().value!);
      const arrivals = new ArrivalWindows();
      demand = {
        request_s: 0,
        in_flight: 0,
        asked_ms: now_ms,
        summed_ms: now_ms,
        arrivals,
        answered: 0,
        answers: [],
      };
      this.#models.set(model, demand);
    }
    sumUp(demand, now_ms);
    demand.in_flight++;
    demand.request_s += age_ms / 1000;
    // Clocks are set back now and then, and windows only slide forward.
    demand.asked_ms = Math.max(demand.asked_ms, now_ms);
    demand.arrivals.observe(demand.asked_ms);
    this.#changed();
  }

  ended(model: string): void {
    const demand = this.#models.get(model);
    if (!demand) return;
    sumUp(demand, this.#now_ms());
    demand.in_flight = Math.max(0, demand.in_flight - 1);
    this.#changed();
  }

  /**
   * An answer that devices computed, waiting included: answers have different lengths, and what is compared is the time
   * of a pass, one for each token and each chunk of the prompt.
   */
  answered(model: string, { duration_ms, prompt_tokens = 0, completion_tokens = 0 }: MeasuredAnswer): void {
    const demand = this.#models.get(model);
    if (!demand || completion_tokens === 0) return;
    const passes = completion_tokens + Math.ceil(prompt_tokens / chunk_tokens);
    demand.answered++;
    demand.answers.push([this.#now_ms(), Number((duration_ms / passes).toPrecision(4))]);
    if (demand.answers.length > answers_max) demand.answers.shift();
  }

  file(): DemandFile {
    const now_ms = this.#now_ms();
    const models = [...this.#models].map(([model, demand]): MeasuredDemand => {
      sumUp(demand, now_ms);
      const { request_s, in_flight, asked_ms, arrivals, answered, answers } = demand;
      const told: MeasuredDemand = { model, request_s, in_flight, asked_ms };
      const read = arrivals.read(Math.max(asked_ms, now_ms));
      told.arrivals = { ...read, windows: [...read.windows] };
      if (answered > 0) told.answers = { total: answered, last: [...answers] };
      const ttft_s = this.#ttft_s(model);
      if (ttft_s !== undefined) told.ttft_ms = 1000 * ttft_s;
      return told;
    });
    return { format: 1, started_ms: this.#started_ms, measured_ms: now_ms, models };
  }

  async close(): Promise<void> {
    clearTimeout(this.#timer);
    await this.#writing;
  }

  #changed(): void {
    this.#dirty = true;
    this.#timer ??= setTimeout(() => this.#write(), 0).unref();
  }

  /** As long as requests run the sums grow, so they are written again. */
  #write(): void {
    this.#dirty = false;
    // After a pause of this process the one before may not be written yet: the newer one is to stay.
    this.#writing = this.#writing
      .then(() =>
        writeFileAtomicallyAsync(this.#path, `${JSON.stringify(this.file())}\n`, { durability: 'content' }),
      )
      .catch((error: Error) =>
        // The next write tries again; replicas stay as many as they are meanwhile.
        this.#log.warn({ file: this.#path, reason: systemMessage(error) }, 'demand cannot be written'),
      );
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      const running = [...this.#models.values()].some(({ in_flight }) => in_flight > 0);
      if (this.#dirty || running) this.#write();
    }, write_ms).unref();
  }
}

function sumUp(demand: Demand, now_ms: number): void {
  demand.request_s += (demand.in_flight * Math.max(0, now_ms - demand.summed_ms)) / 1000;
  demand.summed_ms = now_ms;
}
