/**
 * A simulated week of a busy cluster: what idle devices give when the live decision (`solver/scavenging`) uses them,
 * beside somebody who knew the future, jobs of one hour in a loop, and one large job.
 */
import type { Cluster, ClusterOutcome } from '../../solver/cluster-simulator/cluster.ts';
import { oracleDeviceTime_s } from '../../solver/cluster-simulator/oracle.ts';
import { fixedPolicy, livePolicy, type SimulatedReplica } from '../../solver/cluster-simulator/policies.ts';
import { simulateCluster } from '../../solver/cluster-simulator/simulate.ts';
import { syntheticTrace } from '../../solver/cluster-simulator/trace.ts';
import type { Bench, BenchResult } from '../result.ts';

const hour_s = 3600;
const week_s = 7 * 24 * hour_s;
const nodes = 32;
const devices_per_node = 4;
const grace_s = 30;
const seed = 1;
const look_s = 60;
const jobs_max = 200;

const cluster: Cluster = {
  nodes,
  devices_per_node,
  grace_s,
  cycle_s: 30,
  requeue_delay_s: 121,
  depth: 100,
  // Half a day of maintenance in the middle of the week, on all nodes.
  reservations: [
    {
      start_s: 3 * 24 * hour_s,
      end_s: 3.5 * 24 * hour_s,
      nodes: Array.from({ length: nodes }, (_, node) => node),
    },
  ],
};

/** How busy the site is, and how long a replica loads: a model of 8B and one of 70B. */
const settings: readonly { utilization: number; load_s: number; devices: number }[] = [
  { utilization: 0.8, load_s: 90, devices: 1 },
  { utilization: 0.93, load_s: 90, devices: 1 },
  { utilization: 0.93, load_s: 300, devices: 4 },
];

export const scavengingBench: Bench = {
  name: 'scavenging',
  describe:
    'idle devices of a simulated week on 32 nodes with 4 devices each, harvested by the live decision; beside an oracle, jobs of one hour, and one large job',
  run: ({ log }) => Promise.resolve(settings.flatMap((setting) => week(setting, log))),
};

type Setting = (typeof settings)[number];
type Trace = ReturnType<typeof syntheticTrace>;

/** What came of the same week. */
interface Weeks {
  /** Without replicas. */
  alone: ClusterOutcome;
  ours: ClusterOutcome;
  hourly: ClusterOutcome;
  large: ClusterOutcome;
}

function week(setting: Setting, log: (line: string) => void): BenchResult[] {
  const { utilization, load_s, devices } = setting;
  const trace = syntheticTrace({ seed, seconds: week_s, nodes, devices_per_node, utilization });
  const replica: SimulatedReplica = { nodes: 1, devices, load_s, drain_s: 10 };
  const weeks = simulateWeeks(trace, replica);
  // Preemptions delay ordinary jobs a little, so what is idle differs from run to run: each has its own oracle.
  const oracle_s = ({ taken }: ClusterOutcome): number =>
    oracleDeviceTime_s(taken, week_s, devices_per_node, replica);
  const where = `${Math.round(100 * utilization)} % busy, replicas of ${devices} device(s) that load for ${load_s} s`;
  logWeeks(where, trace, weeks, oracle_s, log);
  return weekResults(where, weeks, (outcome) => (100 * outcome.served_device_s) / oracle_s(outcome));
}

function simulateWeeks(trace: Trace, replica: SimulatedReplica): Weeks {
  const live = livePolicy({
    replica,
    interval_s: look_s,
    submissions_per_minute: 30,
    jobs_max,
    limits: {
      replicas_max: jobs_max,
      waiting_max: 4,
      walltime_max_s: 4 * hour_s,
      start_share_max: 0.25,
      restarts_max: 5,
    },
  });
  const job = { ...replica, requeues_max: 5 };
  const eight = { ...job, nodes: 8, devices: devices_per_node, limit_s: 4 * hour_s };
  const simulate = (policy?: typeof live): ClusterOutcome => simulateCluster(cluster, trace, week_s, policy);
  return {
    alone: simulate(),
    ours: simulate(live),
    hourly: simulate(fixedPolicy(jobs_max, { ...job, limit_s: hour_s }, look_s)),
    large: simulate(fixedPolicy(1, eight, look_s)),
  };
}

function logWeeks(
  where: string,
  trace: Trace,
  { alone, ours, hourly, large }: Weeks,
  oracle_s: (outcome: ClusterOutcome) => number,
  log: (line: string) => void,
): void {
  const days = (device_s: number): string => (device_s / (24 * hour_s)).toFixed(0);
  const lines: [string, ClusterOutcome][] = [
    ['live decision', ours],
    ['jobs of one hour', hourly],
    ['one job of 8 nodes, 4 h', large],
  ];
  log(
    `${where}: ${trace.length} ordinary jobs; ${days(alone.idle_device_s)} device-days idle of ${days(alone.device_s)}; the oracle serves for ${days(oracle_s(alone))}`,
  );
  for (const [name, outcome] of lines)
    log(
      `  ${name}: serves for ${days(outcome.served_device_s)} device-days, starts for ${days(outcome.starting_device_s)}; ${outcome.submissions} submissions, ${outcome.starts} starts, ${outcome.preemptions} preempted; ordinary jobs wait ${meanWait_s(trace, outcome).toFixed(0)} s on average (${meanWait_s(trace, alone).toFixed(0)} s without)`,
    );
}

/** @param share of what the oracle of an outcome serves, % */
function weekResults(
  where: string,
  { ours, hourly, large }: Weeks,
  share: (outcome: ClusterOutcome) => number,
): BenchResult[] {
  const beside = (
    what: string,
    peer: string,
    theirs: ClusterOutcome,
    bar = '',
    holds: boolean | null = null,
  ): BenchResult => ({
    what: `${what} (${where})`,
    unit: '% of the oracle',
    ours: share(ours),
    peer,
    theirs: share(theirs),
    ratio: share(ours) / share(theirs),
    bar,
    holds,
  });
  const delay_s = Math.max(0, ...ours.delays_s);
  return [
    beside('idle device-time that served', 'jobs of one hour', hourly, '≥ 80 %', share(ours) >= 80),
    beside('the same', 'one large job', large),
    {
      what: `idle device-time that went into starting (${where})`,
      unit: '%',
      ours: (100 * ours.starting_device_s) / ours.idle_device_s,
      peer: 'jobs of one hour',
      theirs: (100 * hourly.starting_device_s) / hourly.idle_device_s,
      ratio: hourly.starting_device_s / ours.starting_device_s,
      bar: '',
      holds: null,
    },
    {
      what: `longest that an ordinary job waited for a replica to leave, of ${ours.delays_s.length} that did`,
      unit: 's',
      ours: delay_s,
      peer: '',
      theirs: null,
      ratio: null,
      bar: `≤ ${grace_s} s (GraceTime)`,
      holds: delay_s <= grace_s,
    },
  ];
}

function meanWait_s(trace: readonly { submit_s: number }[], { ordinary_start_s }: ClusterOutcome): number {
  let sum_s = 0;
  for (const [index, start_s] of ordinary_start_s) sum_s += start_s - trace[index]!.submit_s;
  return sum_s / Math.max(1, ordinary_start_s.size);
}
