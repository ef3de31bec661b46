import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { defaultKeepSettings, type KeptLaunch, keep } from '../../../solver/keeping/keep.ts';

const minute = 60_000;
const launch = (facts: Partial<KeptLaunch> = {}): KeptLaunch => ({
  launch_id: 'a',
  gpu_count: 4,
  phase: 'running',
  superseded: false,
  serving: true,
  tries: 0,
  ...facts,
});
const running = launch({
  submitted_at_ms: 0,
  started_at_ms: 10 * minute,
  served_at_ms: 12 * minute,
  end_time_limit_ms: 130 * minute,
});

describe('keeping', () => {
  it('submits the successor so early that it serves before the drain, by what was measured', () => {
    // Wait 10 min, load 2 min, each with half as much again: 18 min before the warning 2 min before the end.
    const due_ms = (130 - 2 - 18) * minute;
    const before = keep([running], due_ms - 1, defaultKeepSettings);
    expect(before).toMatchObject({ actions: [], next_at_ms: due_ms, lead_ms: 18 * minute });
    expect(keep([running], due_ms, defaultKeepSettings).actions).toEqual([
      { do: 'renew', launch_id: 'a', because: 'its time limit is 1200 s away' },
    ]);
  });

  it('lets a launch live for half its time, however long the queue is', () => {
    const slow = { ...running, submitted_at_ms: -10_000 * minute };
    expect(keep([slow], 69 * minute, defaultKeepSettings)).toMatchObject({
      actions: [],
      next_at_ms: 70 * minute,
    });
    expect(keep([slow], 70 * minute, defaultKeepSettings).actions).toMatchObject([{ do: 'renew' }]);
  });

  it('renews once, and nothing that has no limit', () => {
    expect(keep([{ ...running, superseded: true }], 129 * minute, defaultKeepSettings).actions).toEqual([]);
    const { end_time_limit_ms: _, ...endless } = running;
    expect(keep([endless], 10_000 * minute, defaultKeepSettings)).toMatchObject({
      actions: [],
      next_at_ms: Number.POSITIVE_INFINITY,
    });
  });

  it('replaces at once what served, and waits longer after each launch that came to nothing', () => {
    const ended = { ...running, phase: 'ended' as const, ended_at_ms: 20 * minute, end_state: 'NODE_FAIL' };
    expect(keep([ended], 20 * minute, defaultKeepSettings).actions).toEqual([
      { do: 'replace', launch_id: 'a', tries: 0, because: 'its job ended: NODE_FAIL' },
    ]);
    const { served_at_ms: _, ...never } = { ...ended, end_state: 'FAILED' };
    for (const [tries, pause_ms] of [
      [0, 5_000],
      [1, 10_000],
      [4, 80_000],
    ] as const) {
      const decided = keep([{ ...never, tries }], 20 * minute, defaultKeepSettings);
      expect(decided).toMatchObject({ actions: [], next_at_ms: 20 * minute + pause_ms });
      expect(keep([{ ...never, tries }], decided.next_at_ms, defaultKeepSettings).actions).toMatchObject([
        { do: 'replace', tries: tries + 1 },
      ]);
    }
    expect(keep([{ ...never, tries: 5 }], 20 * minute, defaultKeepSettings).actions).toEqual([
      { do: 'give_up', launch_id: 'a', because: 'FAILED; 6 launches in a row came to nothing' },
    ]);
  });

  it('starts nothing beyond the budget', () => {
    // Four GPUs for two hours.
    const settings = { ...defaultKeepSettings, gpu_hours: 7.9 };
    const decided = keep([running], 130 * minute, settings);
    expect(decided).toMatchObject({ actions: [], gpu_hours_used: 8 });
    const ended = { ...running, phase: 'ended' as const, ended_at_ms: 130 * minute, end_state: 'TIMEOUT' };
    expect(keep([ended], 130 * minute, settings).actions).toEqual([
      { do: 'give_up', launch_id: 'a', because: 'TIMEOUT; the budget of 7.9 GPU-hours is used up' },
    ]);
  });

  it('has nothing to do before the time it names', () => {
    const time = fc.integer({ min: 0, max: 500 * minute });
    const arbitrary = fc.record(
      {
        launch_id: fc.constant('a'),
        gpu_count: fc.integer({ min: 0, max: 8 }),
        phase: fc.constantFrom('waiting' as const, 'running' as const, 'ended' as const),
        superseded: fc.boolean(),
        serving: fc.boolean(),
        tries: fc.integer({ min: 0, max: 7 }),
        served_at_ms: time,
        submitted_at_ms: time,
        started_at_ms: time,
        end_time_limit_ms: time,
        ended_at_ms: time,
      },
      { requiredKeys: ['launch_id', 'gpu_count', 'phase', 'superseded', 'serving', 'tries'] },
    );
    fc.assert(
      fc.property(fc.array(arbitrary, { maxLength: 4 }), time, (launches, now_ms) => {
        const known = launches.map((each, index) => ({ ...each, launch_id: String(index) })) as KeptLaunch[];
        const { actions, next_at_ms } = keep(known, now_ms, defaultKeepSettings);
        expect(new Set(actions.map(({ launch_id }) => launch_id)).size).toBe(actions.length);
        if (actions.length > 0 || next_at_ms === Number.POSITIVE_INFINITY) return;
        expect(next_at_ms).toBeGreaterThan(now_ms);
        const justBefore = (now_ms + next_at_ms) / 2;
        expect(keep(known, justBefore, defaultKeepSettings).actions).toEqual([]);
        expect(keep(known, next_at_ms, defaultKeepSettings).actions.length).toBeGreaterThan(0);
      }),
    );
  });
});
