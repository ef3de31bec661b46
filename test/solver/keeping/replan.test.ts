/** When a deployment is planned again: after a loss at once, else when a change lasts, and never too often. */
import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { judgePlan } from '../../../solver/keeping/judge-plan.ts';
import {
  assumptions,
  decideReplan,
  type PlanAssumptions,
  type ReplanQuestion,
  type ReplanSettings,
  type StandingLaunch,
  withoutNodes,
} from '../../../solver/keeping/replan.ts';
import type { NodeKindOffer, PlannedWorkload } from '../../../spec/plan.ts';
import { gpus } from '../placement/support.ts';

const minute = 60_000;
const settings: ReplanSettings = {
  interval_ms: 10 * minute,
  hold_ms: 2 * minute,
  load_factor: 1.5,
  gain_min: 0.1,
};
const load = (rate_per_s: number, more: Partial<PlannedWorkload> = {}): PlannedWorkload => ({
  rate_per_s,
  input_tokens: 500,
  output_tokens: 100,
  source: 'measured',
  ...more,
});
/** Nodes of four devices; `a` and `b` of the catalog's names. */
const offers = (a: number, b: number): NodeKindOffer[] => [gpus('A100', 40, a), gpus('H100', 80, b)];
const launch = (
  launch_id: string,
  phase: StandingLaunch['phase'],
  devices = 4,
  facts: Partial<StandingLaunch['planned']> = {},
): StandingLaunch => ({
  launch_id,
  phase,
  planned: {
    node_kind: 'a100',
    node_count: 1,
    devices_per_node: { kind: 'gpu', model: 'A100', count: devices, memory_bytes: 40e9 },
    cpus_per_node: 4,
    ...facts,
  },
});
const asked = (facts: Partial<ReplanQuestion>): ReplanQuestion => ({
  now_ms: 100 * minute,
  launches: [launch('1', 'running')],
  offers: offers(1, 1),
  assumed: assumptions(0, offers(1, 1), { m: load(1) }),
  measured: new Map([['m', load(1)]]),
  settings,
  ...facts,
});

describe('what is lost', () => {
  it('is found by the nodes that take jobs, those that are over before those that wait', () => {
    const three = [launch('1', 'running'), launch('2', 'waiting'), launch('3', 'ended')];
    expect(withoutNodes(three, offers(3, 0))).toMatchObject({ lost: [], strained: false });
    expect(withoutNodes(three, offers(2, 0))).toMatchObject({ lost: ['3'], strained: false });
    expect(withoutNodes(three, offers(1, 0))).toMatchObject({ lost: ['3', '2'], strained: false });
    expect(withoutNodes(three, offers(0, 0))).toMatchObject({
      lost: ['3', '2'],
      strained: true,
      because: 'a100: 0 node(s) take jobs, 3 are needed',
    });
  });

  it('counts a node once where several launches are beside each other, and whole nodes whole', () => {
    const halves = [launch('1', 'running', 2), launch('2', 'ended', 2)];
    expect(withoutNodes(halves, offers(1, 0)).lost).toEqual([]);
    const whole = offers(1, 0).map((offer) => ({ ...offer, whole_nodes: true as const }));
    expect(withoutNodes(halves, whole).lost).toEqual(['2']);
    const cpus = { devices_per_node: { kind: 'cpu', model: 'A100', count: 0, memory_bytes: 1 } as const };
    const byCpus = ['1', '2', '3'].map((id) => launch(id, 'ended', 0, { ...cpus, cpus_per_node: 32 }));
    expect(withoutNodes(byCpus, offers(1, 0)).lost).toEqual(['1']);
  });

  it('counts nodes under two names once', () => {
    const pool = { id: 'a100+twin', nodes: 1 };
    const [a] = offers(1, 0);
    const twins = [
      { ...a!, pool },
      { ...a!, node_kind: 'twin', pool },
    ];
    const both = [launch('1', 'running'), launch('2', 'waiting', 4, { node_kind: 'twin' })];
    expect(withoutNodes(both, twins).lost).toEqual(['2']);
  });

  it('is planned again at once, and is not where its kind still has the nodes', () => {
    const ended = [launch('1', 'ended')];
    expect(decideReplan(asked({ launches: ended }))).toEqual({ do: 'nothing' });
    const now = asked({ launches: ended, offers: offers(0, 1) });
    const decided = { do: 'replan', trigger: 'loss', lost: ['1'] };
    expect(decideReplan(now)).toMatchObject(decided);
    // Minutes after another plan, with any interval, and where nobody wrote down what was assumed.
    const { assumed } = now;
    expect(decideReplan({ ...now, assumed: { ...assumed!, planned_ms: now.now_ms - 1 } })).toMatchObject(
      decided,
    );
    expect(decideReplan({ ...now, settings: { ...settings, interval_ms: 0 } })).toMatchObject(decided);
    expect(decideReplan({ ...now, assumed: undefined })).toMatchObject(decided);
    // Nobody can be asked what there is.
    expect(decideReplan({ ...now, offers: undefined })).toMatchObject({ do: 'nothing' });
  });

  it('is not searched for again and again where there was no other place', () => {
    const nowhere = asked({ launches: [launch('1', 'waiting')], offers: offers(0, 1) });
    const searched = (since_ms: number): ReplanQuestion => ({
      ...nowhere,
      assumed: { ...assumptions(nowhere.now_ms - since_ms, nowhere.offers, { m: load(1) }) },
    });
    expect(decideReplan(searched(5 * minute)).do).toBe('nothing');
    expect(decideReplan(searched(10 * minute)).do).toBe('replan');
    // Other nodes came.
    expect(decideReplan({ ...searched(5 * minute), offers: offers(0, 2) }).do).toBe('replan');
  });
});

