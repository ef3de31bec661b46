import type { RequestRecord } from '../../ledger/index.ts';
import type { SessionLink } from '../session-link.ts';

/** What is counted of a session's devices. */
export type MeteredSession = Pick<SessionLink, 'facts' | 'deviceTime' | 'deviceEnergy'>;

/** Of one request: what the devices of the replicas that it had, one after the other, did for it. */
export interface Charge {
  /** A replica begins to work for it; the one before has ended. */
  begin(session: SessionLink): void;
  /** The last one has ended, if one has begun: until the next begins, no devices work for it. */
  end(): void;
  /** Writes what they did into the record of the request, where that is known here. */
  enter(record: RequestRecord): void;
}

/** The charge where devices are counted, which is one process for all requests of a gateway. */
export class DeviceCharge implements Charge {
  #session: MeteredSession | undefined;
  /** Ends the use of the devices of whom was asked last. */
  #endUse: (() => number) | undefined;
  #device_s = 0;
  #energy_j: number | undefined;
  #isEnergyEstimated = false;

  /** @param age_ms since then, where it is told late */
  begin(session: MeteredSession, age_ms?: number): void {
    this.end();
    this.#session = session;
    this.#endUse = session.deviceTime.begin(age_ms);
  }

  /** Adds what the last replica's devices did. */
  end(): void {
    const share_s = this.#endUse?.();
    if (share_s === undefined) return;
    this.#endUse = undefined;
    const { facts, deviceEnergy } = this.#session!;
    this.#device_s += share_s * (facts.device_count ?? 1);
    const { power } = deviceEnergy;
    if (!power) return;
    this.#energy_j = (this.#energy_j ?? 0) + share_s * power.watts;
    if (!power.measured) this.#isEnergyEstimated = true;
  }

  enter(record: RequestRecord): void {
    record.device_s = this.#device_s;
    record.energy_j = this.#energy_j;
    record.energy_estimated = this.#isEnergyEstimated;
  }
}
