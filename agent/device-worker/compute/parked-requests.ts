import type { ParkingPlace } from '../../../solver/sharing/eviction.ts';
import { tokenDeadline } from '../../../solver/sharing/slo.ts';
import type { DeviceMemory } from './device-memory.ts';
import type { ScheduledInstance, ScheduledRequest } from './scheduled-instance.ts';

/** Host memory for parked KV, as a share of the pool. Higher: less is computed twice, more memory beside the pool. */
const parking_share = 0.1;
/** Of copying KV out and in again, with its checksum: about a third of what one core copies. */
const parking_bytes_per_s = 1e9;

/** Requests of a device whose KV waits elsewhere until there is room for it. */
export class ParkedRequests {
  readonly #device: { instances: ScheduledInstance[]; pool_bytes: number };
  readonly #memory: DeviceMemory;
  readonly #sync: (instance: ScheduledInstance, now_ms: number) => void;

  /** @param sync a sequence of an instance has come back to its engine */
  constructor(
    device: { instances: ScheduledInstance[]; pool_bytes: number },
    memory: DeviceMemory,
    sync: (instance: ScheduledInstance, now_ms: number) => void,
  ) {
    this.#device = device;
    this.#memory = memory;
    this.#sync = sync;
  }

  get place(): ParkingPlace {
    let used_bytes = 0;
    for (const { live } of this.#device.instances)
      for (const { parked_bytes } of live.values()) used_bytes += parked_bytes;
    const free_bytes = parking_share * this.#device.pool_bytes - used_bytes;
    return { free_bytes, bytes_per_s: parking_bytes_per_s, latency_ms: 0 };
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