describe('a change', () => {
  it('counts when it has lasted, and not before the interval is over', () => {
    const busy = asked({ measured: new Map([['m', load(3)]]) });
    const first = decideReplan(busy);
    expect(first).toMatchObject({ do: 'wait', differs_since_ms: busy.now_ms });
    const since = (differs_ms: number, planned_ms: number): ReplanQuestion => ({
      ...busy,
      assumed: {
        ...busy.assumed!,
        planned_ms: busy.now_ms - planned_ms,
        differs_since_ms: busy.now_ms - differs_ms,
      },
    });
    expect(decideReplan(since(2 * minute - 1, 60 * minute)).do).toBe('wait');
    expect(decideReplan(since(2 * minute, 60 * minute))).toMatchObject({ do: 'replan', trigger: 'load' });
    expect(decideReplan(since(60 * minute, 10 * minute - 1)).do).toBe('wait');
    expect(
      decideReplan({ ...since(60 * minute, 60 * minute), settings: { ...settings, interval_ms: 0 } }).do,
    ).toBe('nothing');
  });

  it.each<[string, Partial<ReplanQuestion>, 'load' | 'cluster' | undefined]>([
    ['a rate within the factor', { measured: new Map([['m', load(1.49)]]) }, undefined],
    ['a higher rate', { measured: new Map([['m', load(1.5)]]) }, 'load'],
    ['a lower rate', { measured: new Map([['m', load(0.6)]]) }, 'load'],
    ['longer prompts', { measured: new Map([['m', load(1, { input_tokens: 800 })]]) }, 'load'],
    ['shorter answers', { measured: new Map([['m', load(1, { output_tokens: 50 })]]) }, 'load'],
    [
      'rates that no replica feels',
      { measured: new Map([['m', load(0.09)]]), assumed: assumptions(0, offers(1, 1), { m: load(0.01) }) },
      undefined,
    ],
    [
      'what a person said',
      {
        measured: new Map([['m', load(9)]]),
        assumed: assumptions(0, offers(1, 1), { m: load(1, { source: 'given' }) }),
      },
      undefined,
    ],
    ['a model of another deployment', { measured: new Map([['other', load(9)]]) }, undefined],
    ['a kind that came', { assumed: assumptions(0, offers(1, 0), { m: load(1) }) }, 'cluster'],
    ['a kind that went', { offers: offers(1, 0) }, 'cluster'],
    [
      'a few nodes more of many',
      { offers: offers(1, 19), assumed: assumptions(0, offers(1, 10), {}) },
      undefined,
    ],
    ['twice as many', { offers: offers(1, 20), assumed: assumptions(0, offers(1, 10), {}) }, 'cluster'],
    ['a node that drains under what runs', { offers: offers(0, 1) }, 'cluster'],
    ['nobody who can be asked', { offers: undefined }, undefined],
    [
      'nobody who could be asked when it was planned',
      { assumed: assumptions(0, undefined, { m: load(1) }) },
      undefined,
    ],
  ])('of %s', (_, facts, trigger) => {
    const question = asked(facts);
    const lasting = { ...question.assumed!, differs_since_ms: 0 };
    const decided = decideReplan({ ...question, assumed: lasting });
    expect(decided.do === 'replan' ? decided.trigger : undefined).toBe(trigger);
  });

  it('says what it is in numbers', () => {
    const decided = decideReplan(asked({ measured: new Map([['m', load(3.21, { input_tokens: 80 })]]) }));
    expect(decided).toMatchObject({
      because: 'm is asked 3.2/s, 80 tokens in, 100 out; planned for 1/s, 500 tokens in, 100 out',
    });
  });
});

