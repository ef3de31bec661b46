import type { ParkingPlace } from '../../../solver/sharing/device-view.ts';
import { tokenDeadline } from '../../../solver/sharing/slo.ts';
import type { SchedulerReport } from '../../../spec/device-report.ts';
import type { SwapPlace } from '../../../spec/engine-contract.ts';
import type { DeviceMemory } from './device-memory.ts';
import type { ScheduledInstance, ScheduledRequest } from './scheduled-instance.ts';

/** Host memory for parked KV, as a share of the pool. Higher: less is computed twice, more memory beside the pool. */
const parking_share = 0.1;
/** Of the memory that a job has left, for what the worker takes meanwhile. Lower: more is parked; higher: less risk. */
const host_reserve_bytes = 128 * 2 ** 20;
/** Of copying KV out and in again, with its checksum: about a third of what one core copies. */
const parking_bytes_per_s = 1e9;

/** The disk, as decisions see it. */
export interface ParkingDiskView {
  readonly bytes_max: number;
  /** To it and back, as it was measured. */
  readonly bytes_per_s: number;
  /** What went wrong there last. */
  readonly trouble?: string | undefined;
}

/** Where KV may wait, with its name. */
interface NamedPlace extends ParkingPlace {
  at: SwapPlace;
}

/** Requests of a device whose KV waits elsewhere until there is room for it. */
export class ParkedRequests {
  readonly #device: { instances: ScheduledInstance[]; pool_bytes: number };
  readonly #memory: DeviceMemory;
  readonly #disk: ParkingDiskView | undefined;
  readonly #sync: (instance: ScheduledInstance, now_ms: number) => void;
  readonly #hostRoom_bytes: () => number;

  /**
   * @param disk absent: KV waits in host memory alone
   * @param hostRoom_bytes what is left of the host memory that this process may have: no plan counts KV that waits
   * @param sync a sequence of an instance has come back to its engine
   */
  constructor(
    device: { instances: ScheduledInstance[]; pool_bytes: number },
    memory: DeviceMemory,
    disk: ParkingDiskView | undefined,
    sync: (instance: ScheduledInstance, now_ms: number) => void,
    hostRoom_bytes: () => number,
  ) {
    this.#device = device;
    this.#memory = memory;
    this.#disk = disk;
    this.#sync = sync;
    this.#hostRoom_bytes = hostRoom_bytes;
  }

  /** Where KV of an instance may wait now. */
  placesFor({ engine }: ScheduledInstance): NamedPlace[] {
    const place = (at: SwapPlace, free_bytes: number, bytes_per_s: number): NamedPlace => ({
      at,
      free_bytes,
      bytes_per_s,
      latency_ms: 0,
    });
    const share_bytes = parking_share * this.#device.pool_bytes - this.#used_bytes('memory');
    const room_bytes = this.#hostRoom_bytes() - host_reserve_bytes;
    const places = [place('memory', Math.max(0, Math.min(share_bytes, room_bytes)), parking_bytes_per_s)];
    const disk = this.#disk;
    if (!disk || !engine.parks_on_disk) return places;
    // Rows cross host memory on their way to the disk.
    const disk_bytes_per_s = Math.min(disk.bytes_per_s, parking_bytes_per_s);
    return [...places, place('disk', disk.bytes_max - this.#used_bytes('disk'), disk_bytes_per_s)];
  }

  get report(): SchedulerReport['parked'] {
    const report: NonNullable<SchedulerReport['parked']> = { memory_bytes: this.#used_bytes('memory') };
    if (!this.#disk) return report;
    report.disk_bytes = this.#used_bytes('disk');
    report.disk_bytes_per_s = this.#disk.bytes_per_s;
    if (this.#disk.trouble !== undefined) report.disk_trouble = this.#disk.trouble;
    return report;
  }

  #used_bytes(at: SwapPlace): number {
    let used_bytes = 0;
    for (const { live } of this.#device.instances)
      for (const { parked_bytes, parked_at } of live.values())
        if (parked_at === at) used_bytes += parked_bytes;
    return used_bytes;
  }

  /** Those come back for whom there is room for everything that their model has, the most urgent first. */
  restore(now_ms: number): void {
    for (const { instance, request } of this.#byUrgency()) {
      const room = this.#memory.provide(instance, [...instance.live.values()]);
      const alone = instance.requests.length === 0;
      if ((!room && !alone) || !instance.engine.restoreSequence(Number(request.id))) continue;
      request.parked_bytes = 0;
      this.#sync(instance, now_ms);
    }
  }

  /**
   * Nothing else is left to run, and the most urgent finds no room: its engine sees to some, or says that there is
   * none.
   */
  recomputeFirst(now_ms: number): void {
    if (this.#device.instances.some(({ requests }) => requests.length > 0)) return;
    const [first] = this.#byUrgency();
    if (!first) return;
    const { instance, request } = first;
    request.parked_bytes = 0;
    instance.engine.recomputeSequence(Number(request.id));
    this.#sync(instance, now_ms);
  }

  #byUrgency(): { instance: ScheduledInstance; request: ScheduledRequest }[] {
    return this.#device.instances
      .flatMap((instance) =>
        [...instance.live.values()].flatMap((request) =>
          request.parked_bytes > 0 ? [{ instance, request }] : [],
        ),
      )
      .sort((a, b) => tokenDeadline(a.request) - tokenDeadline(b.request));
  }
}
