import { RecordEncoder, type RequestRecord } from '../../ledger/index.ts';
import type { HpcserveError } from '../../spec/errors/error.ts';
import type { Charge } from '../relay/device-charge.ts';
import {
  type AccountServices,
  type ClosedRequest,
  noteAnswer,
  type RequestAccounts,
} from '../relay/request-accounts.ts';
import type { SessionLink } from '../session-link.ts';
import type { MessagePipe } from './message-pipe.ts';
import type { Closing, FromPrimary, ToPrimary } from './messages.ts';
import type { RemoteReservation } from './remote-limits.ts';

type Committed = (error: HpcserveError | undefined) => void;
type PrimaryPipe = MessagePipe<FromPrimary, ToPrimary>;

/** What the primary counts of the devices that work for a request of this worker. */
class RemoteCharge implements Charge {
  readonly #post: (message: ToPrimary) => void;
  readonly #newNumber: () => number;
  number = 0;
  #runs = false;

  constructor(post: (message: ToPrimary) => void, newNumber: () => number) {
    this.#post = post;
    this.#newNumber = newNumber;
  }

  begin({ facts }: SessionLink): void {
    if (this.number === 0) this.number = this.#newNumber();
    this.#runs = true;
    this.#post(['charge', this.number, facts.session_id]);
  }

  end(): void {
    if (!this.#runs) return;
    this.#runs = false;
    this.#post(['uncharge', this.number]);
  }

  /** The primary does; where nothing was computed, it is known here that that cost nothing. */
  enter(record: RequestRecord): void {
    if (this.number === 0) record.device_s = 0;
  }
}

/** Accounts that the primary keeps. Outcomes of one turn of the event loop travel together. */
export class RemoteAccounts implements RequestAccounts {
  readonly #pipe: PrimaryPipe;
  readonly #measures: Pick<AccountServices, 'serviceTimes' | 'workload'>;
  /** The primary's decoder follows it line by line: both begin with this process. */
  readonly #encoder = new RecordEncoder();
  #records: RequestRecord[] = [];
  #closings: Closing[] = [];
  /** Who waits until his record is safe, the oldest first. */
  #waiting: Committed[] = [];
  #answered = 0;
  #charges = 0;

  /** @param measures what this worker goes by itself: its own answers */
  constructor(pipe: PrimaryPipe, measures: Pick<AccountServices, 'serviceTimes' | 'workload'>) {
    this.#pipe = pipe;
    this.#measures = measures;
    pipe.beforeSending = () => this.#gather();
  }

  charge(): Charge {
    return new RemoteCharge(
      (message) => this.#pipe.post(message),
      () => ++this.#charges,
    );
  }

  close({ record, reservation, charge, computes, demanded }: ClosedRequest, committed: Committed): void {
    if (computes) noteAnswer(record, this.#measures);
    if (reservation) reservation.settled = true;
    const held = (reservation as RemoteReservation | undefined)?.number ?? 0;
    this.#closings.push([held, (charge as RemoteCharge).number, computes ? 1 : 0, demanded ?? null]);
    this.#records.push(record);
    this.#waiting.push(committed);
    this.#pipe.schedule();
  }

  /** The next so many records are safe, or the next one is not. */
  committed(count: number, error?: HpcserveError): void {
    const end = this.#answered + count;
    while (this.#answered < end) this.#waiting[this.#answered++]!(error);
    // Moved together now and then, not one by one.
    if (this.#answered < 1024 && this.#answered < this.#waiting.length) return;
    this.#waiting = this.#waiting.slice(this.#answered);
    this.#answered = 0;
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
