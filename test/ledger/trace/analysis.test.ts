/** Figures of a trace whose every number is known. */
import { expect, it } from 'vitest';
import { analyzeTrace } from '../../../ledger/index.ts';
import type { TraceRow } from '../../../spec/trace.ts';

const begin = Date.UTC(2026, 0, 1);
const minute_ms = 60_000;

function rowOf(change: Partial<TraceRow>): TraceRow {
  return {
    time_ms: begin,
    model: 'a',
    input_tokens: 60,
    output_tokens: 40,
    ttft_ms: 100,
    e2e_ms: 490,
    stream: true,
    status: 200,
    parameters: {},
    buckets: [],
    ...change,
  };
}

it('tells skew, burstiness, lengths and latency', () => {
  // Minutes of 100, 100 and 400 tokens, the last one two hours later and on the next day for another model.
  const rows = [
    rowOf({}),
    rowOf({ time_ms: begin + minute_ms }),
    ...Array.from({ length: 4 }, () => rowOf({ time_ms: begin + 120 * minute_ms })),
    rowOf({ model: 'b', time_ms: begin + 1440 * minute_ms, input_tokens: 0, output_tokens: 10, status: 500 }),
  ];
  const { models, requests, top3_share } = analyzeTrace(rows, minute_ms);
  expect({ requests, top3_share }).toEqual({ requests: 7, top3_share: 1 });
  expect(models.map(({ model }) => model)).toEqual(['a', 'b']);
  const [a, b] = models;
  expect(a).toMatchObject({
    input_tokens: 360,
    output_tokens: 240,
    burstiness: 2,
    burstiness_by_hour: [0.5, 0, 2],
  });
  expect(a!.output_share_by_day).toEqual([0.4, null]);
  expect(a!.e2e_ms).toEqual({ mean: 490, p50: 490, p95: 490, p99: 490 });
  expect(a!.tpot_ms!.p50).toBe(10);
  expect(a!.reused_share).toBeNull();
  // What failed says nothing of how long answers take.
  expect(b).toMatchObject({
    e2e_ms: undefined,
    tpot_ms: undefined,
    burstiness: 1,
    output_share_by_day: [null, 1],
  });
  expect(analyzeTrace([], 1)).toMatchObject({ requests: 0, models: [], top3_share: 0 });
});

it('counts prefixes as known as long as the window, and only from their beginning', () => {
  const rows = [
    rowOf({ buckets: ['1', '2', '3'] }),
    rowOf({ time_ms: begin + minute_ms, buckets: ['1', '2', '9'] }),
    rowOf({ time_ms: begin + minute_ms, buckets: ['8', '2', '3'] }),
    rowOf({ time_ms: begin + 10 * minute_ms, buckets: ['1', '2', '3'] }),
    rowOf({ model: 'b', time_ms: begin + 10 * minute_ms, buckets: ['1'] }),
  ];
  const { models } = analyzeTrace(rows, 5 * minute_ms);
  expect(models.map(({ reused_share }) => reused_share)).toEqual([2 / 12, 0]);
});
