/** Tasks that come again and again, and wake a process together. */
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { every } from '../../host/every.ts';

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] }));
afterEach(() => {
  // What is spied on are the timers that are not real: put back later, they would stay for all tests of this process.
  vi.restoreAllMocks();
  vi.useRealTimers();
});

describe('tasks that were begun at different times', () => {
  it('come at the same moments, each as often as it is to', () => {
    const moments: Record<string, number[]> = { slow: [], fast: [] };
    vi.advanceTimersByTime(137);
    const stopSlow = every(200, () => moments.slow!.push(performance.now()));
    vi.advanceTimersByTime(311);
    const stopFast = every(100, () => moments.fast!.push(performance.now()));
    vi.advanceTimersByTime(1000);
    stopSlow();
    stopFast();
    vi.advanceTimersByTime(1000);
    expect(moments.slow).toEqual([200, 400, 600, 800, 1000, 1200, 1400]);
    expect(moments.fast).toEqual([500, 600, 700, 800, 900, 1000, 1100, 1200, 1300, 1400]);
    expect(vi.getTimerCount()).toBe(0);
  });
});

it('a timer that comes a moment too early is not a call of its own', () => {
  const moments: number[] = [];
  const now = vi.spyOn(performance, 'now');
  now.mockReturnValueOnce(0).mockReturnValueOnce(0);
  const stop = every(100, () => void moments.push(1));
  // Node's clock of timers has whole milliseconds.
  now.mockReturnValue(99.6);
  vi.advanceTimersByTime(100);
  now.mockReturnValue(100.4);
  vi.advanceTimersByTime(1);
  expect(moments).toHaveLength(1);
  stop();
  now.mockRestore();
});
