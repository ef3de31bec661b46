import { describe, expect, it } from 'vitest';
import { congestedStages } from '../../../solver/granularity/congested-stages.ts';
import {
  bestCvOf,
  granularityScore,
  instanceRate_per_s,
  instancesFor,
  queueLength_requests,
  scalingStages,
  servesInTime,
} from '../../../solver/granularity/equations.ts';
import { type Granularity, passRate_per_s, passTime_s } from '../../../solver/granularity/granularity.ts';
import { StallMonitor } from '../../../solver/granularity/stall-monitor.ts';

/** FlexPipe Table 2. */
const four: Granularity = { stages: 4, batch_max: 128, stage_s: 0.06994, hops_s: 0.0063 };

describe('the equations of FlexPipe', () => {
  it('a pipeline passes b / η sequences every stage time, each in η stage times and the hops', () => {
    expect(passRate_per_s(four)).toBeCloseTo(457.5, 1);
    expect(passTime_s(four)).toBeCloseTo(0.28606, 9);
  });

  it('Eq. 1 grows with the burstiness of arrivals, falls with servers, and has no end above capacity', () => {
    expect(queueLength_requests(0.5, 1, 1, 1)).toBeCloseTo(1, 9);
    expect(queueLength_requests(0.5, 1, 3, 1)).toBeCloseTo(5, 9);
    expect(queueLength_requests(0.5, 2, 1, 1)).toBeCloseTo(0.25, 9);
    expect(queueLength_requests(1, 1, 1, 1)).toBe(Number.POSITIVE_INFINITY);
  });

  it('Eq. 4 weighs throughput against latency, and falls off with the distance of the CV', () => {
    const weights = { throughput_weight: 0.25, cv_tolerance: 2 };
    const input = { rate_per_s: 5, rate_max_per_s: 10, latency_s: 4, latency_min_s: 3, cv: 1, cv_best: 1 };
    expect(granularityScore(input, weights)).toBeCloseTo(0.25 * 0.5 + 0.75 * 0.75, 12);
    expect(granularityScore({ ...input, cv: 5 }, weights)).toBeCloseTo(0.6875 * Math.exp(-2), 12);
    expect(bestCvOf(8, 4)).toBe(4);
  });

  it('Eq. 5 counts instances by what each adds after coordination', () => {
    const loss = { base: 1, per_stage: 0.025 };
    expect(instanceRate_per_s(four, loss)).toBeCloseTo(457.5 / 1.1, 1);
    expect(instancesFor(1000, four, loss)).toBe(3);
    expect(instancesFor(0, four, loss)).toBe(1);
  });

  it('Eq. 11 goes from coarse to the finest as bursts and queues grow, and never back', () => {
    const sigmoid = { stages_max: 32, offset: 7, steepness: 1 };
    const stages = [0, 10, 20, 40, 80, 128, 1000].map((waiting) => scalingStages(8, waiting, 128, sigmoid));
    expect(stages[0]).toBe(4);
    expect(stages.at(-1)).toBe(31);
    expect(stages).toEqual([...stages].sort((a, b) => a - b));
    expect(scalingStages(0, 128, 128, sigmoid)).toBe(4);
  });

  it('Eq. 12 leaves no time to what loads for longer than the deadline', () => {
    expect(servesInTime(10, 5, 20, 100)).toBe(true);
    expect(servesInTime(10, 5, 19, 100)).toBe(false);
    expect(servesInTime(10, 11, 1e9, 1)).toBe(false);
  });
});

describe('stalls', () => {
  it('begin above 1.5 × P25, end within 1.2 ×, and do not change what is normal', () => {
    const monitor = new StallMonitor();
    for (let answer = 0; answer < 64; answer++) monitor.observe(answer, 100 + (answer % 4) * 10);
    expect(monitor.baseline_ms).toBe(110);
    expect(monitor.observe(100, 164)).toBeUndefined();
    expect(monitor.stall).toBeUndefined();
    monitor.observe(110, 166);
    expect(monitor.stall).toEqual({ began_ms: 110 });
    for (let answer = 0; answer < 250; answer++) monitor.observe(111, 5000);
    expect(monitor.observe(120, 133)).toBeUndefined();
    expect(monitor.baseline_ms).toBe(110);
    expect(monitor.observe(130, 132)).toEqual({ began_ms: 110, recovered_ms: 130 });
    expect(monitor.stall).toBeUndefined();
  });

  it('one that lasts for as many answers as are normal is normal, and what is worse begins another', () => {
    const monitor = new StallMonitor();
    for (let answer = 0; answer < 64; answer++) monitor.observe(answer, 100);
    for (let answer = 0; answer < 255; answer++) monitor.observe(100, 200);
    expect(monitor.stall).toEqual({ began_ms: 100 });
    expect(monitor.observe(101, 200)).toBeUndefined();
    expect(monitor.stall).toBeUndefined();
    expect(monitor.baseline_ms).toBe(200);
    monitor.observe(102, 301);
    expect(monitor.stall).toEqual({ began_ms: 102 });
  });
});

describe('congested stages', () => {
  it('are those whose backlog stands out, the worst first', () => {
    const queue = (waiting: number, stage_s = 0.1) => ({ waiting, stage_s });
    expect(congestedStages([queue(1), queue(6), queue(0), queue(4)]).map(({ stage }) => stage)).toEqual([
      1, 3,
    ]);
    expect(congestedStages([queue(1), queue(6), queue(0), queue(4)])[0]!.because).toBe(
      '6 micro-batches wait before stage 1, 600 ms of its work; the median of the others is 100 ms',
    );
    expect(congestedStages([queue(5), queue(5), queue(5)])).toEqual([]);
    expect(congestedStages([queue(0.9), queue(0), queue(0)])).toEqual([]);
    expect(congestedStages([queue(0), queue(0), queue(0)])).toEqual([]);
    // Of two stages no more than one can wait.
    expect(congestedStages([queue(0.1), queue(0.6)]).map(({ stage }) => stage)).toEqual([1]);
    expect(congestedStages([queue(0.1), queue(0.4)])).toEqual([]);
  });
});
