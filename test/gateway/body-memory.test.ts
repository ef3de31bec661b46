/** Who gets memory for a body, and when. */
import { setTimeout as delay } from 'node:timers/promises';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type BodyHold, BodyMemory, smallBody_bytes } from '../../gateway/body-memory.ts';

const mib = 2 ** 20;
const settings = { bytes_max: 80 * mib, key_bytes_max: 40 * mib, wait_ms: 100 };

/** What becomes of a need: the code of a refusal, or how much is held. */
function need(hold: BodyHold, bytes: number): { outcome: string | number | undefined } {
  const seen: { outcome: string | number | undefined } = { outcome: undefined };
  hold.need(bytes, (refusal) => {
    seen.outcome = refusal?.code ?? hold.bytes;
  });
  return seen;
}

describe('memory for bodies', () => {
  it('is given at once where there is some, and refused after a while where there is none', async () => {
    const memory = new BodyMemory(settings);
    const holds = [memory.hold('a'), memory.hold('a'), memory.hold('b')];
    expect([need(holds[0]!, 30 * mib).outcome, need(holds[2]!, 30 * mib).outcome]).toEqual([
      30 * mib,
      30 * mib,
    ]);
    const second = need(holds[1]!, 30 * mib);
    const third = need(memory.hold('c'), 30 * mib);
    expect([second.outcome, third.outcome]).toEqual([undefined, undefined]);
    await delay(200);
    expect([second.outcome, third.outcome]).toEqual(['E_KEY_BODIES', 'E_GATEWAY_BODIES']);
    expect(memory.held_bytes).toBe(60 * mib);
    for (const hold of holds) hold.release();
    expect(memory.held_bytes).toBe(0);
  });

  it('goes to small bodies while large ones wait, and to large ones in their order', () => {
    const memory = new BodyMemory(settings);
    const [a, b] = [memory.hold('a'), memory.hold('b')];
    need(a, 40 * mib);
    need(b, 30 * mib);
    const first = need(memory.hold('c'), 20 * mib);
    const passed = need(memory.hold('d'), mib / 2);
    expect([first.outcome, passed.outcome]).toEqual([undefined, undefined]);
    for (let count = 0; count < 100; count++)
      expect(need(memory.hold('e'), smallBody_bytes).outcome).toBe(smallBody_bytes);
    b.release();
    expect([first.outcome, passed.outcome]).toEqual([20 * mib, mib / 2]);
  });

  it('goes to those behind one that leaves while it waits', () => {
    const memory = new BodyMemory(settings);
    need(memory.hold('a'), 40 * mib);
    need(memory.hold('b'), 20 * mib);
    const head = memory.hold('c');
    const first = need(head, 20 * mib);
    const behind = need(memory.hold('d'), 5 * mib);
    expect([first.outcome, behind.outcome]).toEqual([undefined, undefined]);
    head.release();
    expect([first.outcome, behind.outcome]).toEqual([undefined, 5 * mib]);
  });

  it('of one key holds up no other', () => {
    const memory = new BodyMemory(settings);
    need(memory.hold('greedy'), 40 * mib);
    const waits = Array.from({ length: 20 }, () => need(memory.hold('greedy'), 30 * mib));
    expect(need(memory.hold('other'), 20 * mib).outcome).toBe(20 * mib);
    expect(waits.every(({ outcome }) => outcome === undefined)).toBe(true);
  });

  it('is never more than there is, and all given back', () => {
    const step = fc.record({
      key: fc.constantFrom('a', 'b', 'c'),
      mib: fc.integer({ min: 0, max: 35 }),
      free: fc.nat(8),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const memory = new BodyMemory({ ...settings, wait_ms: 3_600_000 });
        const holds: BodyHold[] = [];
        for (const { key, mib: size, free } of steps) {
          const hold = memory.hold(key);
          holds.push(hold);
          need(hold, Math.max(1000, size * mib));
          if (free < holds.length) holds.splice(free, 1)[0]!.release();
          const of = (name: string): number =>
            holds.filter(({ key_id }) => key_id === name).reduce((sum, { bytes }) => sum + bytes, 0);
          expect(of('a') + of('b') + of('c')).toBe(memory.held_bytes);
          expect(memory.held_bytes).toBeLessThanOrEqual(settings.bytes_max);
          for (const name of ['a', 'b', 'c']) expect(of(name)).toBeLessThanOrEqual(settings.key_bytes_max);
        }
        for (const hold of holds) hold.release();
        expect(memory.held_bytes).toBe(0);
      }),
    );
  });
});
