import type { RequestRecord } from './record.ts';

const hour_ms = 3_600_000;

/** What requests add to an hour of their series. */
export interface HourSum {
  readonly hour: number;
  readonly series_ref: number;
  /** In the order of the columns of `hours` behind these two. */
  readonly values: number[];
}

export interface Microseconds {
  duration_us: number;
  ttft_us: number | undefined;
  device_us: number;
  energy_mj: number;
}

/** Whole units, as the ledger keeps them: integers are smaller than floating-point numbers, and add up exactly. */
export function wholeUnits(record: RequestRecord): Microseconds {
  const { ttft_ms, duration_ms, device_s = 0, energy_j = 0 } = record;
  return {
    duration_us: Math.round(duration_ms * 1000),
    ttft_us: ttft_ms === undefined ? undefined : Math.round(ttft_ms * 1000),
    device_us: Math.round(device_s * 1e6),
    energy_mj: Math.round(energy_j * 1000),
  };
}

/** Columns of `hours` that are added up; behind them stand the first and the last arrival. */
export const summedColumns = [
  'requests',
  'errors',
  'retries',
  'prompt_tokens',
  'completion_tokens',
  'cached_tokens',
  'reasoning_tokens',
  'duration_us',
  'ttft_us',
  'ttft_requests',
  'decode_us',
  'decode_tokens',
  'device_us',
  'energy_mj',
  'energy_estimated_mj',
] as const;

/** Collects what requests add to their hours. */
export class HourSums {
  readonly #sums = new Map<number, HourSum[]>();

  add(series_ref: number, record: RequestRecord, units: Microseconds): void {
    const { completion_tokens = 0, time_ms, energy_estimated, error_code, attempts } = record;
    const { duration_us, ttft_us, device_us, energy_mj } = units;
    const hour = Math.floor(time_ms / hour_ms);
    const decodes = ttft_us !== undefined && completion_tokens > 1;
    const values = this.#of(hour, series_ref, time_ms);
    values[0]! += 1;
    values[1]! += error_code === undefined ? 0 : 1;
    values[2]! += Math.max(attempts - 1, 0);
    values[3]! += record.prompt_tokens ?? 0;
    values[4]! += completion_tokens;
    values[5]! += record.cached_tokens ?? 0;
    values[6]! += record.reasoning_tokens ?? 0;
    values[7]! += duration_us;
    values[8]! += ttft_us ?? 0;
    values[9]! += ttft_us === undefined ? 0 : 1;
    values[10]! += decodes ? duration_us - ttft_us : 0;
    values[11]! += decodes ? completion_tokens - 1 : 0;
    values[12]! += device_us;
    values[13]! += energy_mj;
    values[14]! += energy_estimated ? energy_mj : 0;
    values[15] = Math.min(values[15]!, time_ms);
    values[16] = Math.max(values[16]!, time_ms);
  }

  all(): HourSum[] {
    return [...this.#sums.values()].flat();
  }

  #of(hour: number, series_ref: number, time_ms: number): number[] {
    let ofSeries = this.#sums.get(series_ref);
    if (!ofSeries) {
      ofSeries = [];
      this.#sums.set(series_ref, ofSeries);
    }
    let sum = ofSeries.find((each) => each.hour === hour);
    if (!sum) {
      sum = { hour, series_ref, values: [...summedColumns.map(() => 0), time_ms, time_ms] };
      ofSeries.push(sum);
    }
    return sum.values;
  }
}
