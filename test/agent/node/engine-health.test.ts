/** When an engine that lives is held to hang. */
import { describe, expect, test } from 'vitest';
import { EngineHealth, type HealthLook } from '../../../agent/node/engine-health.ts';

describe('the health of an engine that lives', () => {
  const calm: HealthLook = { in_flight: 0, streams: 0, answer_bytes: 0 };
  const bounds = { health_s: 45, stall_s: 50 };
  const looks = (health: EngineHealth, list: HealthLook[]) =>
    list.map((look) => health.look(look) !== undefined);

  test('three looks within health_s, each waited for twice as long as the pause before it', () => {
    const { interval_ms, timeout_ms } = new EngineHealth(bounds);
    expect([interval_ms, timeout_ms]).toEqual([5000, 10_000]);
    expect(3 * (interval_ms + timeout_ms)).toBe(45_000);
  });

  test('checks must fail in a row', () => {
    const sick = { ...calm, failure: '/health answers 503' };
    expect(looks(new EngineHealth(bounds), [sick, sick, calm, sick, sick, sick])).toEqual([
      ...Array(5).fill(false),
      true,
    ]);
  });

  test('requests run and nothing comes: after stall_s, unless bytes or its own numbers move', () => {
    const stream = { in_flight: 1, streams: 1, answer_bytes: 7 };
    const ten = (look: HealthLook) => Array.from({ length: 11 }, () => look);
    expect(looks(new EngineHealth(bounds), ten(stream))).toEqual([...Array(10).fill(false), true]);
    const bytes = ten(stream).map((look, index) => ({ ...look, answer_bytes: index === 6 ? 8 : 7 }));
    expect(looks(new EngineHealth(bounds), bytes)).not.toContain(true);
    const activity = ten(stream).map((look, index) => ({ ...look, activity: index }));
    expect(looks(new EngineHealth(bounds), activity)).not.toContain(true);
    expect(looks(new EngineHealth(bounds), ten({ ...stream, activity: 3 }))).toContain(true);
    expect(looks(new EngineHealth(bounds), ten(calm))).not.toContain(true);
  });

  test('of a request that is not streamed only the engine’s own numbers tell', () => {
    const mixed = { in_flight: 2, streams: 1, answer_bytes: 7 };
    const many = Array.from({ length: 30 }, () => mixed);
    expect(looks(new EngineHealth(bounds), many)).not.toContain(true);
    expect(
      looks(
        new EngineHealth(bounds),
        many.map((look) => ({ ...look, activity: 1 })),
      ),
    ).toContain(true);
  });
});
