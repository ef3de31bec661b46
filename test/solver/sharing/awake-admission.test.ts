import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { admitToTurn, promisedOnTurn, type TimedSleeper } from '../../../solver/sharing/awake-admission.ts';
import { nextAwake } from '../../../solver/sharing/awake-turn.ts';

const asked = (arrival_ms: number, ttft_ms = 2000): TimedSleeper['waiting'][number] => ({
  arrival_ms,
  output_tokens: 0,
  service_level: { ttft_ms, tpot_ms: 250 },
});
const sleeper = (id: string, changes: Partial<TimedSleeper> = {}): TimedSleeper => ({
  id,
  awake: false,
  promised: true,
  waiting: [],
  change_ms: 1000,
  left_ms: [],
  first_token_ms: 100,
  answer_ms: 3000,
  ...changes,
});

const running = (one: TimedSleeper) => ({ ...one, running: one.left_ms.length });

describe('a request for an engine that waits for its turn', () => {
  it('is let in where its first token is foreseen in time, and else told when to come again', () => {
    const own = sleeper('own', { waiting: [asked(0)] });
    const awake = (left_ms: number[], awake_since_ms = -10_000): TimedSleeper =>
      sleeper('awake', { awake: true, left_ms, awake_since_ms });
    expect(admitToTurn([own, awake([])], 'own', asked(0), 0)).toEqual({ admit: true });
    // 900 until the awake one has answered, 1000 to change, 100 to the first token: just in time.
    expect(admitToTurn([own, awake([300, 900])], 'own', asked(0), 0)).toEqual({ admit: true });
    expect(admitToTurn([own, awake([300, 1600])], 'own', asked(0), 0)).toEqual({
      admit: false,
      because: 'its first token would come 700 ms late: others have their turns before',
      retry_after_ms: 700,
    });
    // One that became awake just now has a turn of four changes before it.
    expect(admitToTurn([own, awake([5000], 0)], 'own', asked(0), 0)).toMatchObject({ retry_after_ms: 4100 });
  });

  it('is let in late where it is the first for one that sleeps: it moves the turn, as one refused cannot', () => {
    // Always asked: at each moment some answer has more left than is promised to others.
    const busy = sleeper('busy', { awake: true, left_ms: [400, 2500], awake_since_ms: -10_000 });
    const own = sleeper('own');
    expect(nextAwake([own, busy].map(running), 0)).toBeUndefined();
    expect(admitToTurn([own, busy], 'own', asked(0), 0)).toEqual({ admit: true });
    const moved = { ...own, waiting: [asked(0)] };
    expect(nextAwake([moved, busy].map(running), 0)?.id).toBe('own');
    // Those that follow are measured, and so is one for an engine that is awake, or that breaks another's promise.
    expect(admitToTurn([moved, busy], 'own', asked(0), 0)).toMatchObject({ retry_after_ms: 1600 });
    expect(admitToTurn([moved, busy], 'busy', asked(0, -1), 0)).toMatchObject({ admit: false });
    const other = sleeper('other', { waiting: [asked(0, 4000)] });
    expect(admitToTurn([own, busy, other], 'own', asked(0, 1500), 0)).toMatchObject({
      because: expect.stringContaining('a request of other'),
    });
  });

  it('is refused where a request of another, which was let in, would be late for it', () => {
    const other = sleeper('other', { waiting: [asked(0, 2200)] });
    // Without it: 1000 to change and 100 to the token. It is more urgent, and has its turn of four changes first.
    expect(admitToTurn([other, sleeper('own')], 'own', asked(0, 1500), 0)).toEqual({
      admit: false,
      because: 'a request of other would get its first token 2900 ms late',
      retry_after_ms: 1100,
    });
    // One that nothing is promised to, or whose promise is broken already, keeps nobody out.
    const free = { ...other, promised: false };
    expect(admitToTurn([free, sleeper('own')], 'own', asked(0, 1500), 0)).toEqual({ admit: true });
    const broken = { ...other, waiting: [asked(-9000, 1000)] };
    expect(admitToTurn([broken, sleeper('own')], 'own', asked(0, 9000), 0)).toEqual({ admit: true });
  });

  it('keeps the turn of the one that is awake from growing beyond what others were promised', () => {
    const awake = sleeper('awake', { awake: true, left_ms: [500], awake_since_ms: -3000 });
    const other = sleeper('other', { waiting: [asked(0)] });
    expect(admitToTurn([awake, other], 'awake', asked(0, 1500), 0)).toEqual({
      admit: false,
      because: 'a request of other would get its first token 2100 ms late',
      retry_after_ms: 1600,
    });
    const quick = { ...awake, answer_ms: 700 };
    expect(admitToTurn([quick, other], 'awake', asked(0, 1500), 0)).toEqual({ admit: true });
  });

  it('counts in a change and a start that are under way', () => {
    const own = sleeper('own', { waiting: [asked(0)] });
    const other = sleeper('other');
    const coming = { id: 'other', left_ms: 500 };
    const late = { ...other, waiting: [asked(0)] };
    // The other is awake at 500, answers until 3500, and then the change to it: 1000.
    expect(admitToTurn([own, late], 'own', asked(0), 0, coming)).toMatchObject({ retry_after_ms: 2600 });
    expect(admitToTurn([own, other], 'own', asked(0), 0, { left_ms: 900 })).toEqual({ admit: true });
    expect(admitToTurn([own, other], 'own', asked(0), 0, { left_ms: 1000 })).toMatchObject({
      retry_after_ms: 100,
    });
  });

  it('counts in that whoever a change is to gets what waits for it, though nothing is promised there', () => {
    const own = sleeper('own', { waiting: [asked(0)] });
    const free = sleeper('free', { promised: false, waiting: [asked(0)] });
    // Awake at 500, it answers until 3500, and then the change to the other: 1000.
    expect(admitToTurn([own, free], 'own', asked(0), 0, { id: 'free', left_ms: 500 })).toMatchObject({
      retry_after_ms: 2600,
    });
  });

  it('is promised what counts from when its engine is awake, and no less than what that can do alone', () => {
    const slo = { ttft_ms: 500, tpot_ms: 50 };
    const of = { awake: true, change_ms: 3000 };
    expect(promisedOnTurn(slo, of, 100)).toEqual(slo);
    expect(promisedOnTurn(slo, of, 400).ttft_ms).toBe(800);
    const asleep = { ...of, awake: false };
    expect(promisedOnTurn(slo, asleep, 100).ttft_ms).toBe(3500);
    const request = asked(0, promisedOnTurn(slo, asleep, 100).ttft_ms);
    const own = sleeper('own', { ...asleep, waiting: [request] });
    expect(admitToTurn([own, sleeper('other', { awake: true })], 'own', request, 0)).toEqual({ admit: true });
  });

  it('lets in who comes again after the time that was said, where nothing else came', () => {
    const one = fc.record({
      change_ms: fc.integer({ min: 1, max: 5000 }),
      answer_ms: fc.integer({ min: 0, max: 20_000 }),
      first_token_ms: fc.integer({ min: 0, max: 500 }),
    });
    fc.assert(
      fc.property(one, one, fc.integer({ min: 1, max: 30_000 }), (own, other, left_ms) => {
        const level = promisedOnTurn(
          { ttft_ms: 1000, tpot_ms: 250 },
          sleeper('own', own),
          own.first_token_ms,
        );
        const request = (now_ms: number) => ({ ...asked(now_ms), service_level: level });
        const sleepers = (now_ms: number): TimedSleeper[] => [
          sleeper('own', { ...own, waiting: [request(0)] }),
          sleeper('other', {
            ...other,
            awake: true,
            awake_since_ms: 0,
            left_ms: now_ms < left_ms ? [left_ms - now_ms] : [],
          }),
        ];
        const first = admitToTurn(sleepers(0), 'own', request(0), 0);
        if (first.admit) return;
        const then_ms = first.retry_after_ms;
        expect(admitToTurn(sleepers(then_ms), 'own', request(then_ms), then_ms)).toEqual({ admit: true });
      }),
    );
  });
});
