/**
 * A Slurm cluster under a job trace, by discrete events: ordinary jobs start by priority and EASY backfill (one
 * reservation, for the head of the queue, by the limits people asked for) and preempt the jobs of a lower tier with a
 * grace time (PreemptType=preempt/partition_prio, PreemptMode=REQUEUE); those start in what is left, in passes, with
 * `--time-min` where a reservation is near. It judges policies that decide what to submit.
 */
import { SimulationEvents } from '../sharing-simulator/simulation-events.ts';
import type {
  Cluster,
  ClusterOutcome,
  EndedJob,
  IdleNode,
  OrdinaryJob,
  PreemptibleJob,
  QueuedJob,
  ScavengerPolicy,
  TakenStep,
} from './cluster.ts';
import { Occupancy, type Placed, type Shadow } from './occupancy.ts';

type Event =
  | { kind: 'submitted'; index: number }
  | { kind: 'reserved'; placed: Placed }
  | { kind: 'ended'; placed: Placed }
  | { kind: 'pass' }
  | { kind: 'look' }
  | { kind: 'limit'; job: Preemptible; run: number };

interface Preemptible {
  submission: PreemptibleJob;
  restarts: number;
  /** Not before. */
  eligible_s: number;
  /** Counts starts, so that the end of an earlier run is not taken for that of this one. */
  run: number;
  running?: { nodes: number[]; started_s: number; end_limit_s: number };
}

/** @param policy absent: nobody uses what is left. */
export function simulateCluster(
  cluster: Cluster,
  trace: readonly OrdinaryJob[],
  seconds: number,
  policy?: ScavengerPolicy,
): ClusterOutcome {
  return new Simulation(cluster, trace, seconds, policy).run();
}

class Simulation {
  readonly #cluster: Cluster;
  readonly #trace: readonly OrdinaryJob[];
  readonly #seconds: number;
  readonly #policy: ScavengerPolicy | undefined;
  readonly #events = new SimulationEvents<Event>();
  readonly #occupancy: Occupancy;
  readonly #waiting: number[] = [];
  readonly #jobs = new Map<string, Preemptible>();
  readonly #taken: TakenStep[][];
  readonly #outcome: ClusterOutcome;
  #shadow: Shadow | undefined;
  #ended: EndedJob[] = [];

