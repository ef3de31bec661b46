/**
 * What may decide on the use of idle devices in the simulated cluster: the live decision, and what people do by hand.
 */
import type { PreemptionHistory } from '../scavenging/preemption-history.ts';
import { type IdleHole, type ReplicaShape, type ScavengeLimits, scavenge } from '../scavenging/scavenge.ts';
import type { ClusterView, PreemptibleJob, ScavengerPolicy } from './cluster.ts';

export interface SimulatedReplica {
  nodes: number;
  devices: number;
  load_s: number;
  drain_s: number;
}

const node_kind = 'node';

export interface LivePolicyOptions {
  replica: SimulatedReplica;
  /** Between two looks of `hpcserve backfill`. */
  interval_s: number;
  submissions_per_minute: number;
  jobs_max: number;
  limits: Omit<ScavengeLimits, 'jobs_room' | 'submissions_room'>;
}

/** `scavenge`, asked at each look with what a login node sees. */
export function livePolicy(options: LivePolicyOptions): ScavengerPolicy {
  const { replica, interval_s, jobs_max, limits, submissions_per_minute } = options;
  const shape: ReplicaShape = { shape: 'replica', node_kind, worth_per_s: 1, ...replica };
  const submitted_s = new Map<string, number>();
  let seen: PreemptionHistory = { preemptions: 0, job_hours: 0 };
  let count = 0;
  let lately: number[] = [];
  return {
    interval_s,
    look(view) {
      for (const { how, node_s } of view.ended)
        seen = {
          preemptions: seen.preemptions + Number(how === 'preempted'),
          job_hours: seen.job_hours + node_s / 3600,
        };
      lately = lately.filter((at_s) => at_s > view.now_s - 60);
      const { submit, withdraw } = scavenge({
        now_s: view.now_s,
        holes: holesOf(view),
        shapes: [shape],
        jobs: view.jobs.map(({ id, phase, restarts }) => ({
          id,
          shape: shape.shape,
          phase,
          restarts,
          submitted_s: submitted_s.get(id) ?? 0,
        })),
        history: new Map([[node_kind, seen]]),
        limits: {
          ...limits,
          jobs_room: jobs_max - view.jobs.length,
          submissions_room: submissions_per_minute - lately.length,
        },
      });
      const submissions = submit.map(({ time_limit_s, time_min_s }): PreemptibleJob => {
        const id = `replica-${count++}`;
        submitted_s.set(id, view.now_s);
        lately.push(view.now_s);
        return {
          id,
          ...replica,
          limit_s: time_limit_s,
          time_min_s,
          requeues_max: limits.restarts_max,
        };
      });
      return { submit: submissions, withdraw: withdraw.map(({ id }) => id) };
    },
  };
}

function holesOf({ free, now_s }: ClusterView): IdleHole[] {
  return free.map(({ devices, until_s }) => ({ node_kind, nodes: 1, devices, seconds: until_s - now_s }));
}

/** A number of jobs of one shape and one wall time, each submitted anew when it is over: a loop in a shell script. */
export function fixedPolicy(
  jobs: number,
  job: Omit<PreemptibleJob, 'id' | 'time_min_s'>,
  interval_s: number,
): ScavengerPolicy {
  let count = 0;
  return {
    interval_s,
    look: ({ jobs: queued }) => ({
      submit: Array.from({ length: Math.max(0, jobs - queued.length) }, () => ({
        ...job,
        id: `fixed-${count++}`,
      })),
      withdraw: [],
    }),
  };
}
