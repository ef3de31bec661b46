import fc from 'fast-check';
import { expect, it } from 'vitest';
import {
  formatTraceparent,
  isSampled,
  newSpanId,
  newTraceId,
  parseTraceparent,
} from '../../../gateway/telemetry/trace-context.ts';
import { formatTimings, parseTimings } from '../../../spec/worker-timings.ts';

const trace_id = '4bf92f3577b34da6a3ce929d0e0e4736';
const span_id = '00f067aa0ba902b7';

it.each([
  [`00-${trace_id}-${span_id}-01`, true],
  [`00-${trace_id}-${span_id}-00`, false],
  // Flags that are not known yet say nothing of sampling.
  [`00-${trace_id}-${span_id}-02`, false],
  // A later version may say more.
  [`cc-${trace_id}-${span_id}-01-what-comes`, true],
])('reads %s', (text, sampled) => {
  expect(parseTraceparent(text)).toEqual({ trace_id, span_id, sampled });
});

it.each([
  undefined,
  '',
  ['a', 'b'],
  `ff-${trace_id}-${span_id}-01`,
  `00-${trace_id}-${span_id}-01-more`,
  `00-${'0'.repeat(32)}-${span_id}-01`,
  `00-${trace_id}-${'0'.repeat(16)}-01`,
  `00-${trace_id.toUpperCase()}-${span_id}-01`,
  `00-${trace_id}-${span_id}`,
])('begins a trace of its own where it is sent %j', (value) => {
  expect(parseTraceparent(value)).toBeUndefined();
});

it('writes what it reads', () => {
  const context = { trace_id: newTraceId(), span_id: newSpanId(), sampled: true };
  expect(parseTraceparent(formatTraceparent(context))).toEqual(context);
});

it('samples as large a share as was asked for, each trace the same everywhere', () => {
  const ids = Array.from({ length: 4000 }, newTraceId);
  expect(ids.filter((id) => isSampled(id, 1))).toHaveLength(4000);
  expect(ids.filter((id) => isSampled(id, 0))).toHaveLength(0);
  const quarter = ids.filter((id) => isSampled(id, 0.25));
  expect(quarter.length).toBeGreaterThan(800);
  expect(quarter.length).toBeLessThan(1200);
  // Who samples more has these too.
  expect(quarter.every((id) => isSampled(id, 0.5))).toBe(true);
});

it('timings of a worker travel as they are, and nothing else is taken for some', () => {
  const ms = fc.integer({ min: 0, max: 1e9 }).map((us) => us / 1000);
  const phases = ['queue', 'prefill', 'decode', 'agent'];
  fc.assert(
    fc.property(fc.array(ms, { minLength: 1, maxLength: 4 }), (durations) => {
      const timings = Object.fromEntries(durations.map((duration, at) => [phases[at]!, duration]));
      expect(parseTimings(formatTimings(timings))).toEqual(timings);
    }),
  );
  for (const text of [
    '',
    'queue',
    'queue;dur=',
    'queue;dur=-1',
    'other;dur=1',
    'queue;dur=1,prefill;dur=2',
    'queue;dur=1e9',
  ])
    expect(parseTimings(text), text).toBeUndefined();
});
