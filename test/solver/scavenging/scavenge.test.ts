import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { expectedLife, survival, survivalOf } from '../../../solver/scavenging/preemption-history.ts';
import { type ScavengeQuestion, scavenge } from '../../../solver/scavenging/scavenge.ts';

const hour = 3600;
const replica = { shape: 'r', node_kind: 'gpu', nodes: 1, devices: 1, load_s: 60, worth_per_s: 1 };
const limits = {
  jobs_room: 100,
  submissions_room: 100,
  replicas_max: 100,
  waiting_max: 0,
  walltime_max_s: 4 * hour,
  start_share_max: 0.25,
  restarts_max: 3,
};
const ask = (facts: Partial<ScavengeQuestion> = {}): ScavengeQuestion => ({
  now_s: 0,
  holes: [{ node_kind: 'gpu', nodes: 2, devices: 4, seconds: Number.POSITIVE_INFINITY }],
  shapes: [replica],
  jobs: [],
  history: new Map(),
  limits,
  ...facts,
});

describe('scavenging', () => {
  it('fills every device of every hole with small jobs as long as the site allows', () => {
    const { submit } = scavenge(ask());
    expect(submit).toHaveLength(8);
    for (const each of submit)
      expect(each).toEqual({ shape: 'r', time_limit_s: 4 * hour, time_min_s: 240, for: 'hole' });
  });

  it('asks for no more time than the hole has, and passes by holes that are not worth a start', () => {
    const hole = { node_kind: 'gpu', nodes: 1, devices: 1 };
    expect(scavenge(ask({ holes: [{ ...hole, seconds: 30 * 60 }] })).submit).toMatchObject([
      { time_limit_s: 29 * 60, time_min_s: 240 },
    ]);
    // A quarter of the time at most may go into a load of 60 s, and Slurm needs a minute to start it.
    expect(scavenge(ask({ holes: [{ ...hole, seconds: 299 }] })).submit).toEqual([]);
  });

  it('counts what waits already, and keeps some waiting for the next hole', () => {
    const job = { shape: 'r', submitted_s: 0, restarts: 0 };
    const jobs = [
      ...Array.from({ length: 5 }, (_, index) => ({ ...job, id: `w${index}`, phase: 'waiting' as const })),
      { ...job, id: 'r', phase: 'running' as const },
    ];
    const { submit } = scavenge(ask({ jobs, limits: { ...limits, waiting_max: 2 } }));
    expect(submit.map((each) => each.for)).toEqual([
      ...Array.from({ length: 3 }, () => 'hole'),
      'next hole',
      'next hole',
    ]);
    const idle = ask({ holes: [], jobs: [], limits: { ...limits, waiting_max: 2 } });
    expect(scavenge(idle).submit).toHaveLength(2);
  });

  it('takes the shapes that are worth most together on the devices of a node', () => {
    const large = { ...replica, shape: 'large', devices: 3, worth_per_s: 4 };
    const holes = [{ node_kind: 'gpu', nodes: 1, devices: 4, seconds: hour }];
    const taken = scavenge(ask({ holes, shapes: [replica, large] })).submit.map((each) => each.shape);
    expect(taken.sort()).toEqual(['large', 'r']);
    const slow = { ...large, load_s: 15 * 60 };
    const instead = scavenge(ask({ holes, shapes: [replica, slow] })).submit.map((each) => each.shape);
    expect(instead).toEqual(['r', 'r', 'r', 'r']);
  });

  it('counts replicas, not jobs, where a job has several', () => {
    const whole = { ...replica, devices: 4, replicas: 4, worth_per_s: 4 };
    const holes = [{ node_kind: 'gpu', nodes: 5, devices: 4, seconds: hour }];
    const wanted = (replicas_max: number): ScavengeQuestion =>
      ask({ holes, shapes: [whole], limits: { ...limits, replicas_max } });
    expect(scavenge(wanted(100)).submit).toHaveLength(5);
    expect(scavenge(wanted(8)).submit).toHaveLength(2);
    // A third job would be one replica too many.
    expect(scavenge(wanted(11)).submit).toHaveLength(2);
    const job = { shape: 'r', phase: 'waiting' as const, replicas: 4, submitted_s: 0, restarts: 0 };
    const jobs = [1, 2, 3].map((at) => ({ ...job, id: `j${at}`, submitted_s: at }));
    const withdrawn = (replicas_max: number): string[] =>
      scavenge({ ...wanted(replicas_max), jobs, holes: [] }).withdraw.map(({ id }) => id);
    expect(withdrawn(12)).toEqual([]);
    expect(withdrawn(9)).toEqual([]);
    expect(withdrawn(8)).toEqual(['j3']);
    expect(withdrawn(0)).toEqual(['j3', 'j2', 'j1']);
  });

  it('takes a shape of several nodes as often as the hole has them', () => {
    const wide = { ...replica, shape: 'wide', nodes: 2, devices: 4 };
    const holes = [{ node_kind: 'gpu', nodes: 5, devices: 4, seconds: hour }];
    expect(scavenge(ask({ holes, shapes: [wide] })).submit).toHaveLength(2);
  });

  it('stops where preemptions leave little but starts, and says so', () => {
    const often = new Map([['gpu', { preemptions: 400, job_hours: 12 }]]);
    const decided = scavenge(ask({ history: often }));
    expect(decided.submit).toEqual([]);
    expect(decided.held_back).toEqual([
      expect.stringMatching(/^r: jobs on gpu are preempted every 3 min, so \d+ % of its time/),
    ]);
  });

  it('withdraws what waits and is wanted no more, the newest first, and what was preempted too often', () => {
    const job = { shape: 'r', phase: 'waiting' as const, restarts: 0 };
    const jobs = [
      { ...job, id: 'old', submitted_s: 1 },
      { ...job, id: 'new', submitted_s: 2 },
      { ...job, id: 'unlucky', submitted_s: 0, restarts: 4 },
      { ...job, id: 'serves', phase: 'running' as const, submitted_s: 3 },
    ];
    const { withdraw, submit } = scavenge(ask({ jobs, limits: { ...limits, replicas_max: 2 } }));
    expect(withdraw).toEqual([
      { id: 'unlucky', because: 'it was preempted 4 times' },
      { id: 'new', because: 'fewer replicas are wanted' },
    ]);
    expect(submit).toEqual([]);
  });

  it('lets another take the place of one that may not start yet, and keeps one of them', () => {
    const held = {
      id: 'held',
      shape: 'r',
      phase: 'waiting' as const,
      submitted_s: 0,
      restarts: 1,
      held: true,
    };
    const one = { ...limits, replicas_max: 1 };
    expect(scavenge(ask({ jobs: [held], limits: one }))).toMatchObject({
      submit: [{ shape: 'r' }],
      withdraw: [],
    });
    const other = { ...held, id: 'other', submitted_s: 9, restarts: 0, held: false };
    expect(scavenge(ask({ jobs: [held, other], limits: one }))).toMatchObject({
      submit: [],
      withdraw: [{ id: 'held', because: 'fewer replicas are wanted' }],
    });
  });

  it('never exceeds a limit, and never asks for more devices than are free', () => {
    const hole = fc.record({
      node_kind: fc.constantFrom('gpu', 'cpu'),
      nodes: fc.integer({ min: 1, max: 6 }),
      devices: fc.integer({ min: 0, max: 8 }),
      seconds: fc.oneof(fc.constant(Number.POSITIVE_INFINITY), fc.integer({ min: 0, max: 20_000 })),
    });
    const shape = fc.record({
      shape: fc.constantFrom('a', 'b', 'c'),
      node_kind: fc.constantFrom('gpu', 'cpu'),
      nodes: fc.integer({ min: 1, max: 3 }),
      devices: fc.integer({ min: 1, max: 8 }),
      load_s: fc.integer({ min: 0, max: 2000 }),
      worth_per_s: fc.integer({ min: 1, max: 9 }),
    });
    const rooms = fc.record({
      jobs_room: fc.integer({ min: 0, max: 20 }),
      submissions_room: fc.integer({ min: 0, max: 20 }),
      replicas_max: fc.integer({ min: 0, max: 20 }),
      waiting_max: fc.integer({ min: 0, max: 4 }),
    });
    fc.assert(
      fc.property(
        fc.array(hole, { maxLength: 6 }),
        fc.uniqueArray(shape, { maxLength: 3, selector: (each) => each.shape }),
        rooms,
        (holes, shapes, room) => {
          const own = { ...limits, ...room };
          const { submit } = scavenge(ask({ holes, shapes, limits: own }));
          expect(submit.length).toBeLessThanOrEqual(
            Math.min(own.jobs_room, own.submissions_room, own.replicas_max),
          );
          for (const node_kind of ['gpu', 'cpu']) {
            const free = holes
              .filter((each) => each.node_kind === node_kind)
              .reduce((sum, each) => sum + each.nodes * each.devices, 0);
            const asked = submit.flatMap((each) => {
              const of = shapes.find(({ shape: name }) => name === each.shape)!;
              return each.for === 'hole' && of.node_kind === node_kind ? [of.nodes * of.devices] : [];
            });
            expect(asked.reduce((sum, each) => sum + each, 0)).toBeLessThanOrEqual(free);
          }
          for (const each of submit) {
            expect(each.time_min_s).toBeLessThanOrEqual(each.time_limit_s);
            expect(each.time_limit_s).toBeLessThanOrEqual(own.walltime_max_s);
          }
        },
      ),
    );
  });
});

