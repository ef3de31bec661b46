import { describe, expect, it } from 'vitest';
import type {
  Cluster,
  ClusterOutcome,
  OrdinaryJob,
  ScavengerPolicy,
} from '../../../solver/cluster-simulator/cluster.ts';
import { oracleDeviceTime_s } from '../../../solver/cluster-simulator/oracle.ts';
import { livePolicy } from '../../../solver/cluster-simulator/policies.ts';
import { simulateCluster } from '../../../solver/cluster-simulator/simulate.ts';
import { syntheticTrace } from '../../../solver/cluster-simulator/trace.ts';

const cluster: Cluster = {
  nodes: 2,
  devices_per_node: 4,
  grace_s: 30,
  cycle_s: 30,
  requeue_delay_s: 120,
  depth: 100,
  reservations: [],
};
const job = (facts: Partial<OrdinaryJob>): OrdinaryJob => ({
  submit_s: 0,
  nodes: 1,
  devices: 4,
  run_s: 1000,
  limit_s: 2000,
  priority: 0,
  ...facts,
});
const replica = { nodes: 1, devices: 4, load_s: 100, drain_s: 10 };
/** Submits once, at the start. */
const once = (...submissions: Parameters<typeof jobOf>[0][]): ScavengerPolicy => ({
  interval_s: 1e9,
  look: () => ({ submit: submissions.map(jobOf), withdraw: [] }),
});
const jobOf = (facts: { id: string; limit_s: number; time_min_s?: number }) => ({
  ...replica,
  requeues_max: 5,
  ...facts,
});
const starts = (trace: OrdinaryJob[], cluster_: Cluster = cluster): (number | undefined)[] => {
  const { ordinary_start_s } = simulateCluster(cluster_, trace, 100_000);
  return trace.map((_, index) => ordinary_start_s.get(index));
};

describe('the simulated cluster', () => {
  it('starts jobs by priority', () => {
    const whole = { nodes: 2, submit_s: 1 };
    expect(starts([job({ nodes: 2 }), job(whole), job({ ...whole, priority: 9 })])).toEqual([0, 2000, 1000]);
  });

  it('backfills what ends before the head of the queue can start, by the limits people asked for', () => {
    const trace = [
      job({ run_s: 1000, limit_s: 2000 }),
      job({ submit_s: 1, nodes: 2, priority: 5 }),
      job({ submit_s: 2, run_s: 500, limit_s: 1998 }),
      job({ submit_s: 3, run_s: 10, limit_s: 1999 }),
    ];
    // The head waits for the first job, which ends earlier than its limit. The last job asks for a second too much.
    expect(starts(trace)).toEqual([0, 1000, 2, 2000]);
  });

  it('puts small jobs beside each other on a node', () => {
    const small = job({ devices: 1 });
    expect(starts(Array.from({ length: 8 }, () => small))).toEqual(Array.from({ length: 8 }, () => 0));
    expect(starts(Array.from({ length: 9 }, () => small)).at(-1)).toBe(1000);
  });

  it('runs nothing into a reservation', () => {
    const reserved = { ...cluster, reservations: [{ start_s: 1500, end_s: 3000, nodes: [0, 1] }] };
    expect(starts([job({}), job({ limit_s: 1400 })], reserved)).toEqual([3000, 0]);
  });

  it('cuts a preemptible job down to what the hole has, and starts none that would be too short', () => {
    const reserved = { ...cluster, reservations: [{ start_s: 1500, end_s: 3000, nodes: [0, 1] }] };
    const run = (time_min_s?: number): number =>
      simulateCluster(
        reserved,
        [],
        2000,
        once({ id: 'a', limit_s: 7200, ...(time_min_s === undefined ? {} : { time_min_s }) }),
      ).served_device_s;
    expect(run(600)).toBe(4 * (1500 - 30 - 100));
    expect(run(1600)).toBe(0);
    expect(run()).toBe(0);
  });

  it('preempts for ordinary jobs, which wait for the drain and no longer than the grace time', () => {
    const trace = [job({ submit_s: 500, nodes: 2, limit_s: 1000 })];
    const outcome = simulateCluster(
      cluster,
      trace,
      5000,
      once({ id: 'a', limit_s: 7200, time_min_s: 60 }, { id: 'b', limit_s: 7200, time_min_s: 60 }),
    );
    expect(outcome.preemptions).toBe(2);
    expect(outcome.delays_s).toEqual([10]);
    expect(outcome.ordinary_start_s.get(0)).toBe(510);
    // Both come back when the ordinary job is over, at the next pass.
    expect(outcome.starts).toBe(4);
    const until_s = 500;
    const again_s = 1530;
    const runs_s = [until_s - 30 - 100, 5000 - again_s - 100];
    expect(outcome.served_device_s).toBe(2 * 4 * (runs_s[0]! + runs_s[1]!));
    const stubborn = { ...replica, drain_s: 1000 };
    const slow = simulateCluster(cluster, trace, 5000, {
      interval_s: 1e9,
      look: () => ({
        submit: ['a', 'b'].map((id) => ({ ...stubborn, id, limit_s: 7200, requeues_max: 0 })),
        withdraw: [],
      }),
    });
    expect(slow.delays_s).toEqual([30]);
    expect(slow.starts).toBe(2);
  });

  it('takes idle nodes before it preempts', () => {
    const trace = [job({ submit_s: 500 })];
    const outcome = simulateCluster(cluster, trace, 2000, once({ id: 'a', limit_s: 7200 }));
    expect(outcome.preemptions).toBe(0);
    expect(outcome.ordinary_start_s.get(0)).toBe(500);
  });
});

