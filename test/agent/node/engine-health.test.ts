/** When an engine that lives is held to have stalled, or to hang; and what is none of both. */
import { describe, expect, test } from 'vitest';
import { AnswerPace } from '../../../agent/node/answer-pace.ts';
import {
  EngineHealth,
  type HealthLook,
  type HealthVerdict,
  look_ms,
} from '../../../agent/node/engine-health.ts';

const bounds = { health_s: 45, stall_s: 300 };
const calm: HealthLook = {
  in_flight: 0,
  streams: 0,
  unanswered: 0,
  flowing: 0,
  answer_bytes: 0,
  stopped: [],
  ended: [],
  cpu_ms: 0,
  is_compiling: false,
};
/** Three streams, as they usually come. */
const streaming: HealthLook = { ...calm, in_flight: 3, streams: 3, flowing: 3, usual_gap_ms: 50 };

/** Says of each look what is concluded; `change` makes the next look of the one before. */
function run(
  looks: number,
  first: HealthLook,
  change: (before: HealthLook, at: number) => Partial<HealthLook> = () => ({}),
  health = new EngineHealth(bounds),
): HealthVerdict['is'][] {
  const verdicts: HealthVerdict['is'][] = [];
  let look = first;
  for (let at = 0; at < looks; at++) {
    verdicts.push(health.look(look).is);
    look = { ...look, health: undefined, has_revived: undefined, ...change(look, at + 1) };
  }
  return verdicts;
}

/** After how long it is first held for something, ms; undefined: never within the looks. */
function firstOf(is: HealthVerdict['is'], verdicts: HealthVerdict['is'][]): number | undefined {
  const at = verdicts.indexOf(is);
  return at < 0 ? undefined : at * look_ms;
}

const busy = (before: HealthLook) => ({ cpu_ms: before.cpu_ms + look_ms });
const failed = { is: 'failed', why: '/health is not answered within 10 s', answered: false } as const;

describe('health checks', () => {
  test('three within health_s, each waited for twice as long as the pause before it', () => {
    const { interval_ms, timeout_ms } = new EngineHealth(bounds);
    expect([interval_ms, timeout_ms]).toEqual([5000, 10_000]);
    expect(3 * (interval_ms + timeout_ms)).toBe(45_000);
  });

  test('must fail in a row', () => {
    const answers = [failed, failed, { is: 'well' } as const, failed, failed, failed];
    const health = new EngineHealth(bounds);
    expect(answers.map((answer) => health.look({ ...calm, health: answer }).is)).toEqual([
      ...Array(5).fill('well'),
      'hung',
    ]);
  });

  test('are nothing against tokens that come', () => {
    const tokens = (before: HealthLook) => ({ health: failed, answer_bytes: before.answer_bytes + 9 });
    expect(run(2000, streaming, tokens)).not.toContain('hung');
  });

  test('are tolerated for stall_s while its processes work, and no longer', () => {
    const late = (before: HealthLook) => ({ ...busy(before), health: failed });
    expect(firstOf('hung', run(2000, calm, late))).toBe(300_000);
  });

  test('that it answers with an error are not', () => {
    const sick = { is: 'failed', why: '/health answers 503', answered: true } as const;
    const late = (before: HealthLook) => ({ ...busy(before), health: sick });
    expect(firstOf('hung', run(50, calm, late))).toBe(3 * look_ms);
  });
});

describe('an engine gives no token to any of its streams', () => {
  test('and its processes rest: after 20 of its usual gaps, and at least 1.5 s', () => {
    expect(firstOf('stalled', run(20, streaming))).toBe(1500);
    expect(firstOf('stalled', run(40, { ...streaming, usual_gap_ms: 300 }))).toBe(6000);
  });

  test('and little is known of its gaps: 10 s', () => {
    expect(firstOf('stalled', run(40, { ...streaming, usual_gap_ms: undefined }))).toBe(10_000);
  });

  test.each<[string, Partial<HealthLook>, (before: HealthLook) => Partial<HealthLook>]>([
    ['a long prompt is read', { unanswered: 1, in_flight: 4 }, busy],
    ['kernels are compiled', {}, (b) => ({ ...busy(b), is_compiling: true })],
    ['other requests of a full batch get theirs', { activity: 1 }, (b) => ({ activity: b.activity! + 9 })],
    ['they get them slowly', {}, (b) => ({ answer_bytes: b.answer_bytes + 9 })],
    ['its clients do not read', { in_flight: 0, streams: 0, flowing: 0 }, () => ({})],
  ])('no stall: %s', (_, look, change) => {
    expect(run(500, { ...streaming, ...look }, change)).toEqual(Array(500).fill('well'));
  });

  test('a prompt is read by processes that rest: 5 s', () => {
    expect(firstOf('stalled', run(40, { ...streaming, unanswered: 1, in_flight: 4 }))).toBe(5000);
  });

  test('its processes work, and nothing says at what: 60 s', () => {
    expect(firstOf('stalled', run(200, streaming, busy))).toBe(60_000);
  });

  test('stays so for stall_s: it hangs, though it has no requests any more', () => {
    const moved = (_: HealthLook, at: number) => (at > 5 ? { in_flight: 0, streams: 0, flowing: 0 } : {});
    expect(firstOf('hung', run(700, streaming, moved))).toBe(300_000);
  });

  test('gets its requests again where it computes again, by its own number or by a token', () => {
    const gone = { in_flight: 0, streams: 0, flowing: 0 };
    const byNumber = run(20, { ...streaming, activity: 7 }, (_, at) =>
      at > 9 ? { ...gone, activity: 8 } : {},
    );
    expect(byNumber.slice(8, 12)).toEqual(['stalled', 'stalled', 'well', 'well']);
    const byToken = run(20, streaming, (_, at) => (at > 3 ? { ...gone, has_revived: at === 12 } : {}));
    expect(byToken.slice(10, 14)).toEqual(['stalled', 'stalled', 'well', 'well']);
  });
});