describe('what the history of preemptions promises', () => {
  const history = { preemptions: 4, job_hours: 92 };

  it('is the survival of exponential lifetimes', () => {
    // One prior preemption in 8 hours: 5 in 100.
    expect(survival(history, hour)).toBeCloseTo(Math.exp(-0.05), 12);
    expect(survival({ preemptions: 0, job_hours: 0 }, hour)).toBeCloseTo(Math.exp(-1 / 8), 12);
  });

  it('is a binomial tail for several replicas', () => {
    const p = survival(history, hour);
    expect(survivalOf(1, 2, history, hour)).toBeCloseTo(1 - (1 - p) ** 2, 12);
    expect(survivalOf(2, 2, history, hour)).toBeCloseTo(p ** 2, 12);
    expect(survivalOf(3, 2, history, hour)).toBe(0);
    expect(survivalOf(0, 2, history, hour)).toBe(1);
  });

  it('expects a life that integrates the survival', () => {
    const rate = 1 / hour;
    const { running_s, serving_s } = expectedLife(rate, 600, 2 * hour);
    let sum = 0;
    let served = 0;
    for (let at = 0.5; at < 2 * hour; at++) {
      sum += Math.exp(-rate * at);
      if (at > 600) served += Math.exp(-rate * at);
    }
    expect(running_s).toBeCloseTo(sum, 2);
    expect(serving_s).toBeCloseTo(served, 2);
    expect(expectedLife(0, 600, hour)).toEqual({ running_s: hour, serving_s: 3000 });
  });
});
