/** Requests as columns: one entry per request, in order of arrival. */
import { HpcserveError } from '../../spec/errors/error.ts';

export interface RequestColumns {
  /** Seconds from the start; not decreasing. */
  arrival_s: Float64Array;
  input_tokens: Int32Array;
  /** Tokens to generate, at least 1. */
  output_tokens: Int32Array;
}

export interface RequestRow {
  arrival_s: number;
  input_tokens: number;
  output_tokens: number;
}

/**
 * Rows in any order as columns by arrival.
 * @throws E_SIMULATION_INPUT where there is none, or a row has no tokens or a time that is no number.
 */
export function requestColumns(rows: readonly RequestRow[]): RequestColumns {
  if (rows.length === 0)
    throw new HpcserveError('E_SIMULATION_INPUT', { what: 'there are no requests to simulate' });
  for (const [index, row] of rows.entries()) {
    const whole = (value: number): boolean => Number.isSafeInteger(value) && value >= 1 && value < 2 ** 31;
    if (Number.isFinite(row.arrival_s) && whole(row.input_tokens) && whole(row.output_tokens)) continue;
    throw new HpcserveError('E_SIMULATION_INPUT', {
      what: `request ${index + 1} cannot be simulated`,
      because: `arrival ${row.arrival_s} s, ${row.input_tokens} tokens in, ${row.output_tokens} tokens out: a time and whole numbers of at least 1 are needed`,
    });
  }
  const sorted = [...rows].sort((a, b) => a.arrival_s - b.arrival_s);
  const start = sorted[0]!.arrival_s;
  return {
    arrival_s: Float64Array.from(sorted, (row) => row.arrival_s - start),
    input_tokens: Int32Array.from(sorted, (row) => row.input_tokens),
    output_tokens: Int32Array.from(sorted, (row) => row.output_tokens),
  };
}
