import { type KeyStore, RecordDecoder } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { KeyLimits, Reservation } from '../keys/key-limits.ts';
import type { RatesLeft } from '../keys/rate-fields.ts';
import type { GatewayLog } from '../log.ts';
import type { GatewayMetrics } from '../metrics.ts';
import { DeviceCharge, type MeteredSession } from '../relay/device-charge.ts';
import type { RequestAccounts } from '../relay/request-accounts.ts';
import type { Defragmenter } from '../sharing/defragmenter.ts';
import type { DemandMeter } from '../workload/demand-meter.ts';
import type { WorkloadMeter } from '../workload/workload-meter.ts';
import type { Closing, FromPrimary, ToPrimary } from './messages.ts';

/** What the primary counts and decides for its workers. */
export interface DeskServices {
  keys: Pick<KeyStore, 'valid' | 'lookForNew'>;
  keyLimits: Pick<KeyLimits, 'admit' | 'reserve' | 'settle' | 'ratesLeft'>;
  accounts: RequestAccounts;
  workload: Pick<WorkloadMeter, 'arrived' | 'refused'>;
  demand: Pick<DemandMeter, 'began' | 'ended'>;
  metrics: Pick<GatewayMetrics, 'retried' | 'continued' | 'refused'>;
  defragmenter: Pick<Defragmenter, 'makeRoom'>;
  /** The way to a session, with what is counted of its devices; undefined where it has left. */
  session(session_id: string): MeteredSession | undefined;
  /** A record could not be taken, so no worker is to let requests in. */
  ledgerFailed(failure: HpcserveError): void;
  log: GatewayLog;
}

type Asked<K extends ToPrimary[0]> = Extract<ToPrimary, [K, ...unknown[]]>;

/** Where one worker asks and reports: it holds what is held for the worker's requests, and lets go of it at its end. */
export class Desk {
  readonly #services: DeskServices;
  readonly #post: (message: FromPrimary) => void;
  /** By the worker's numbers. */
  readonly #reservations = new Map<number, Reservation>();
  readonly #charges = new Map<number, DeviceCharge>();
  /** Requests under way that count as demand, by model. */
  readonly #demanded = new Map<string, number>();
  readonly #decoder = new RecordDecoder();
  /** Of the records that come next. */
  #closings: Closing[] = [];
  /** Records that are safe, and of which the worker does not know it yet. */
  #committed = 0;
  #is_closed = false;

  constructor(services: DeskServices, post: (message: FromPrimary) => void) {
    this.#services = services;
    this.#post = post;
  }

  /** @returns whether it was a message about requests */
  take(message: ToPrimary): boolean {
    const { metrics, workload, demand } = this.#services;
    switch (message[0]) {
      case 'admit':
        this.#admit(message);
        break;
      case 'reserve':
        this.#reserve(message);
        break;
      case 'release':
        this.#services.keyLimits.settle(this.#reservation(message[1]), {});
        break;
      case 'charge':
        this.#charge(message);
        break;
      case 'closed':
        this.#closings = message[1];
        break;
      case 'began':
        this.#demanded.set(message[1], (this.#demanded.get(message[1]) ?? 0) + 1);
        demand.began(message[1], message[2]);
        break;
      case 'arrived':
        workload.arrived(message[1]);
        break;
      case 'turned_away':
        workload.refused(message[1]);
        break;
      case 'retried':
      case 'continued':
      case 'refused':
        metrics[message[0]](message[1]);
        break;
      case 'look':
        void this.#look(message);
        break;
      case 'room':
        void this.#makeRoom(message);
        break;
      default:
        return false;
    }
    return true;
  }

  /** A line with the records of the requests that were just closed. */
  records(line: string): void {
    const records = this.#decoder.decode(line);
    if (!records) return;
    const closings = this.#closings;
    this.#closings = [];
    for (const [index, record] of records.entries()) {
      const [held, charged, computes, model, service] = closings[index]!;
      const charge = this.#charges.get(charged) ?? new DeviceCharge();
      if (this.#charges.delete(charged)) {
        charge.end();
        charge.enter(record);
      }
      const reservation = this.#reservation(held);
      const demanded = model === null ? undefined : this.#ended(model);
      const closed = {
        record,
        reservation,
        charge,
        computes: computes === 1,
        demanded,
        service: service ?? undefined,
      };
      this.#services.accounts.close(closed, (error) => this.#safe(error));
    }
  }

