import { RecordEncoder, type RequestRecord } from '../../ledger/index.ts';
import type { HpcserveError } from '../../spec/errors/error.ts';
import type { GatewayLog } from '../log.ts';
import type { Charge } from '../relay/device-charge.ts';
import type { ClosedRequest, RequestAccounts } from '../relay/request-accounts.ts';
import type { SessionLink } from '../session-link.ts';
import type { MessagePipe } from './message-pipe.ts';
import type { Closing, FromPrimary, ToPrimary } from './messages.ts';
import type { RemoteReservation } from './remote-limits.ts';

type Committed = (error: HpcserveError | undefined) => void;
type PrimaryPipe = MessagePipe<FromPrimary, ToPrimary>;

/** What the primary counts of the devices that work for a request of this worker. */
class RemoteCharge implements Charge {
  readonly #pipe: PrimaryPipe;
  readonly #newNumber: () => number;
  number = 0;
  /** A replica works for it, as far as the primary was told or is about to be. */
  #works = false;
  #closed = false;

  constructor(pipe: PrimaryPipe, newNumber: () => number) {
    this.#pipe = pipe;
    this.#newNumber = newNumber;
  }

  begin({ facts }: SessionLink): void {
    if (this.number === 0) this.number = this.#newNumber();
    const { number } = this;
    this.#works = true;
    this.#pipe.postInCompany((age_ms) => ['charge', number, facts.session_id, age_ms]);
  }

  /** Where another one begins in this moment, or the request is closed, that says it. */
  end(): void {
    if (!this.#works) return;
    this.#works = false;
    queueMicrotask(() => {
      if (this.#works || this.#closed) return;
      const { number } = this;
      this.#pipe.postInCompany((age_ms) => ['charge', number, '', age_ms]);
    });
  }

  /** The primary ends it with its record, and knows nothing of its number afterwards. */
  close(): void {
    this.#closed = true;
  }

  /** The primary does; where nothing was computed, it is known here that that cost nothing. */
  enter(record: RequestRecord): void {
    if (this.number === 0) record.device_s = 0;
  }
}

/** Accounts that the primary keeps. Outcomes of one turn of the event loop travel together. */
export class RemoteAccounts implements RequestAccounts {
  readonly #pipe: PrimaryPipe;
  readonly #log: GatewayLog;
  /** The primary's decoder follows it line by line: both begin with this process. */
  readonly #encoder = new RecordEncoder();
  #records: RequestRecord[] = [];
  #closings: Closing[] = [];
  /** Who waits until his record is safe, the oldest first. */
  #waiting: Committed[] = [];
  #answered = 0;
  #charges = 0;

  constructor(pipe: PrimaryPipe, log: GatewayLog) {
    this.#pipe = pipe;
    this.#log = log;
    pipe.beforeSending = () => this.#gather();
  }

  charge(): Charge {
    return new RemoteCharge(this.#pipe, () => ++this.#charges);
  }

  close(closed: ClosedRequest, committed: Committed): void {
    const { record, reservation, charge, computes, demanded, service } = closed;
    if (reservation) reservation.settled = true;
    (charge as RemoteCharge).close();
    const held = (reservation as RemoteReservation | undefined)?.number ?? 0;
    this.#closings.push([
      held,
      (charge as RemoteCharge).number,
      computes ? 1 : 0,
      demanded ?? null,
      service ?? null,
    ]);
    this.#records.push(record);
    this.#waiting.push(committed);
    this.#pipe.schedule();
  }

  /** The next so many records are safe, or the next one is not. */
  committed(count: number, error?: HpcserveError): void {
    const end = this.#answered + count;
    while (this.#answered < end) this.#tell(this.#waiting[this.#answered++]!, error);
    // Moved together now and then, not one by one.
    if (this.#answered < 1024 && this.#answered < this.#waiting.length) return;
    this.#waiting = this.#waiting.slice(this.#answered);
    this.#answered = 0;
  }

  /** The others are told, whatever becomes of one. */
  #tell(committed: Committed, error: HpcserveError | undefined): void {
    try {
      committed(error);
    } catch (thrown) {
      this.#log.error(thrown, 'an answer could not be sent behind its commit');
    }
  }

  #gather(): void {
    if (this.#records.length === 0) return;
    const [records, closings] = [this.#records, this.#closings];
    this.#records = [];
    this.#closings = [];
    this.#pipe.post(['closed', closings]);
    this.#pipe.postRecords(this.#encoder.encode(records));
  }
}
