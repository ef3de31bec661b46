/** What LLMFabric's §6 shows of a trace, of any trace in its schema: the figures 7 to 12. */
import { bucket_tokens, type TraceRow } from '../../spec/trace.ts';

const minute_ms = 60_000;
const hour_ms = 3_600_000;
const day_ms = 86_400_000;

export interface Percentiles {
  mean: number;
  p50: number;
  p95: number;
  p99: number;
}

export interface ModelAnalysis {
  model: string;
  requests: number;
  input_tokens: number;
  output_tokens: number;
  /** Figure 8: the largest tokens of a minute, against the mean over minutes with requests. */
  burstiness: number;
  /** Figure 9: by hour since the model's first request, the largest such ratio. */
  burstiness_by_hour: number[];
  /** Figure 10: output tokens of all tokens, by day of the trace; null where there were none. */
  output_share_by_day: (number | null)[];
  /** Figure 11; the time per token is that behind the first. */
  e2e_ms: Percentiles | undefined;
  tpot_ms: Percentiles | undefined;
  /** Figure 12: input tokens in buckets that a request of the model had in the window before; null without buckets. */
  reused_share: number | null;
  reused_share_by_day: (number | null)[];
}

export interface TraceAnalysis {
  requests: number;
  first_ms: number;
  last_ms: number;
  /** Figure 7: by tokens, the most first. */
  models: ModelAnalysis[];
  /** Share of all tokens that the first three models have. */
  top3_share: number;
}

/** @param window_ms how long a prefix counts as known after it was last seen */
export function analyzeTrace(rows: Iterable<TraceRow>, window_ms: number): TraceAnalysis {
  const models = new Map<string, ModelTrace>();
  let first_ms = Number.POSITIVE_INFINITY;
  let last_ms = Number.NEGATIVE_INFINITY;
  let requests = 0;
  for (const row of rows) {
    requests++;
    first_ms = Math.min(first_ms, row.time_ms);
    last_ms = Math.max(last_ms, row.time_ms);
    let model = models.get(row.model);
    if (!model) {
      model = new ModelTrace(row.model, window_ms);
      models.set(row.model, model);
    }
    model.add(row);
  }
  const described = [...models.values()]
    .map((model) => model.describe(first_ms, last_ms))
    .sort((a, b) => tokensOf(b) - tokensOf(a));
  const all = described.reduce((sum, model) => sum + tokensOf(model), 0);
  const top3 = described.slice(0, 3).reduce((sum, model) => sum + tokensOf(model), 0);
  return { requests, first_ms, last_ms, models: described, top3_share: all === 0 ? 0 : top3 / all };
}

function tokensOf({ input_tokens, output_tokens }: ModelAnalysis): number {
  return input_tokens + output_tokens;
}

interface DayCounts {
  input: number;
  output: number;
  /** Of requests with buckets. */
  bucketed: number;
  reused: number;
}

class ModelTrace {
  readonly #model: string;
  readonly #window_ms: number;
  readonly #minutes = new Map<number, number>();
  readonly #days = new Map<number, DayCounts>();
  /** When each bucket was last seen. */
  readonly #seen = new Map<string, number>();
  readonly #e2e_ms: number[] = [];
  readonly #tpot_ms: number[] = [];
  #requests = 0;

  constructor(model: string, window_ms: number) {
    this.#model = model;
    this.#window_ms = window_ms;
  }

  add(row: TraceRow): void {
    const { time_ms, input_tokens, output_tokens, ttft_ms, e2e_ms, status } = row;
    this.#requests++;
    const minute = Math.floor(time_ms / minute_ms);
    this.#minutes.set(minute, (this.#minutes.get(minute) ?? 0) + input_tokens + output_tokens);
    const day = this.#day(Math.floor(time_ms / day_ms));
    day.input += input_tokens;
    day.output += output_tokens;
    this.#reuse(row, day);
    if (status >= 300) return;
    this.#e2e_ms.push(e2e_ms);
    if (ttft_ms !== undefined && output_tokens > 1)
      this.#tpot_ms.push((e2e_ms - ttft_ms) / (output_tokens - 1));
  }

  describe(first_ms: number, last_ms: number): ModelAnalysis {
    const minutes = [...this.#minutes].sort(([a], [b]) => a - b);
    const mean = minutes.reduce((sum, [, tokens]) => sum + tokens, 0) / minutes.length;
    const hours: number[] = [];
    const begin = minutes[0]![0] * minute_ms;
    for (const [minute, tokens] of minutes) {
      const hour = Math.floor((minute * minute_ms - begin) / hour_ms);
      hours[hour] = Math.max(hours[hour] ?? 0, mean === 0 ? 0 : tokens / mean);
    }
    const days: (DayCounts | undefined)[] = [];
    for (let day = Math.floor(first_ms / day_ms); day <= Math.floor(last_ms / day_ms); day++)
      days.push(this.#days.get(day));
    const sum = (field: keyof DayCounts): number =>
      days.reduce((total, counts) => total + (counts?.[field] ?? 0), 0);
    return {
      model: this.#model,
      requests: this.#requests,
      input_tokens: sum('input'),
      output_tokens: sum('output'),
      burstiness: Math.max(0, ...hours.filter((ratio) => ratio !== undefined)),
      burstiness_by_hour: Array.from(hours, (ratio) => ratio ?? 0),
      output_share_by_day: days.map((day) => shareOf(day?.output, day && day.input + day.output)),
      e2e_ms: percentilesOf(this.#e2e_ms),
      tpot_ms: percentilesOf(this.#tpot_ms),
      reused_share: shareOf(sum('reused'), sum('bucketed')),
      reused_share_by_day: days.map((day) => shareOf(day?.reused, day?.bucketed)),
    };
  }

  /** A bucket stands for all the text up to its end, so the first that is unknown ends what is known. */
  #reuse({ time_ms, buckets }: TraceRow, day: DayCounts): void {
    let known = 0;
    while (known < buckets.length) {
      const seen_ms = this.#seen.get(buckets[known]!);
      if (seen_ms === undefined || time_ms - seen_ms > this.#window_ms) break;
      known++;
    }
    day.bucketed += bucket_tokens * buckets.length;
    day.reused += bucket_tokens * known;
    for (const bucket of buckets) this.#seen.set(bucket, time_ms);
  }

  #day(number: number): DayCounts {
    let day = this.#days.get(number);
    if (!day) {
      day = { input: 0, output: 0, bucketed: 0, reused: 0 };
      this.#days.set(number, day);
    }
    return day;
  }
}

function shareOf(part: number | undefined, whole: number | undefined): number | null {
  return part === undefined || !whole ? null : part / whole;
}

function percentilesOf(values: readonly number[]): Percentiles | undefined {
  if (values.length === 0) return undefined;
  const sorted = Float64Array.from(values).sort();
  const at = (share: number): number =>
    sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)]!;
  const mean = sorted.reduce((sum, value) => sum + value, 0) / sorted.length;
  return { mean, p50: at(0.5), p95: at(0.95), p99: at(0.99) };
}
