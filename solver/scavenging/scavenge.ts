/**
 * Which replicas to submit now so that idle devices serve: many small jobs, each as long as the site allows and short
 * enough to fit (`--time-min`), at most as many as manners permit. Pure: `hpcserve backfill` and the simulated cluster
 * call it.
 */
import { expectedLife, type PreemptionHistory, preemptionRate_per_s } from './preemption-history.ts';

/** Nodes that are alike: so many devices of each are free, until a job or reservation is expected there. */
export interface IdleHole {
  node_kind: string;
  nodes: number;
  devices: number;
  /** From now; Infinity: nobody is expected. */
  seconds: number;
}

/** One job: a replica as it can be submitted, or several where nodes are given whole. */
export interface ReplicaShape {
  shape: string;
  node_kind: string;
  nodes: number;
  /** On each node. */
  devices: number;
  /** Replicas in it; absent: one. */
  replicas?: number;
  /** From its start until it serves. */
  load_s: number;
  /** What a second of the whole job is worth, such as tokens; shapes are compared by it. */
  worth_per_s: number;
}

/** A job that was submitted before. */
export interface ScavengedJob {
  id: string;
  shape: string;
  phase: 'waiting' | 'running';
  /** Replicas in it; absent: one. */
  replicas?: number;
  submitted_s: number;
  /** Times it was preempted and put back into the queue. */
  restarts: number;
  /** It waits and may not start yet, such as right after a preemption: another may take its place meanwhile. */
  held?: boolean;
}

export interface ScavengeLimits {
  /** Further jobs that the site allows in the queue, and further submissions within this minute. */
  jobs_room: number;
  submissions_room: number;
  /** Replicas that are wanted, those that wait and may start included. */
  replicas_max: number;
  /**
   * Jobs of a node kind that wait for a hole to open: Slurm itself starts them, sooner than the next look. Higher:
   * holes are filled sooner; lower: a shorter queue.
   */
  waiting_max: number;
  /** Longest wall time. */
  walltime_max_s: number;
  /** Largest share of a job's time that may go into starting; also what `--time-min` is made from. */
  start_share_max: number;
  /** A job that was preempted more often gives its place to a new one. */
  restarts_max: number;
}

export interface ScavengeQuestion {
  now_s: number;
  holes: readonly IdleHole[];
  shapes: readonly ReplicaShape[];
  jobs: readonly ScavengedJob[];
  /** By node kind. */
  history: ReadonlyMap<string, PreemptionHistory>;
  limits: ScavengeLimits;
}

export interface ScavengeSubmission {
  shape: string;
  time_limit_s: number;
  /** `--time-min`. */
  time_min_s: number;
  /** A hole that is there now, or one to come. */
  for: 'hole' | 'next hole';
}

export interface ScavengeDecision {
  submit: ScavengeSubmission[];
  withdraw: { id: string; because: string }[];
  /** Why nothing is submitted where something could be, one sentence each. */
  held_back: string[];
}

/** Wall times are asked for in whole minutes, as Slurm counts them. */
const minute_s = 60;
/** Slurm needs a while from submission to start: a hole is planned with so much less. */
const margin_s = 60;

export function scavenge(question: ScavengeQuestion): ScavengeDecision {
  const { limits, jobs } = question;
  const held_back: string[] = [];
  const useful = question.shapes.filter((shape) => {
    const because = notWorthIt(shape, question);
    if (because !== undefined) held_back.push(because);
    return because === undefined;
  });
  const withdraw = tooMany(question, useful);
  const left = jobs.filter(({ id }) => !withdraw.some((each) => each.id === id));
  let jobs_left = Math.min(limits.jobs_room + withdraw.length, limits.submissions_room);
  let replicas_left = limits.replicas_max - replicasOf(left.filter(({ held }) => !held));
  const submit: ScavengeSubmission[] = [];
  for (const node_kind of new Set(useful.map((shape) => shape.node_kind))) {
    const shapes = useful.filter((shape) => shape.node_kind === node_kind);
    const waiting = left.filter(
      ({ phase, shape, held }) => phase === 'waiting' && !held && shapes.some((each) => each.shape === shape),
    ).length;
    const wanted = fill(question, node_kind, shapes);
    const longest = shapes[0]!;
    const spare = Array.from({ length: limits.waiting_max }, () => ({
      ...sized(longest, Number.POSITIVE_INFINITY, limits),
      for: 'next hole' as const,
    }));
    // What waits already takes the first holes.
    for (const submission of [...wanted, ...spare].slice(waiting)) {
      const { replicas = 1 } = shapes.find(({ shape }) => shape === submission.shape)!;
      if (jobs_left <= 0 || replicas > replicas_left) continue;
      submit.push(submission);
      jobs_left--;
      replicas_left -= replicas;
    }
  }
  const full = jobs_left <= 0 || replicas_left <= 0;
  if (full && submit.length === 0) held_back.push(...fullBecause(limits, replicasOf(left)));
  return { submit, withdraw, held_back };
}

function replicasOf(jobs: readonly ScavengedJob[]): number {
  return jobs.reduce((sum, { replicas = 1 }) => sum + replicas, 0);
}

/** What is left of holes when other jobs have taken their place in them, the longest ones first. */
export function withoutJobs(
  holes: readonly IdleHole[],
  shapes: readonly (ReplicaShape | undefined)[],
): IdleHole[] {
  const nodes = holes
    .flatMap((hole) => Array.from({ length: hole.nodes }, () => ({ ...hole, nodes: 1 })))
    .sort((a, b) => b.seconds - a.seconds);
  for (const shape of shapes) {
    if (!shape) continue;
    const fits = nodes.filter((hole) => hole.node_kind === shape.node_kind && hole.devices >= shape.devices);
    for (const hole of fits.slice(0, shape.nodes)) hole.devices -= shape.devices;
  }
  return nodes.filter(({ devices }) => devices > 0);
}

