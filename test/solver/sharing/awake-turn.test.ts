import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { nextAwake, type Sleeper } from '../../../solver/sharing/awake-turn.ts';

const asked = (arrival_ms: number, ttft_ms = 2000): Sleeper['waiting'][number] => ({
  arrival_ms,
  output_tokens: 0,
  service_level: { ttft_ms, tpot_ms: 250 },
});
const sleeper = (id: string, changes: Partial<Sleeper> = {}): Sleeper => ({
  id,
  awake: false,
  running: 0,
  waiting: [],
  promised: true,
  change_ms: 1000,
  ...changes,
});

describe('the engine that is awake', () => {
  it('is the one whose most urgent request has the least headroom, what waking takes counted in', () => {
    const early = sleeper('early', { waiting: [asked(0), asked(900)] });
    const late = sleeper('late', { waiting: [asked(500)] });
    expect(nextAwake([late, early], 1000)).toEqual({
      id: 'early',
      because: 'its most urgent request has 0 ms left',
    });
    expect(nextAwake([{ ...late, change_ms: 5000 }, early], 1000)?.id).toBe('late');
    const strict = sleeper('strict', { waiting: [asked(900, 100)] });
    expect(nextAwake([late, early, strict], 1000)?.id).toBe('strict');
    expect(nextAwake([sleeper('a'), sleeper('b', { awake: true, running: 2 })], 0)).toBeUndefined();
  });

  it('goes on for four changes while it is asked, and gives way at once where it is not', () => {
    const other = sleeper('other', { waiting: [asked(0)] });
    const awake = sleeper('awake', { awake: true, running: 1, awake_since_ms: 0 });
    expect(nextAwake([awake, other], 3999)?.id).toBe('awake');
    expect(nextAwake([awake, other], 4000)?.id).toBe('other');
    expect(nextAwake([{ ...awake, running: 0 }, other], 1)?.id).toBe('other');
  });

  it('keeps promises before it serves whom nothing is promised', () => {
    const free = sleeper('free', { promised: false, waiting: [asked(0)] });
    const bound = sleeper('bound', { waiting: [asked(900)] });
    expect(nextAwake([free, bound], 1000)?.id).toBe('bound');
    expect(nextAwake([free], 1000)?.id).toBe('free');
    // Its turn ends at once where it is bound by no promise itself, and not for another that is not.
    const awake = sleeper('awake', { promised: false, awake: true, running: 1, awake_since_ms: 999 });
    expect(nextAwake([awake, bound], 1000)?.id).toBe('bound');
    expect(nextAwake([awake, free], 1000)?.id).toBe('awake');
  });

  it('changes at last, whoever else keeps asking', () => {
    // Two that are always asked: neither waits for more than the other's turn and a change.
    fc.assert(
      fc.property(
        fc.integer({ min: 10, max: 5000 }),
        fc.integer({ min: 50, max: 3000 }),
        (change_ms, pause_ms) => {
          let awake = 0;
          let since_ms = 0;
          const last_ms = [0, 0];
          for (let now_ms = 0; now_ms < 100_000; now_ms += pause_ms) {
            const both = [0, 1].map((at) =>
              sleeper(String(at), {
                awake: at === awake,
                running: at === awake ? 1 : 0,
                awake_since_ms: since_ms,
                change_ms,
                waiting: [asked(at === awake ? now_ms : last_ms[at]!)],
              }),
            );
            last_ms[awake] = now_ms;
            const next = Number(nextAwake(both, now_ms)!.id);
            if (next !== awake) since_ms = now_ms + change_ms;
            awake = next;
            expect(now_ms - last_ms[1 - awake]!).toBeLessThanOrEqual(5 * change_ms + 2000 + 2 * pause_ms);
          }
        },
      ),
      { numRuns: 50 },
    );
  });
});