/** Looks every few seconds at a load, as the keeper does; every search is taken for one that moves everything. */
function searches(
  loadAt: (at_ms: number) => number,
  hours: number,
  nodesAt: (at_ms: number) => number = () => 1,
): number[] {
  let assumed: PlanAssumptions = assumptions(0, offers(1, nodesAt(0)), { m: load(loadAt(0)) });
  const times: number[] = [];
  for (let now_ms = 0; now_ms < hours * 60 * minute; now_ms += 5000) {
    const measured = new Map([['m', load(loadAt(now_ms))]]);
    const seen = offers(1, nodesAt(now_ms));
    const decided = decideReplan({
      now_ms,
      launches: [launch('1', 'running')],
      offers: seen,
      assumed,
      measured,
      settings,
    });
    if (decided.do === 'replan') {
      times.push(now_ms);
      assumed = assumptions(now_ms, seen, { m: load(loadAt(now_ms)) });
    } else
      assumed = {
        ...assumed,
        differs_since_ms: decided.do === 'wait' ? decided.differs_since_ms : undefined,
      };
  }
  return times;
}

describe('a load that comes and goes', () => {
  it('moves nothing where it never lasts', () => {
    const bursts = (at_ms: number): number => (Math.floor(at_ms / minute) % 2 === 0 ? 1 : 10);
    expect(searches(bursts, 6)).toEqual([]);
    const blinking = (at_ms: number): number => Math.floor(at_ms / minute) % 2;
    expect(searches(() => 1, 6, blinking)).toEqual([]);
  });

  it('is followed once where it lasts', () => {
    expect(searches((at_ms) => (at_ms < 60 * minute ? 1 : 4), 6)).toEqual([62 * minute]);
  });

  it('is searched for no more often than the interval allows, whatever it does', () => {
    const walk = fc.array(
      fc.record({
        minutes: fc.integer({ min: 1, max: 20 }),
        rate: fc.double({ min: 0.1, max: 50, noNaN: true }),
        nodes: fc.integer({ min: 0, max: 40 }),
      }),
      { minLength: 1, maxLength: 40 },
    );
    fc.assert(
      fc.property(walk, (steps) => {
        const at = (at_ms: number): (typeof steps)[number] => {
          let left = (at_ms / minute) % steps.reduce((sum, { minutes }) => sum + minutes, 0);
          for (const step of steps) {
            left -= step.minutes;
            if (left < 0) return step;
          }
          return steps[0]!;
        };
        const times = searches(
          (at_ms) => at(at_ms).rate,
          4,
          (at_ms) => at(at_ms).nodes,
        );
        for (const [index, time] of times.entries())
          expect(time - (times[index - 1] ?? 0)).toBeGreaterThanOrEqual(settings.interval_ms);
      }),
      { numRuns: 40 },
    );
  });
});

describe('a new plan', () => {
  const plan = {
    standing_cost: 10,
    proposed_cost: 8,
    leaves_running: true,
    starts_at_once: true,
    starts_in_own_room: true,
  };

  it('is followed where it saves enough, what runs beside what comes', () => {
    expect(judgePlan(plan, 0.1)).toMatchObject({ do: 'move', overlap: true });
    expect(judgePlan({ ...plan, proposed_cost: 9.1 }, 0.1)).toMatchObject({
      do: 'stay',
      because: expect.stringMatching(/saves 9 %/),
    });
    expect(judgePlan({ ...plan, proposed_cost: 11 }, 0)).toMatchObject({
      do: 'stay',
      because: 'no plan costs less',
    });
  });

  it('is followed where what stands cannot go on, whatever it costs', () =>
    expect(judgePlan({ ...plan, standing_cost: undefined, proposed_cost: 1e9 }, 0.5)).toMatchObject({
      do: 'move',
      overlap: true,
    }));

  it('takes down what serves only where that is worth it, and its room is what is needed', () => {
    const full = { ...plan, starts_at_once: false };
    expect(judgePlan(full, 0.1)).toMatchObject({
      do: 'stay',
      because: expect.stringMatching(/no room .* saves 20 %/),
    });
    expect(judgePlan({ ...full, proposed_cost: 4 }, 0.1)).toMatchObject({ do: 'move', overlap: false });
    expect(judgePlan({ ...full, proposed_cost: 4, starts_in_own_room: false }, 0.1).do).toBe('stay');
    expect(judgePlan({ ...full, proposed_cost: 4 }, 0.7).do).toBe('stay');
    // Where nothing has to go it may wait in the queue.
    expect(judgePlan({ ...full, leaves_running: false }, 0.1)).toMatchObject({ do: 'move', overlap: true });
  });
});
