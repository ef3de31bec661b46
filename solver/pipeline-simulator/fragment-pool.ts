import type { FloorSettings } from '../locality/always-on-floor.ts';
import { type AffinityCandidate, chooseServers } from '../locality/host-affinity.ts';
import type { ScalingMark } from '../locality/resource-graph.ts';
import { type FragmentedCluster, type FragmentedDevice, whole_device_share } from './fragments.ts';
import { type ElasticDevice, reclaimDevices } from './reclaim-devices.ts';

export interface FragmentPoolOptions {
  cluster: FragmentedCluster;
  /** Devices of one's own: nobody else computes on them. */
  always_on: number;
  /** Fragments, or whole devices alone. */
  whole_devices: boolean;
  floor: FloorSettings;
}

/** What is to be had for a change of the fleet. */
export interface TakenDevices {
  devices: readonly string[];
  /** Until what is missing on them is there, from host memory; cold ones are told apart. */
  warm_load_s: number;
  cold: boolean;
}

/**
 * Devices that a model has: those that are always on, and fragments of others' that it takes by affinity and gives
 * back by the floor's rule. The decisions are those of `solver/locality`.
 */
export class FragmentPool {
  readonly #options: FragmentPoolOptions;
  readonly #elastic: readonly FragmentedDevice[];
  readonly #own: readonly string[];
  readonly #held = new Map<string, ElasticDevice>();
  readonly #hosted_ms = new Map<string, number>();
  #marks: readonly ScalingMark[] = [];
  #held_ms = 0;
  #since_ms = 0;

  constructor(options: FragmentPoolOptions) {
    this.#options = options;
    this.#own = Array.from({ length: options.always_on }, (_, index) => `own-${index}`);
    this.#elastic = options.cluster.devices
      .slice(options.always_on)
      .sort((a, b) => a.busy - b.busy || a.id.localeCompare(b.id));
  }

  get always_on(): readonly string[] {
    return this.#own;
  }

  /** Devices with room for a stage, one's own among them. */
  count(stage_bytes: number): number {
    return this.#own.length + this.#fitting(stage_bytes).length;
  }

  #fitting(stage_bytes: number): FragmentedDevice[] {
    const { whole_devices } = this.#options;
    return this.#elastic.filter(
      ({ memory_bytes_free, memory_share_free }) =>
        memory_bytes_free >= stage_bytes && (!whole_devices || memory_share_free >= whole_device_share),
    );
  }

  /** Time of all devices until now, the always-on ones included. */
  heldTime_ms(now_ms: number): number {
    this.#account(now_ms);
    return this.#held_ms;
  }

  #account(now_ms: number): void {
    this.#held_ms += (now_ms - this.#since_ms) * (this.#own.length + this.#held.size);
    this.#since_ms = now_ms;
  }

  /** The share of time that others take of the device. */
  busy(device: string): number {
    return this.#elastic.find(({ id }) => id === device)?.busy ?? 0;
  }

  /** Devices for stages beside those that stay in use. Fewer than asked where there are no more. */
  take(now_ms: number, stages: number, stage_bytes: number, using: ReadonlySet<string>): TakenDevices {
    this.#account(now_ms);
    const free = this.#own.filter((id) => !using.has(id)).slice(0, stages);
    const missing = stages - free.length;
    if (missing === 0) return { devices: free, warm_load_s: 0, cold: false };
    const idle = this.#fitting(stage_bytes).filter(({ id }) => !using.has(id));
    // The least busy ones set the pace; a few more give affinity a choice.
    const considered = idle.slice(0, Math.ceil(1.5 * missing));
    const { graph } = this.#options.cluster;
    const candidates = graph.servers.flatMap((server): AffinityCandidate[] => {
      const devices_free = considered.filter((device) => device.server === server.id).length;
      if (devices_free === 0) return [];
      const hosted_ms = this.#hosted_ms.get(server.id);
      if (hosted_ms === undefined) return [{ server, devices_free, source: 'storage' }];
      return [{ server, devices_free, source: 'host', hosted_ms }];
    });
    const stage_sizes = new Array<number>(missing).fill(stage_bytes);
    const found = chooseServers({ graph, marks: this.#marks, now_ms, candidates, stage_bytes: stage_sizes });
    this.#marks = found.marks.filter(({ end_ms }) => end_ms > now_ms);
    const devices = [...free];
    let warm_load_s = 0;
    for (const { server, source, load } of found.choices) {
      const device = considered.find(({ id, server: own }) => own === server && !devices.includes(id))!;
      devices.push(device.id);
      this.#held.set(device.id, { id: device.id });
      this.#hosted_ms.set(server, now_ms);
      if (source === 'host') warm_load_s = Math.max(warm_load_s, load.load_s);
    }
    return { devices, warm_load_s, cold: found.choices.some(({ source }) => source !== 'host') };
  }

  /** Says what is in use from now on, and gives back what was idle for too long. */
  settle(now_ms: number, using: ReadonlySet<string>): void {
    this.#account(now_ms);
    for (const device of this.#held.values()) {
      if (using.has(device.id)) delete device.idle_since_ms;
      else device.idle_since_ms ??= now_ms;
    }
    const { release } = reclaimDevices(now_ms, [...this.#held.values()], 0, this.#options.floor);
    for (const id of release) this.#held.delete(id);
  }

  /** Whether so many further devices are to be had on servers that keep the parameters in their memory. */
  isWarm(devices: number, stage_bytes: number): boolean {
    return this.#fitting(stage_bytes).filter(({ server }) => this.#hosted_ms.has(server)).length >= devices;
  }
}
