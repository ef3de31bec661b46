import type { Ledger, RequestRecord } from '../../ledger/index.ts';
import type { HpcserveError } from '../../spec/errors/error.ts';
import type { KeyLimits, Reservation } from '../keys/key-limits.ts';
import type { GatewayMetrics } from '../metrics.ts';
import type { ServiceTime, ServiceTimes } from '../routing/service-times.ts';
import type { DemandMeter } from '../workload/demand-meter.ts';
import type { WorkloadMeter } from '../workload/workload-meter.ts';
import { type Charge, DeviceCharge } from './device-charge.ts';

const tooManyRequests = 429;

/** A request whose outcome is decided. */
export interface ClosedRequest {
  record: RequestRecord;
  reservation: Reservation | undefined;
  charge: Charge;
  /** Whether devices compute what it asks for; what they do not says nothing of how long a model takes. */
  computes: boolean;
  /** The model it counts for as demand, where it does. */
  demanded: string | undefined;
  /** Undefined where it is not known how long a replica worked for it. */
  service: ServiceTime | undefined;
}

/** Runs when the record is safe, or could not be written. */
type Committed = (error: HpcserveError | undefined) => void;

/** Where what came of requests is counted and kept. */
export interface RequestAccounts {
  /** For one request. */
  charge(): Charge;
  /** Takes a request's outcome; the last bytes of its answer go out when `committed` ran. */
  close(closed: ClosedRequest, committed: Committed): void;
}

export interface AccountServices {
  ledger: Pick<Ledger, 'record'>;
  metrics: Pick<GatewayMetrics, 'answered'>;
  serviceTimes: ServiceTimes;
  workload: Pick<WorkloadMeter, 'answered' | 'refused'>;
  keyLimits: Pick<KeyLimits, 'settle'>;
  demand: Pick<DemandMeter, 'ended' | 'answered'>;
  /** What is measured of the answers of a model has changed. */
  onMeasured?: (model: string) => void;
}

/** The accounts themselves: metrics, measured load, the limits of keys and the ledger of one gateway. */
export class OwnAccounts implements RequestAccounts {
  readonly #services: AccountServices;

  constructor(services: AccountServices) {
    this.#services = services;
  }

  charge(): Charge {
    return new DeviceCharge();
  }

  close(closed: ClosedRequest, committed: Committed): void {
    const { record, reservation, computes, demanded, service } = closed;
    const { ledger, metrics, keyLimits, demand } = this.#services;
    metrics.answered(record);
    if (computes) this.#note(record, service);
    if (demanded !== undefined) demand.ended(demanded);
    keyLimits.settle(reservation, record);
    ledger.record(record, committed);
  }

  /** How long a model takes, and how long its answers are, from an answer that its devices computed. */
  #note(record: RequestRecord, service: ServiceTime | undefined): void {
    const { serviceTimes, workload, demand, onMeasured } = this.#services;
    const { served_model, status } = record;
    if (served_model === undefined) return;
    if (status < 300) {
      serviceTimes.answered(served_model, record, service);
      workload.answered(served_model, record);
      demand.answered(served_model, record);
      onMeasured?.(served_model);
    } else if (status === tooManyRequests) workload.refused(served_model);
  }
}
