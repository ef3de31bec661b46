import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  type EvacuationPeer,
  evacuationDefaults,
  type LeavingAnswer,
  planEvacuation,
} from '../../../solver/evacuation/evacuation.ts';

const limits = { ...evacuationDefaults, left_s: 20 };

function answer(id: number, change: Partial<LeavingAnswer> = {}): LeavingAnswer {
  return {
    id,
    model: 'm',
    generated_tokens: 10,
    computed_tokens: 100,
    kv_tokens: 101,
    kv_bytes: 1e6,
    sequences: 1,
    continuable: true,
    refused_by: [],
    ...change,
  };
}

function peer(id: string, places: number, kv_tokens: number, bytes_per_s = 1e9): EvacuationPeer {
  return { id, rooms: new Map([['m', { places, kv_tokens }]]), bytes_per_s };
}

describe('an evacuation', () => {
  test('takes those with most progress first, and of equal ones the smaller', () => {
    const answers = [
      answer(1, { generated_tokens: 5 }),
      answer(2, { generated_tokens: 50, kv_bytes: 2e6 }),
      answer(3, { generated_tokens: 50 }),
    ];
    const steps = planEvacuation(answers, [peer('a', 8, 10_000)], limits);
    expect(steps.map(({ id, by }) => `${id} ${by}`)).toEqual(['3 kv', '2 kv', '1 kv']);
  });

  test('passes over what the time does not allow, and takes what is smaller after it', () => {
    const answers = [answer(1, { generated_tokens: 90, kv_bytes: 30e9 }), answer(2)];
    const steps = planEvacuation(answers, [peer('a', 8, 10_000)], limits);
    expect(steps).toMatchObject([
      { id: 2, by: 'kv' },
      { id: 1, by: 'tokens', at_once: false, because: '30.05 s are needed for it, and 16 s are left' },
    ]);
  });

  test('goes where there is room, by the faster link, and says why not', () => {
    const slow = peer('slow', 8, 10_000, 1e8);
    const fast = peer('fast', 1, 10_000);
    const answers = [answer(1), answer(2), answer(3, { model: 'other' }), answer(4, { kv_tokens: 20_000 })];
    expect(planEvacuation(answers, [slow, fast], limits)).toMatchObject([
      { id: 1, by: 'kv', peer: 'fast' },
      { id: 2, by: 'kv', peer: 'slow' },
      { id: 3, because: 'nobody else serves other' },
      { id: 4, because: 'nobody who serves m has room for it' },
    ]);
  });

  test('asks nobody again who refused, and gives away at once what is not computed', () => {
    const answers = [answer(1, { refused_by: ['a'] }), answer(2, { computed_tokens: 0, kv_bytes: 0 })];
    expect(planEvacuation(answers, [peer('a', 1, 10_000)], limits)).toMatchObject([
      { id: 1, by: 'tokens', at_once: false, because: 'all that serve its model refused it' },
      { id: 2, by: 'tokens', at_once: true },
    ]);
    const none = planEvacuation([answer(2, { computed_tokens: 0 })], [], limits);
    expect(none).toMatchObject([{ by: 'tokens', at_once: false }]);
  });

  test('leaves an answer here that nobody can have continued', () => {
    const steps = planEvacuation([answer(1, { continuable: false })], [peer('a', 1, 1000)], limits);
    expect(steps).toMatchObject([{ by: 'tokens', at_once: false }]);
  });

  const answers = fc.array(
    fc.record({
      generated_tokens: fc.nat(1000),
      computed_tokens: fc.nat(5000),
      kv_tokens: fc.nat(6000),
      kv_bytes: fc.nat(4e9),
      sequences: fc.integer({ min: 1, max: 4 }),
      continuable: fc.boolean(),
    }),
    { maxLength: 30 },
  );
  const peers = fc.array(fc.tuple(fc.nat(8), fc.nat(20_000), fc.integer({ min: 1e6, max: 1e10 })), {
    maxLength: 5,
  });

  test('exceeds neither time nor room, says something of each answer, and depends on no order', () => {
    fc.assert(
      fc.property(answers, peers, fc.nat(60), (drawn, rooms, left_s) => {
        const all = drawn.map((one, id) => answer(id, one));
        const known = rooms.map(([places, tokens, rate], at) => peer(`p${at}`, places, tokens, rate));
        const steps = planEvacuation(all, known, { ...limits, left_s });
        expect(steps.map(({ id }) => id).sort((a, b) => a - b)).toEqual(all.map(({ id }) => id));
        expect(planEvacuation([...all].reverse(), known, { ...limits, left_s })).toEqual(steps);
        const byKv = steps.filter((step) => step.by === 'kv');
        expect(Math.max(0, ...byKv.map(({ ends_s }) => ends_s))).toBeLessThanOrEqual(left_s);
        for (const { id, rooms: own } of known) {
          const there = byKv.filter((step) => step.peer === id).map((step) => all[step.id]!);
          const room = own.get('m')!;
          expect(there.reduce((sum, { sequences }) => sum + sequences, 0)).toBeLessThanOrEqual(room.places);
          expect(there.reduce((sum, { kv_tokens }) => sum + kv_tokens, 0)).toBeLessThanOrEqual(
            room.kv_tokens,
          );
        }
      }),
    );
  });
});