  /** The worker is gone: nothing is held any more for what it had under way. */
  close(): void {
    this.#is_closed = true;
    const { keyLimits, demand } = this.#services;
    for (const reservation of this.#reservations.values()) keyLimits.settle(reservation, {});
    this.#reservations.clear();
    for (const charge of this.#charges.values()) charge.end();
    this.#charges.clear();
    for (const [model, count] of this.#demanded)
      for (let ended = 0; ended < count; ended++) demand.ended(model);
    this.#demanded.clear();
  }

  #admit([, number, key_id, tokens]: Asked<'admit'>): void {
    const { keys, keyLimits } = this.#services;
    this.#decide(number, key_id, () => {
      const key = keys.valid(key_id);
      if (!key)
        throw new HpcserveError('E_REQUEST_KEY', {
          what: 'the API key of the request is not valid any more',
        });
      const reservation = keyLimits.admit(key);
      if (!reservation) return 0;
      this.#reservations.set(number, reservation);
      if (tokens !== undefined) keyLimits.reserve(key, reservation, tokens);
      return 1;
    });
  }

  #reserve([, number, tokens]: Asked<'reserve'>): void {
    const { keys, keyLimits } = this.#services;
    const reservation = this.#reservations.get(number)!;
    this.#decide(number, reservation.key_id, () => {
      // Of a key that ends while it is asked with, what was let in goes on.
      const key = keys.valid(reservation.key_id);
      if (key) keyLimits.reserve(key, reservation, tokens);
      return 1;
    });
  }

  /** @param hold @returns whether something is held for the request @throws why it is not taken in */
  #decide(number: number, key_id: string, hold: () => 0 | 1): void {
    const { keys, keyLimits } = this.#services;
    const left = (): RatesLeft | null => {
      const key = keys.valid(key_id);
      return (key && keyLimits.ratesLeft(key)) ?? null;
    };
    try {
      const held = hold();
      this.#post(['decided', number, held, left()]);
    } catch (thrown) {
      this.#post(['decided', number, 0, left(), HpcserveError.from(thrown).toJSON()]);
    }
  }

  #reservation(number: number): Reservation | undefined {
    const reservation = this.#reservations.get(number);
    this.#reservations.delete(number);
    return reservation;
  }

  #charge([, number, session_id, age_ms]: Asked<'charge'>): void {
    let charge = this.#charges.get(number);
    if (!charge) {
      charge = new DeviceCharge();
      this.#charges.set(number, charge);
    }
    const session = this.#services.session(session_id);
    if (session) charge.begin(session, age_ms);
    else charge.end();
  }

  #ended(model: string): string {
    const left = (this.#demanded.get(model) ?? 0) - 1;
    if (left > 0) this.#demanded.set(model, left);
    else this.#demanded.delete(model);
    return model;
  }

  /** Told in the order in which records came; those of one commit together. */
  #safe(error: HpcserveError | undefined): void {
    if (error) {
      this.#tellCommitted();
      this.#post(['uncommitted', error.toJSON()]);
      this.#services.ledgerFailed(error);
      return;
    }
    if (this.#committed++ === 0) queueMicrotask(() => this.#tellCommitted());
  }

  #tellCommitted(): void {
    if (this.#committed > 0 && !this.#is_closed) this.#post(['committed', this.#committed]);
    this.#committed = 0;
  }

  async #look([, question]: Asked<'look'>): Promise<void> {
    await this.#services.keys.lookForNew();
    this.#post(['looked', question]);
  }

  async #makeRoom([, question, model, refused, asked]: Asked<'room'>): Promise<void> {
    const freed = await this.#services.defragmenter.makeRoom(model, refused, asked);
    this.#post(['roomed', question, freed ?? null]);
  }
}