  constructor(
    cluster: Cluster,
    trace: readonly OrdinaryJob[],
    seconds: number,
    policy: ScavengerPolicy | undefined,
  ) {
    this.#cluster = cluster;
    this.#trace = trace;
    this.#seconds = seconds;
    this.#policy = policy;
    this.#occupancy = new Occupancy(cluster);
    this.#taken = Array.from({ length: cluster.nodes }, () => [{ at_s: 0, devices: 0 }]);
    this.#outcome = {
      seconds,
      device_s: seconds * cluster.nodes * cluster.devices_per_node,
      idle_device_s: 0,
      served_device_s: 0,
      starting_device_s: 0,
      preemptions: 0,
      starts: 0,
      submissions: 0,
      delays_s: [],
      ordinary_start_s: new Map(),
      taken: this.#taken,
    };
  }

  run(): ClusterOutcome {
    for (const [index, { submit_s }] of this.#trace.entries())
      this.#at(submit_s, { kind: 'submitted', index });
    // Nothing runs into a reservation: a job that takes all of its nodes for so long is the same.
    for (const { start_s, end_s, nodes } of this.#cluster.reservations)
      this.#at(start_s, {
        kind: 'reserved',
        placed: { nodes, devices: this.#cluster.devices_per_node, end_limit_s: end_s },
      });
    this.#at(0, { kind: 'pass' });
    if (this.#policy) this.#at(0, { kind: 'look' });
    for (let next = this.#events.next(); next; next = this.#events.next()) {
      const now_s = next.at_ms / 1000;
      if (now_s > this.#seconds) break;
      this.#handle(next.event, now_s);
    }
    return this.#close();
  }

  #at(at_s: number, event: Event): void {
    this.#events.add(1000 * at_s, event);
  }

  #handle(event: Event, now_s: number): void {
    switch (event.kind) {
      case 'submitted':
        this.#waiting.push(event.index);
        this.#schedule(now_s);
        break;
      case 'ended':
        this.#release(event.placed, now_s);
        this.#schedule(now_s);
        break;
      case 'reserved':
        this.#take(event.placed, now_s);
        this.#at(event.placed.end_limit_s, { kind: 'ended', placed: event.placed });
        break;
      case 'limit':
        if (event.job.run === event.run && event.job.running) {
          this.#leave(event.job, now_s, 'time limit');
          this.#jobs.delete(event.job.submission.id);
        }
        break;
      case 'pass':
        this.#schedule(now_s);
        this.#startPreemptible(now_s);
        this.#at(now_s + this.#cluster.cycle_s, { kind: 'pass' });
        break;
      case 'look':
        this.#look(now_s);
        this.#at(now_s + this.#policy!.interval_s, { kind: 'look' });
        break;
    }
  }

  /** Ordinary jobs: the queue by priority until one does not fit, then those behind it that do not delay it. */
  #schedule(now_s: number): void {
    this.#waiting.sort(
      (a, b) =>
        this.#trace[b]!.priority - this.#trace[a]!.priority ||
        this.#trace[a]!.submit_s - this.#trace[b]!.submit_s,
    );
    this.#shadow = undefined;
    let headFound = false;
    let looked = 0;
    for (let at = 0; at < this.#waiting.length && looked < this.#cluster.depth; looked++) {
      const index = this.#waiting[at]!;
      const job = this.#trace[index]!;
      const nodes = this.#occupancy.nodesFor(job, now_s, this.#shadow);
      if (nodes) {
        this.#waiting.splice(at, 1);
        this.#startOrdinary(index, nodes, now_s);
      } else {
        if (!headFound) this.#shadow = this.#occupancy.shadowOf(job, now_s);
        headFound = true;
        at++;
      }
    }
  }

  #startOrdinary(index: number, nodes: number[], now_s: number): void {
    const job = this.#trace[index]!;
    const { grace_s } = this.#cluster;
    let delay_s = 0;
    for (const node of nodes)
      for (const preempted of this.#inTheWay(node, job.devices)) {
        delay_s = Math.max(delay_s, Math.min(grace_s, preempted.submission.drain_s));
        this.#preempt(preempted, now_s);
      }
    if (delay_s > 0) this.#outcome.delays_s.push(delay_s);
    const start_s = now_s + delay_s;
    this.#outcome.ordinary_start_s.set(index, start_s);
    const placed: Placed = { nodes, devices: job.devices, end_limit_s: start_s + job.limit_s };
    this.#take(placed, now_s);
    this.#at(start_s + Math.min(job.run_s, job.limit_s), { kind: 'ended', placed });
  }

  /** Preemptible jobs that must go from a node: the youngest first, which have lost the least. */
  #inTheWay(node: number, devices: number): Preemptible[] {
    let missing = devices - this.#occupancy.free(node);
    if (missing <= 0) return [];
    const here = [...this.#jobs.values()]
      .filter(({ running }) => running?.nodes.includes(node))
      .sort((a, b) => b.running!.started_s - a.running!.started_s);
    const chosen: Preemptible[] = [];
    for (const job of here) {
      if (missing <= 0) break;
      chosen.push(job);
      missing -= job.submission.devices;
    }
    return chosen;
  }

  #preempt(job: Preemptible, now_s: number): void {
    this.#outcome.preemptions++;
    this.#leave(job, now_s, 'preempted');
    if (job.restarts >= job.submission.requeues_max) {
      this.#jobs.delete(job.submission.id);
      return;
    }
    job.restarts++;
    job.eligible_s = now_s + this.#cluster.grace_s + this.#cluster.requeue_delay_s;
  }

  #leave(job: Preemptible, now_s: number, how: EndedJob['how']): void {
    const { nodes, started_s } = job.running!;
    const { submission } = job;
    for (const node of nodes) this.#occupancy.scavenged[node]! -= submission.devices;
    this.#count(job, now_s);
    this.#ended.push({ id: submission.id, node_s: nodes.length * (now_s - started_s), how });
    delete job.running;
  }

  #count({ submission, running }: Preemptible, now_s: number): void {
    const { nodes, started_s } = running!;
    const ran_s = now_s - started_s;
    const starting_s = Math.min(ran_s, submission.load_s);
    const devices = nodes.length * submission.devices;
    this.#outcome.starting_device_s += devices * starting_s;
    this.#outcome.served_device_s += devices * (ran_s - starting_s);
  }

  #startPreemptible(now_s: number): void {
    for (const job of this.#jobs.values()) {
      if (job.running || job.eligible_s > now_s) continue;
      const { submission } = job;
      const least_s = submission.time_min_s ?? submission.limit_s;
      const usable: { node: number; until_s: number; free: number }[] = [];
      for (let node = 0; node < this.#cluster.nodes; node++) {
        const free = this.#occupancy.free(node);
        if (free < submission.devices) continue;
        const until_s = this.#until(node, now_s);
        if (until_s >= now_s + least_s) usable.push({ node, until_s, free });
      }
      if (usable.length < submission.nodes) continue;
      usable.sort((a, b) => a.free - b.free || b.until_s - a.until_s || a.node - b.node);
      const chosen = usable.slice(0, submission.nodes);
      const end_limit_s = Math.min(now_s + submission.limit_s, ...chosen.map(({ until_s }) => until_s));
      job.running = { nodes: chosen.map(({ node }) => node), started_s: now_s, end_limit_s };
      job.run++;
      this.#outcome.starts++;
      for (const { node } of chosen) this.#occupancy.scavenged[node]! += submission.devices;
      this.#at(end_limit_s, { kind: 'limit', job, run: job.run });
    }
  }

  /** When the head of the queue or a reservation is expected on a node. */
  #until(node: number, now_s: number): number {
    const expected_s = this.#shadow?.nodes.has(node) ? this.#shadow.at_s : Number.POSITIVE_INFINITY;
    return Math.min(expected_s, this.#occupancy.openUntil(node, now_s));
  }

  #look(now_s: number): void {
    const free: IdleNode[] = [];
    for (let node = 0; node < this.#cluster.nodes; node++) {
      const devices = this.#occupancy.free(node);
      if (devices > 0) free.push({ node, devices, until_s: this.#until(node, now_s) });
    }
    const jobs = [...this.#jobs.values()].map(
      ({ submission, running, restarts }): QueuedJob => ({
        id: submission.id,
        phase: running ? 'running' : 'waiting',
        restarts,
        started_s: running?.started_s,
        end_limit_s: running?.end_limit_s,
      }),
    );
    const { submit, withdraw } = this.#policy!.look({ now_s, free, jobs, ended: this.#ended });
    this.#ended = [];
    for (const id of withdraw) if (!this.#jobs.get(id)?.running) this.#jobs.delete(id);
    for (const submission of submit) {
      this.#outcome.submissions++;
      this.#jobs.set(submission.id, { submission, restarts: 0, eligible_s: now_s, run: 0 });
    }
  }

  #take(placed: Placed, now_s: number): void {
    this.#occupancy.add(placed);
    this.#step(placed.nodes, now_s);
  }

  #release(placed: Placed, now_s: number): void {
    this.#occupancy.remove(placed);
    this.#step(placed.nodes, now_s);
  }

  #step(nodes: readonly number[], at_s: number): void {
    for (const node of nodes) this.#taken[node]!.push({ at_s, devices: this.#occupancy.ordinary[node]! });
  }

  #close(): ClusterOutcome {
    for (const job of this.#jobs.values()) if (job.running) this.#count(job, this.#seconds);
    const { devices_per_node } = this.#cluster;
    for (const steps of this.#taken)
      for (const [at, { at_s, devices }] of steps.entries()) {
        const end_s = Math.min(this.#seconds, steps[at + 1]?.at_s ?? this.#seconds);
        this.#outcome.idle_device_s += (devices_per_node - devices) * Math.max(0, end_s - at_s);
      }
    return this.#outcome;
  }
}
