import type { ApiKey } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { isLimited, type Reservation } from '../keys/key-limits.ts';
import { type RatesLeft, rateHeaders } from '../keys/rate-fields.ts';
import type { RequestLimits } from '../keys/request-limits.ts';
import type { FromPrimary, ToPrimary } from './messages.ts';

type Decided = Extract<FromPrimary, ['decided', ...unknown[]]>;

/** What the primary holds for a request of this worker. */
export class RemoteReservation implements Reservation {
  readonly number: number;
  readonly key_id: string;
  tokens = 0;
  settled = false;
  /** The primary has been asked. */
  asked = false;

  constructor(number: number, key_id: string) {
    this.number = number;
    this.key_id = key_id;
  }
}

/**
 * The limits of keys where the primary counts for all workers: one question for each request of a key that has limits,
 * two where its body is large, none for others.
 */
export class RemoteLimits implements RequestLimits {
  readonly #post: (message: ToPrimary) => void;
  /** By number: who waits for what the primary says. */
  readonly #waiting = new Map<number, (decided: Decided) => void>();
  /** As the primary said last, by key. */
  readonly #left = new Map<string, RatesLeft | null>();
  #last = 0;

  constructor(post: (message: ToPrimary) => void) {
    this.#post = post;
  }

  admit(
    key: ApiKey,
    isSmall: boolean,
    then: (refusal: HpcserveError | undefined, held: RemoteReservation | undefined) => void,
  ): void {
    if (!isLimited(key)) {
      then(undefined, undefined);
      return;
    }
    const reservation = new RemoteReservation(++this.#last, key.id);
    // What is read in a moment is asked for once, when it is known how many tokens it may use.
    if (isSmall) {
      then(undefined, reservation);
      return;
    }
    reservation.asked = true;
    this.#ask(key, reservation.number, ['admit', reservation.number, key.id], (refusal, held) =>
      then(refusal, held ? reservation : undefined),
    );
  }

  reserve(
    key: ApiKey,
    reservation: RemoteReservation,
    tokens: number,
    then: (refusal: HpcserveError | undefined) => void,
  ): void {
    reservation.tokens = tokens;
    const { number, asked, key_id } = reservation;
    reservation.asked = true;
    const question: ToPrimary = asked ? ['reserve', number, tokens] : ['admit', number, key_id, tokens];
    this.#ask(key, number, question, then);
  }

  release(reservation: RemoteReservation | undefined): void {
    if (!reservation || reservation.settled) return;
    reservation.settled = true;
    if (reservation.asked) this.#post(['release', reservation.number]);
  }

  rateHeaders({ id, settings }: ApiKey): [name: string, value: string][] {
    return rateHeaders(settings, this.#left.get(id) ?? undefined);
  }

  /** The primary has answered. */
  decided(message: Decided): void {
    const then = this.#waiting.get(message[1]);
    this.#waiting.delete(message[1]);
    then?.(message);
  }

  #ask(
    key: ApiKey,
    number: number,
    question: ToPrimary,
    then: (refusal: HpcserveError | undefined, held: boolean) => void,
  ): void {
    this.#waiting.set(number, ([, , held, left, refusal]) => {
      this.#left.set(key.id, left);
      then(refusal && HpcserveError.fromJSON(refusal), held === 1);
    });
    this.#post(question);
  }
}
