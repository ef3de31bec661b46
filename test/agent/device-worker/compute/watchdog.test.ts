import { describe, expect, test } from 'vitest';
import { ComputeWatchdog, pulseStates } from '../../../../agent/device-worker/compute/watchdog.ts';

describe('the watchdog of the compute thread', () => {
  const { idle, computing, loading } = pulseStates;
  /** The first tick, from 1, at which it is found stuck. */
  const found = (watchdog: ComputeWatchdog, state: number, ticks: number, beats = 1) => {
    for (let tick = 1; tick <= ticks; tick++) if (watchdog.tick(beats, state) !== undefined) return tick;
    return undefined;
  };

  test('an iteration may take stall_ms, a piece of weights twice that, a pause for ever', () => {
    expect(found(new ComputeWatchdog(10_000), computing, 100)).toBe(12); // one to see it, ten to wait
    expect(found(new ComputeWatchdog(10_000), loading, 100)).toBe(22);
    expect(found(new ComputeWatchdog(10_000), idle, 1000)).toBeUndefined();
  });

  test('where iterations are long, twenty times the longest', () => {
    const watchdog = new ComputeWatchdog(10_000);
    expect(found(watchdog, computing, 4, 1)).toBeUndefined(); // three ticks without a beat
    expect(found(watchdog, computing, 61, 2)).toBeUndefined();
    expect(found(watchdog, computing, 2, 2)).toBe(1);
  });

  test('how long weights took says nothing of iterations', () => {
    const watchdog = new ComputeWatchdog(10_000);
    expect(found(watchdog, loading, 15, 1)).toBeUndefined();
    expect(found(watchdog, computing, 100, 2)).toBe(12);
  });
});
