/**
 * A seeded trace of a busy cluster: many small jobs, few large ones, limits well above what is needed, days and nights.
 */
import { exponential, normal, seededRandom } from '../simulator/random.ts';
import type { OrdinaryJob } from './cluster.ts';

export interface TraceOptions {
  seed: number;
  seconds: number;
  nodes: number;
  devices_per_node: number;
  /** Share of all device-seconds that is asked for, on average. */
  utilization: number;
}

const hour = 3600;
const day = 24 * hour;
/** Nodes of a job and how often they are asked for; 0 is a part of one node. */
const sizes: readonly (readonly [nodes: number, weight: number])[] = [
  [0, 0.4],
  [1, 0.3],
  [2, 0.14],
  [4, 0.1],
  [8, 0.06],
];
/** Run times are lognormal: half of the jobs are over after this, few run for a day. */
const run_median_s = 40 * 60;
const run_sigma = 1.4;
const run_max_s = day;
/** What people write into `--time`. */
const usual_limits_s = [0.5, 1, 2, 4, 8, 12, 24].map((hours) => hours * hour);
/** How many times too much is asked for: lognormal around this, at least once. */
const overestimate_median = 2.2;
const overestimate_sigma = 0.8;
/** Of the jobs, so many run into their limit. */
const timed_out_share = 0.08;

/** Jobs by their time of submission. */
export function syntheticTrace(options: TraceOptions): OrdinaryJob[] {
  const { seconds, nodes, devices_per_node, utilization } = options;
  const random = seededRandom(options.seed);
  const jobs: OrdinaryJob[] = [];
  const wanted_device_s = utilization * seconds * nodes * devices_per_node;
  // Sizes first: as many jobs as make up the load, then spread over the week.
  for (let asked_device_s = 0; asked_device_s < wanted_device_s; ) {
    const job = { ...sizeOf(nodes, devices_per_node, random), ...timesOf(random), submit_s: 0 };
    jobs.push({ ...job, priority: Math.floor(1000 * random()) });
    asked_device_s += job.nodes * job.devices * job.run_s;
  }
  const times = arrivals(jobs.length, seconds, random);
  return jobs.map((job, index) => ({ ...job, submit_s: times[index]! }));
}

function sizeOf(
  nodes_max: number,
  devices_per_node: number,
  random: () => number,
): Pick<OrdinaryJob, 'nodes' | 'devices'> {
  let at = random();
  for (const [nodes, weight] of sizes) {
    at -= weight;
    if (at > 0 && nodes !== 8) continue;
    if (nodes > 0) return { nodes: Math.min(nodes, nodes_max), devices: devices_per_node };
    return { nodes: 1, devices: 1 + Math.floor(random() * Math.max(1, devices_per_node / 2)) };
  }
  throw new Error('the weights of sizes sum up to less than one');
}

function timesOf(random: () => number): Pick<OrdinaryJob, 'run_s' | 'limit_s'> {
  const needed = Math.round(
    Math.min(run_max_s, Math.max(30, run_median_s * Math.exp(run_sigma * normal(random)))),
  );
  const over = Math.max(1, overestimate_median * Math.exp(overestimate_sigma * normal(random)));
  const limit_s = usual_limits_s.find((limit) => limit >= needed * over) ?? usual_limits_s.at(-1)!;
  return { run_s: random() < timed_out_share ? limit_s : Math.min(needed, limit_s), limit_s };
}

/** A Poisson process whose rate follows working hours, conditioned on its count. */
function arrivals(count: number, seconds: number, random: () => number): number[] {
  const rate = (at_s: number): number => {
    const hour_of_day = (at_s % day) / hour;
    const weekend = Math.floor(at_s / day) % 7 >= 5;
    const daily = 1 + 0.6 * Math.sin((2 * Math.PI * (hour_of_day - 9)) / 24);
    return daily * (weekend ? 0.55 : 1);
  };
  const times: number[] = [];
  // Thinned: most candidates at night and on weekends are dropped. Bursts come from users who submit several at once.
  while (times.length < count) {
    const at_s = random() * seconds;
    if (random() * 1.6 > rate(at_s)) continue;
    const burst = Math.min(count - times.length, 1 + Math.floor(exponential(random)));
    for (let job = 0; job < burst; job++) times.push(Math.min(seconds - 1, Math.floor(at_s + 30 * job)));
  }
  return times.sort((a, b) => a - b);
}
