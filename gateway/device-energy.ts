import type { EnergyReading } from '../spec/energy.ts';
import type { DeviceTime } from './device-time.ts';

/** Power of a session's devices while they work for requests. */
export interface WorkingPower {
  watts: number;
  /** From counters of the hardware; else the catalog's limit. */
  measured: boolean;
}

/** Work of less than this part of the time between two readings says too little of what it took. */
const work_share_min = 0.05;

/**
 * What the devices of a session take while they work, from the readings that come with its heartbeats:
 *
 *   energy between two readings  =  idle power × time without requests  +  power at work × time with requests
 *
 * Idle power is that of the last time between two readings in which there was no request; until there was one, all of
 * the time counts alike. A request is charged its share of the devices' time at the power at work of the last readings,
 * since it ends before the next one. Before anything was measured at work, the catalog's limit stands for it.
 */
export class DeviceEnergy {
  readonly #time: Pick<DeviceTime, 'busy_s'>;
  readonly #rated_w: number | undefined;
  #before: (EnergyReading & { busy_s: number }) | undefined;
  #idle_w: number | undefined;
  #working_w: number | undefined;

  /** @param rated_w undefined where the catalog does not know the devices */
  constructor(time: Pick<DeviceTime, 'busy_s'>, rated_w: number | undefined) {
    this.#time = time;
    this.#rated_w = rated_w;
  }

  /** Undefined: nobody knows. */
  get power(): WorkingPower | undefined {
    if (this.#working_w !== undefined) return { watts: this.#working_w, measured: true };
    return this.#rated_w === undefined ? undefined : { watts: this.#rated_w, measured: false };
  }

  /** @param reading absent: its node cannot measure, or no more */
  take(reading: EnergyReading | undefined): void {
    if (!reading) {
      this.#before = undefined;
      this.#working_w = undefined;
      return;
    }
    const before = this.#before;
    if (before?.at_ms === reading.at_ms) return;
    const { busy_s } = this.#time;
    this.#before = { ...reading, busy_s };
    // The node agent has begun anew.
    if (!before || reading.at_ms < before.at_ms || reading.joules < before.joules) return;
    const time_s = (reading.at_ms - before.at_ms) / 1000;
    const work_s = Math.min(time_s, busy_s - before.busy_s);
    const joules = reading.joules - before.joules;
    if (work_s === 0) this.#idle_w = joules / time_s;
    else if (work_s >= work_share_min * time_s) {
      const idle_w = Math.min(this.#idle_w ?? Number.POSITIVE_INFINITY, joules / time_s);
      this.#working_w = (joules - idle_w * (time_s - work_s)) / work_s;
    }
  }
}
