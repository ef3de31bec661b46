/** What a person sees of a wrapped engine that loads: from two looks at its unit to the line. */
import { expect, test } from 'vitest';
import { describeEvent } from '../../../cli/progress/describe-event.ts';
import type { LaunchObservation, Observation, UnitStatus } from '../../../control/reconcile/observe.ts';
import { eventsBetween } from '../../../control/reconcile/progress.ts';

const loading: UnitStatus = {
  unit: 'm-0',
  model: 'm',
  engine: 'vllm',
  state: 'loading',
  node: 'n0',
  phase: 'starting',
  loading_since_ms: 1_000_000,
};

function lines(before: UnitStatus, now: UnitStatus, at_ms = 1_012_000): string[] {
  const observed = (unit: UnitStatus): Observation => {
    const launch = { launch_id: 'l', superseded: false, agents: [], units: [unit], serving_units: [] };
    const launches = new Map([['l', launch as unknown as LaunchObservation]]);
    return { at_ms, launches, problems: [] };
  };
  return eventsBetween(observed(before), observed(now), () => 'log').map(describeEvent);
}

test('a phase is news once, with the time it took so far and takes usually', () => {
  const compiling = { ...loading, phase: 'compiling' as const, usual_load_s: 40 };
  expect(lines(loading, compiling)).toEqual([
    'n0: vllm for m is compiling kernels (12 s so far, usually 40 s in all)',
  ]);
  expect(lines(compiling, compiling)).toEqual([]);
});

test('a node whose clock is ahead is in no time', () => {
  const weights = { ...loading, phase: 'weights' as const };
  expect(lines(loading, weights, 999_000)).toEqual(['n0: vllm for m is loading its weights (0 s so far)']);
});

test('bytes within a phase are told as those of native loads', () => {
  const weights = { ...loading, phase: 'weights' as const, bytes_total: 4e9 };
  expect(lines({ ...weights, bytes_loaded: 1e9 }, { ...weights, bytes_loaded: 2e9 })).toEqual([
    'n0 loads m: 1.86 GiB of 3.73 GiB (50 %)',
  ]);
});