describe('the oracle', () => {
  it('counts each place of a node alone, without its load', () => {
    const taken = [
      [
        { at_s: 0, devices: 0 },
        { at_s: 1000, devices: 2 },
        { at_s: 3000, devices: 4 },
      ],
    ];
    const two = { devices: 2, load_s: 100 };
    expect(oracleDeviceTime_s(taken, 4000, 4, two)).toBe(2 * (3000 - 100) + 2 * (1000 - 100));
    expect(oracleDeviceTime_s(taken, 4000, 4, { devices: 4, load_s: 1000 })).toBe(0);
  });
});

describe('two simulated days', () => {
  const days_s = 2 * 86_400;
  const site = { ...cluster, nodes: 8 };
  const trace = syntheticTrace({
    seed: 7,
    seconds: days_s,
    nodes: 8,
    devices_per_node: 4,
    utilization: 0.8,
  });
  const small = { ...replica, devices: 1, load_s: 60 };
  const shareOfOracle = ({ served_device_s, taken }: ClusterOutcome): number =>
    served_device_s / oracleDeviceTime_s(taken, days_s, 4, small);
  const live = (limits: Partial<Parameters<typeof livePolicy>[0]['limits']> = {}) =>
    simulateCluster(
      site,
      trace,
      days_s,
      livePolicy({
        replica: small,
        interval_s: 60,
        submissions_per_minute: 30,
        jobs_max: 60,
        limits: {
          replicas_max: 60,
          waiting_max: 4,
          walltime_max_s: 4 * 3600,
          start_share_max: 0.25,
          restarts_max: 5,
          ...limits,
        },
      }),
    );

  it('harvests most of what somebody who knew the future would', () => {
    const outcome = live();
    expect(shareOfOracle(outcome)).toBeGreaterThan(0.8);
    expect(shareOfOracle(outcome)).toBeLessThanOrEqual(1);
    expect(Math.max(...outcome.delays_s)).toBeLessThanOrEqual(site.grace_s);
    expect(shareOfOracle(live({ replicas_max: 2 }))).toBeLessThan(0.5);
  });

  it('every job is where devices are, and the sums add up', () => {
    const outcome = live();
    expect(outcome.served_device_s + outcome.starting_device_s).toBeLessThanOrEqual(outcome.idle_device_s);
    for (const steps of outcome.taken)
      for (const { devices } of steps) {
        expect(devices).toBeGreaterThanOrEqual(0);
        expect(devices).toBeLessThanOrEqual(4);
      }
  });
});