/** Jobs for the holes of a node kind, for the longest hole first. */
function fill(
  { holes, limits, history }: ScavengeQuestion,
  node_kind: string,
  shapes: readonly ReplicaShape[],
): ScavengeSubmission[] {
  const rate_per_s = rateOf(history, node_kind);
  return holes
    .filter((hole) => hole.node_kind === node_kind)
    .sort((a, b) => b.seconds - a.seconds)
    .flatMap((hole) => {
      const open_s = hole.seconds - margin_s;
      const fits = shapes.filter(
        (shape) => shape.nodes <= hole.nodes && open_s >= sized(shape, open_s, limits).time_min_s,
      );
      const worth = (shape: ReplicaShape): number =>
        shape.worth_per_s *
        expectedLife(rate_per_s, shape.load_s, sized(shape, open_s, limits).time_limit_s).serving_s;
      const chosen: ScavengeSubmission[] = [];
      let nodes = hole.nodes;
      for (const shape of bestOn(hole.devices, fits, worth)) {
        // A shape over several nodes takes as many of the hole's at once.
        const times = Math.floor(nodes / shape.nodes);
        if (shape.nodes > 1) nodes -= times * shape.nodes;
        for (let each = 0; each < times; each++)
          chosen.push({ ...sized(shape, open_s, limits), for: 'hole' });
      }
      return chosen;
    });
}

/** The shapes that are worth most together on the free devices of one node: an unbounded knapsack over devices. */
function bestOn(
  devices: number,
  shapes: readonly ReplicaShape[],
  worth: (shape: ReplicaShape) => number,
): ReplicaShape[] {
  const best: { worth: number; shapes: ReplicaShape[] }[] = [{ worth: 0, shapes: [] }];
  for (let count = 1; count <= devices; count++) {
    best[count] = best[count - 1]!;
    for (const shape of shapes) {
      if (shape.devices > count || shape.devices === 0) continue;
      const before = best[count - shape.devices]!;
      const sum = before.worth + worth(shape) / shape.nodes;
      if (sum > best[count]!.worth) best[count] = { worth: sum, shapes: [...before.shapes, shape] };
    }
  }
  return best[devices]!.shapes;
}

/** Wall time: all that the hole has, at most what the site allows; at least what starting is worth. */
function sized(shape: ReplicaShape, open_s: number, limits: ScavengeLimits): Omit<ScavengeSubmission, 'for'> {
  const least_s = Math.ceil(shape.load_s / limits.start_share_max / minute_s) * minute_s;
  const time_min_s = Math.min(limits.walltime_max_s, Math.max(minute_s, least_s));
  const open = Math.floor(open_s / minute_s) * minute_s;
  return {
    shape: shape.shape,
    time_min_s,
    time_limit_s: Math.max(time_min_s, Math.min(limits.walltime_max_s, open)),
  };
}

/** Where replicas are preempted before they have served for long, only starts are harvested. */
function notWorthIt(shape: ReplicaShape, { history, limits }: ScavengeQuestion): string | undefined {
  if (shape.load_s > limits.start_share_max * limits.walltime_max_s)
    return `${shape.shape}: it loads for ${Math.round(shape.load_s)} s, and jobs on ${shape.node_kind} may run for ${limits.walltime_max_s} s only`;
  const rate_per_s = rateOf(history, shape.node_kind);
  const { running_s, serving_s } = expectedLife(rate_per_s, shape.load_s, limits.walltime_max_s);
  if (serving_s >= (1 - limits.start_share_max) * running_s) return undefined;
  const share = Math.round(100 * (1 - serving_s / running_s));
  return `${shape.shape}: jobs on ${shape.node_kind} are preempted every ${Math.round(1 / rate_per_s / 60)} min, so ${share} % of its time would go into starting`;
}

function rateOf(history: ScavengeQuestion['history'], node_kind: string): number {
  return preemptionRate_per_s(history.get(node_kind) ?? { preemptions: 0, job_hours: 0 });
}

/** Waiting jobs that nobody wants any more: those that may not start first, then the newest, which waited the least. */
function tooMany(
  { jobs, limits }: ScavengeQuestion,
  useful: readonly ReplicaShape[],
): ScavengeDecision['withdraw'] {
  const waiting = jobs
    .filter(({ phase }) => phase === 'waiting')
    .sort((a, b) => Number(b.held ?? false) - Number(a.held ?? false) || b.submitted_s - a.submitted_s);
  const withdraw = waiting.flatMap(({ id, shape, restarts }) => {
    if (!useful.some((each) => each.shape === shape))
      return [{ id, because: 'its kind of replica is not worth starting now' }];
    return restarts > limits.restarts_max ? [{ id, because: `it was preempted ${restarts} times` }] : [];
  });
  const rest = waiting.filter(({ id }) => !withdraw.some((each) => each.id === id));
  let surplus =
    replicasOf(jobs.filter(({ id }) => !withdraw.some((each) => each.id === id))) - limits.replicas_max;
  for (const { id, replicas = 1 } of rest) {
    // A job of several goes when all of them are too many.
    if (surplus < replicas) continue;
    withdraw.push({ id, because: 'fewer replicas are wanted' });
    surplus -= replicas;
  }
  return withdraw;
}

function fullBecause(limits: ScavengeLimits, replicas: number): string[] {
  if (limits.replicas_max <= replicas) return [`${replicas} replicas are all that are wanted`];
  if (limits.jobs_room <= 0) return ['the site allows no more jobs in the queue'];
  return ['the site allows no more submissions within this minute'];
}
