import type { Cluster, OrdinaryJob } from './cluster.ts';

/** An ordinary job on its nodes. */
export interface Placed {
  nodes: readonly number[];
  devices: number;
  /** When its limit ends: what the scheduler counts with. */
  end_limit_s: number;
}

/** Where and when the job at the head of the queue will start at the latest. */
export interface Shadow {
  at_s: number;
  nodes: ReadonlySet<number>;
  /** Devices it takes on each of them. */
  devices: number;
}

/** Who takes which devices of which node, and when the scheduler thinks that they will be free. */
export class Occupancy {
  readonly #cluster: Cluster;
  /** Devices of a node that ordinary jobs and reservations take; that preemptible jobs take. */
  readonly ordinary: Int32Array;
  readonly scavenged: Int32Array;
  readonly #placed = new Set<Placed>();

  constructor(cluster: Cluster) {
    this.#cluster = cluster;
    this.ordinary = new Int32Array(cluster.nodes);
    this.scavenged = new Int32Array(cluster.nodes);
  }

  /** What nothing takes. */
  free(node: number): number {
    return this.#cluster.devices_per_node - this.ordinary[node]! - this.scavenged[node]!;
  }

  add(placed: Placed): void {
    this.#placed.add(placed);
    for (const node of placed.nodes) this.ordinary[node]! += placed.devices;
  }

  remove(placed: Placed): void {
    this.#placed.delete(placed);
    for (const node of placed.nodes) this.ordinary[node]! -= placed.devices;
  }

  /** Until the next reservation of a node, from now; 0 within one. */
  openUntil(node: number, now_s: number): number {
    let until_s = Number.POSITIVE_INFINITY;
    for (const { start_s, end_s, nodes } of this.#cluster.reservations)
      if (end_s > now_s && nodes.includes(node)) until_s = Math.min(until_s, Math.max(now_s, start_s));
    return until_s;
  }

  /**
   * Nodes for an ordinary job now, as if preemptible jobs were not there; idle ones first, then those with the fewest
   * of their devices. Undefined where it cannot start.
   */
  nodesFor(job: OrdinaryJob, now_s: number, shadow: Shadow | undefined): number[] | undefined {
    const { nodes: count, devices_per_node } = this.#cluster;
    const usable: number[] = [];
    for (let node = 0; node < count; node++) {
      if (devices_per_node - this.ordinary[node]! < job.devices) continue;
      if (this.openUntil(node, now_s) < now_s + job.limit_s) continue;
      if (shadow && now_s + job.limit_s > shadow.at_s && !this.#leavesRoom(node, job.devices, shadow))
        continue;
      usable.push(node);
    }
    if (usable.length < job.nodes) return undefined;
    const preempted = (node: number): number => Math.max(0, job.devices - this.free(node));
    return usable
      .sort((a, b) => preempted(a) - preempted(b) || this.free(a) - this.free(b) || a - b)
      .slice(0, job.nodes);
  }

  /** The earliest time at which the job fits, were every running job to use up its limit. */
  shadowOf(job: OrdinaryJob, now_s: number): Shadow | undefined {
    const { nodes: count, devices_per_node, reservations } = this.#cluster;
    const free = Array.from(this.ordinary, (taken) => devices_per_node - taken);
    const ends = [...this.#placed].sort((a, b) => a.end_limit_s - b.end_limit_s);
    const times = [
      now_s,
      ...ends.map(({ end_limit_s }) => end_limit_s),
      ...reservations.map(({ end_s }) => end_s),
    ].sort((a, b) => a - b);
    let next = 0;
    for (const at_s of times) {
      if (at_s < now_s) continue;
      for (; next < ends.length && ends[next]!.end_limit_s <= at_s; next++)
        for (const node of ends[next]!.nodes) free[node]! += ends[next]!.devices;
      const fits: number[] = [];
      for (let node = 0; node < count && fits.length < job.nodes; node++)
        if (free[node]! >= job.devices && this.openUntil(node, at_s) >= at_s + job.limit_s) fits.push(node);
      if (fits.length === job.nodes) return { at_s, nodes: new Set(fits), devices: job.devices };
    }
    return undefined;
  }

  #leavesRoom(node: number, devices: number, shadow: Shadow): boolean {
    if (!shadow.nodes.has(node)) return true;
    let at_shadow = this.#cluster.devices_per_node - this.ordinary[node]!;
    for (const placed of this.#placed)
      if (placed.end_limit_s <= shadow.at_s && placed.nodes.includes(node)) at_shadow += placed.devices;
    return at_shadow - devices >= shadow.devices;
  }
}
