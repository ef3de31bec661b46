import { RaplCounters } from '../../host/rapl.ts';
import { NvmlEnergy } from '../../native/nvml.ts';
import type { EnergyReading } from '../../spec/energy.ts';
import type { DeviceDescription } from '../../spec/session-record.ts';

/** What counts: one kind of counter for all devices of a unit. */
interface Counter {
  read_j(): number;
}

/** Lower: closer to what each request took; higher: fewer calls of the driver. */
const interval_ms_min = 1000;
/** A driver that takes so long for a number holds up everything else of the agent: it is asked no more. */
const read_ms_max = 100;

/**
 * Energy of the devices of one unit, by NVML for whole GPUs and by RAPL for whole CPU packages. What else there is has
 * no counter that is its own (a MIG slice, a part of a package, a device that something stands in for): of that nothing
 * is measured, and gateways go by the catalog.
 */
export class EnergyMeter {
  readonly #now_ms: () => number;
  #counter: Counter | undefined;
  #because: string | undefined;
  #begin_j = 0;
  #last: EnergyReading | undefined;

  /** @param root before /sys, for recorded hosts in tests */
  constructor(devices: readonly DeviceDescription[], root = '/', now_ms = () => performance.now()) {
    this.#now_ms = now_ms;
    try {
      const counter = counterOf(devices, root);
      if (typeof counter === 'string') this.#because = counter;
      else {
        this.#counter = counter;
        this.#begin_j = counter.read_j();
      }
    } catch (error) {
      this.#because = (error as Error).message;
    }
  }

  /** Why nothing is measured; undefined while it is. */
  get because(): string | undefined {
    return this.#because;
  }

  /** As of now, or of a moment ago; undefined where nothing is measured. */
  read(): EnergyReading | undefined {
    if (!this.#counter) return undefined;
    const at_ms = this.#now_ms();
    if (this.#last && at_ms - this.#last.at_ms < interval_ms_min) return this.#last;
    try {
      const joules = this.#counter.read_j() - this.#begin_j;
      const took_ms = this.#now_ms() - at_ms;
      if (took_ms > read_ms_max) this.#giveUp(`its counter took ${Math.round(took_ms)} ms to read`);
      this.#last = { joules, at_ms };
    } catch (error) {
      this.#giveUp((error as Error).message);
    }
    return this.#counter && this.#last;
  }

  #giveUp(because: string): void {
    this.#counter = undefined;
    this.#because = because;
  }
}

/** @returns why there is none, in words */
function counterOf(devices: readonly DeviceDescription[], root: string): Counter | string {
  if (devices.length === 0) return 'it has no device of its own';
  if (devices.some(({ emulated }) => emulated)) return 'something else stands in for its device';
  const kinds = new Set(devices.map(({ kind }) => kind));
  if (kinds.size > 1) return 'it has devices of several kinds';
  if (kinds.has('mig')) return 'a MIG slice has no counter of its own';
  if (kinds.has('cpu'))
    return RaplCounters.of(
      devices.flatMap(({ cores }) => cores ?? []),
      root,
    );
  const uuids = devices.flatMap(({ uuid }) => uuid ?? []);
  if (uuids.length < devices.length) return 'its GPU is not one that NVML names';
  return NvmlEnergy.open(uuids) ?? 'no driver of NVIDIA is installed';
}