describe('nothing comes of requests', () => {
  const waiting = { ...calm, in_flight: 2, streams: 0, unanswered: 2, activity: 1 };

  test('of which none has begun, and its processes rest: 30 s', () => {
    expect(firstOf('stalled', run(100, waiting))).toBe(30_000);
  });

  test('while its processes work: after stall_s it hangs', () => {
    const verdicts = run(700, waiting, busy);
    expect(firstOf('hung', verdicts)).toBe(300_000);
    expect(verdicts).not.toContain('stalled');
  });

  test('which are not streamed, of an engine that says nothing of itself: nobody can tell', () => {
    expect(run(2000, { ...waiting, activity: undefined })).toEqual(Array(2000).fill('well'));
  });
});

describe('a process has ended', () => {
  const ended = ['VLLM::EngineCor (7)'];
  const once = (_: HealthLook, at: number) => ({ ended: at === 4 ? ended : [] });

  test('and no token comes after it: stalled within a second, though others of its processes work', () => {
    const last = (before: HealthLook, at: number) => ({
      ...once(before, at),
      ...busy(before),
      answer_bytes: Math.min(at, 4),
    });
    const verdicts = run(8, streaming, last);
    expect(verdicts).toEqual([...Array(5).fill('well'), 'stalled', 'stalled', 'stalled']);
    const health = new EngineHealth(bounds);
    run(5, streaming, last, health);
    expect(health.look({ ...streaming, answer_bytes: 4 })).toMatchObject({
      why: 'its process VLLM::EngineCor (7) has ended, and no token came to its 3 running stream(s) for 0.5 s',
    });
  });

  test('and tokens come on: it was a helper, also where they pause later', () => {
    const flows = (before: HealthLook, at: number) => ({
      ...once(before, at),
      ...busy(before),
      answer_bytes: at > 20 && at < 60 ? before.answer_bytes : at,
    });
    expect(run(80, streaming, flows)).toEqual(Array(80).fill('well'));
  });

  test('while prompts are read: nothing', () => {
    const reading: HealthLook = { ...calm, in_flight: 2, unanswered: 2, activity: 1 };
    expect(run(50, reading, (before, at) => ({ ...once(before, at), ...busy(before) }))).toEqual(
      Array(50).fill('well'),
    );
  });

  test('an engine whose tokens are rare is given two of its gaps', () => {
    const rare: HealthLook = { ...streaming, usual_gap_ms: 2000 };
    expect(
      firstOf(
        'stalled',
        run(40, rare, (before, at) => ({ ...once(before, at), ...busy(before) })),
      ),
    ).toBe(4000);
  });
});

describe('a process is stopped', () => {
  const name = 'VLLM::EngineCor (7)';

  test('seen twice: stalled, whatever else it does', () => {
    expect(run(4, { ...streaming, stopped: [name] }, busy)).toEqual([
      'well',
      'stalled',
      'stalled',
      'stalled',
    ]);
    expect(run(4, { ...calm, stopped: [name] })).toEqual(['well', 'stalled', 'stalled', 'stalled']);
  });

  test('seen once, as where a whole job is continued: nothing', () => {
    const once = (_: HealthLook, at: number) => ({ stopped: at % 2 === 0 ? [name] : [] });
    expect(run(50, { ...calm, stopped: [name] }, once)).toEqual(Array(50).fill('well'));
  });

  test('and continued: well once it has answered since', () => {
    const verdicts = run(12, { ...calm, stopped: [name] }, (_, at) => ({
      stopped: at < 6 ? [name] : [],
      health: at === 3 || at === 9 ? { is: 'well' } : undefined,
    }));
    expect(verdicts).toEqual(['well', ...Array(8).fill('stalled'), ...Array(3).fill('well')]);
  });

  test('for stall_s: it hangs', () => {
    expect(firstOf('hung', run(700, { ...calm, stopped: [name] }))).toBe(300_000);
  });
});

describe('the pace of answers', () => {
  test('is that of all streams together, and begins anew where none is left', () => {
    const pace = new AnswerPace();
    expect(pace.p99_ms).toBeUndefined();
    const streams = [0, 5].map((at) => pace.join(() => false, at));
    for (let at = 10; at < 1010; at += 10) streams[(at / 10) % 2]!.arrived(at);
    expect(pace.p99_ms).toBe(10);
    for (const stream of streams) stream.leave();
    expect(pace.begun).toBe(0);
    // Hours without a request are no gap.
    const later = pace.join(() => false, 9_000_000);
    later.arrived(9_000_010);
    expect(pace.p99_ms).toBe(10);
  });

  test('a stream that its client does not read does not count', () => {
    const pace = new AnswerPace();
    let isHeld = false;
    pace.join(() => isHeld, 0);
    pace.join(() => true, 0);
    expect([pace.begun, pace.flowing]).toEqual([2, 1]);
    isHeld = true;
    expect(pace.flowing).toBe(0);
  });
});
