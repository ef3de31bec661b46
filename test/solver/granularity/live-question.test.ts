import { expect, test } from 'vitest';
import { ArrivalWindows } from '../../../solver/granularity/arrival-windows.ts';
import { type ControlMemory, decideGranularity } from '../../../solver/granularity/control.ts';
import {
  combineArrivals,
  type LiveLoad,
  type LivePipeline,
  liveQuestion,
} from '../../../solver/granularity/live-question.ts';
import { seededRandom } from '../../../solver/simulator/random.ts';

/** Compute-bound: a stage of half the layers with half the rows takes a quarter. 100, 200 and 400 passes a second. */
const pipeline: LivePipeline = {
  stages: 2,
  granularities: [2, 4, 8].map((stages) => ({
    stages,
    batch_max: 32,
    stage_s: 0.64 / stages ** 2,
    hops_s: 0.0002 * stages,
  })),
  stage_bytes: [8e9, 4e9, 2e9],
  load_bytes_per_s: 2e9,
  passes_per_request: 10,
};

interface Change {
  at_s: number;
  stages: number;
}

/**
 * The keeper's rounds over arrivals as a gateway would record them, two seconds apart, with a pipeline that works off
 * what is asked of it and takes five seconds to change.
 */
function keep(
  rate_per_s: (at_s: number) => number,
  seconds: number,
  seed: number,
  stalled = false,
): Change[] {
  const random = seededRandom(seed);
  const windows = new ArrivalWindows();
  const changes: Change[] = [];
  const { passes_per_request } = pipeline;
  let [stages, in_flight, next_s, changed_s] = [2, 0, 0, Number.NEGATIVE_INFINITY];
  let memory: ControlMemory | undefined;
  for (let at_s = 0; at_s < seconds; at_s += 2) {
    while (next_s < at_s + 2) {
      if (rate_per_s(next_s) > 0) {
        windows.observe(1e9 + 1000 * next_s);
        in_flight++;
      }
      next_s += -Math.log(1 - random()) / Math.max(0.1, rate_per_s(next_s));
    }
    const { batch_max, stage_s } = pipeline.granularities.find((each) => each.stages === stages)!;
    in_flight = Math.max(0, in_flight - (2 * (batch_max / stages / stage_s)) / passes_per_request);
    const now_ms = 1e9 + 1000 * (at_s + 2);
    const load: LiveLoad = {
      arrivals: combineArrivals([windows.read(now_ms)])!,
      in_flight,
      replicas: 1,
      deadline_s: 2,
      changing: at_s - changed_s < 5,
      stalled,
    };
    const decision = decideGranularity(liveQuestion(now_ms, { ...pipeline, stages }, load, memory));
    memory = decision.memory;
    if (decision.action === 'keep') continue;
    stages = decision.fleet.stages;
    changed_s = at_s;
    changes.push({ at_s, stages });
  }
  return changes;
}

test.each([1, 2, 3])(
  'a steady load changes nothing that is large enough, whichever it is (seed %i)',
  (seed) => {
    // The coarsest carries 10 requests a second; half an hour.
    for (const rate of [2, 7]) expect(keep(() => rate, 1800, seed)).toEqual([]);
    // Answers that stall for ever change one thing, for good.
    expect(keep(() => 7, 1800, seed, true).length).toBeLessThanOrEqual(1);
  },
);

test.each([1, 2, 3])(
  'a steady load that it does not carry refines it once, and for good (seed %i)',
  (seed) => {
    for (const rate of [14, 25]) {
      const changes = keep(() => rate, 1800, seed);
      expect(changes.length).toBeGreaterThanOrEqual(1);
      // At most one step more than that, where the first was not enough; none back.
      expect(changes.length).toBeLessThanOrEqual(2);
      expect(changes.map(({ stages }) => stages)).toEqual(
        [...changes.map(({ stages }) => stages)].sort((a, b) => a - b),
      );
      expect(changes[0]!.at_s).toBeLessThan(120);
    }
  },
);

test('a surge refines it, and when it has been over for long enough it is coarse again', () => {
  const changes = keep((at_s) => (at_s >= 600 && at_s < 660 ? 30 : 2), 1800, 1);
  expect(changes[0]!.at_s).toBeGreaterThanOrEqual(600);
  expect(changes[0]!.at_s).toBeLessThan(630);
  expect(changes[0]!.stages).toBeGreaterThan(2);
  expect(changes.at(-1)!.stages).toBe(2);
  // What carries the peak stays for five minutes.
  expect(changes.at(-1)!.at_s).toBeGreaterThan(900);
  expect(changes.length).toBeLessThanOrEqual(4);
});

test('requests are shared by replicas, and add up over gateways', () => {
  const windows = new ArrivalWindows();
  for (let at_ms = 0; at_ms < 20_000; at_ms += 100) windows.observe(1e9 + at_ms);
  const seen = windows.read(1e9 + 20_000);
  const both = combineArrivals([seen, seen])!;
  expect(both.rate_per_s).toBeCloseTo(2 * seen.rate_per_s, 9);
  const load: LiveLoad = {
    arrivals: both,
    in_flight: 100,
    replicas: 4,
    deadline_s: 2,
    changing: false,
    stalled: false,
  };
  const question = liveQuestion(0, pipeline, load, undefined);
  expect(question.arrivals.rate_per_s).toBeCloseTo(seen.rate_per_s / 2, 9);
  // Beside the 32 that it computes at once.
  expect(question.waiting_requests).toBe(0);
  expect(liveQuestion(0, pipeline, { ...load, in_flight: 400 }, undefined).waiting_requests).toBe(68);
  expect(combineArrivals([])).toBeUndefined();
});
