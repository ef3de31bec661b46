/** What the simulated cluster is made of, who uses it, and what is told of a run. Times are seconds since the start. */

export interface Cluster {
  nodes: number;
  devices_per_node: number;
  /** Between a preemption's SIGTERM and the kill: Slurm's GraceTime. */
  grace_s: number;
  /** Between two passes that start preemptible jobs: Slurm's bf_interval. */
  cycle_s: number;
  /** A preempted job may start again after so long: Slurm lets the old credentials expire first (cred_expire). */
  requeue_delay_s: number;
  /** Pending ordinary jobs that one pass looks at: Slurm's bf_max_job_test. */
  depth: number;
  /** Maintenance and other reservations: nothing runs on these nodes meanwhile. */
  reservations: readonly NodeReservation[];
}

export interface NodeReservation {
  start_s: number;
  end_s: number;
  nodes: readonly number[];
}

/** A job of the site's other users: it waits, starts by priority and backfill, and is never preempted. */
export interface OrdinaryJob {
  submit_s: number;
  nodes: number;
  /** On each of its nodes. */
  devices: number;
  /** What it needs, and what its user asked for: the scheduler knows only the second. */
  run_s: number;
  limit_s: number;
  /** The highest first; among equals the first that was submitted. */
  priority: number;
}

/** A preemptible job of the lowest priority, as `sbatch` takes it. */
export interface PreemptibleJob {
  id: string;
  nodes: number;
  devices: number;
  limit_s: number;
  /** `--time-min`: the limit may be cut down to this where that lets it start. Absent: it may not. */
  time_min_s?: number;
  /** From its start until it serves. */
  load_s: number;
  /** From SIGTERM until it is gone; the kill comes after the grace time. */
  drain_s: number;
  /** Times that it goes back into the queue after a preemption. */
  requeues_max: number;
}

/** What its owner sees of a preemptible job in the queue. */
export interface QueuedJob {
  id: string;
  phase: 'waiting' | 'running';
  /** Of `running`: when it started and is over at the latest. */
  started_s?: number;
  end_limit_s?: number;
  restarts: number;
}

/** Room that nothing uses now, on one node. */
export interface IdleNode {
  node: number;
  devices: number;
  /** An ordinary job, or a reservation, is expected there then; Infinity: none is. */
  until_s: number;
}

/** What a person on the login node sees. */
export interface ClusterView {
  now_s: number;
  free: readonly IdleNode[];
  jobs: readonly QueuedJob[];
  /** How jobs ended since the last look. */
  ended: readonly EndedJob[];
}

export interface EndedJob {
  id: string;
  node_s: number;
  /** It is back in the queue, or gone. */
  how: 'preempted' | 'time limit';
}

export interface ScavengerPolicy {
  /** Between two looks. */
  interval_s: number;
  look(view: ClusterView): { submit: readonly PreemptibleJob[]; withdraw: readonly string[] };
}

/** Device-seconds are those within the time that was simulated. */
export interface ClusterOutcome {
  seconds: number;
  device_s: number;
  /** Left by ordinary jobs and reservations. */
  idle_device_s: number;
  /** Of them: serving, starting, and neither. */
  served_device_s: number;
  starting_device_s: number;
  preemptions: number;
  /** Starts of preemptible jobs, those after a preemption included. */
  starts: number;
  submissions: number;
  /** Time that ordinary jobs waited for preempted ones to leave, of those that did. */
  delays_s: number[];
  /** Start of each ordinary job of the trace; those that did not start are missing. */
  ordinary_start_s: Map<number, number>;
  /** Devices of each node that ordinary jobs and reservations take, by time. */
  taken: readonly (readonly TakenStep[])[];
}

export interface TakenStep {
  at_s: number;
  devices: number;
}
