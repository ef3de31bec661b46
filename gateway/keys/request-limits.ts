import type { ApiKey } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { KeyLimits, Reservation } from './key-limits.ts';

/**
 * Holds requests to the limits of their keys. Who counts may be another process (`processes/remote-limits.ts`), so
 * answers come by callback: at once where they are known here.
 */
export interface RequestLimits {
  /**
   * Takes a request of a key in before its body is read, or says why not; where it is small, that may be said when
   * tokens are reserved.
   * @param isSmall its body comes with it, or next
   * @param then not called again; the reservation is absent where the key has no limits
   */
  admit(
    key: ApiKey,
    isSmall: boolean,
    then: (refusal: HpcserveError | undefined, held: Reservation | undefined) => void,
  ): void;
  /** Holds tokens for a request that was taken in, or says why not; see `KeyLimits.reserve`. */
  reserve(
    key: ApiKey,
    reservation: Reservation,
    tokens: number,
    then: (refusal: HpcserveError | undefined) => void,
  ): void;
  /** The request ends before it is answered: nothing is held for it any more. */
  release(reservation: Reservation | undefined): void;
  /** What is left of a key's limits by the minute, in OpenAI's header fields. */
  rateHeaders(key: ApiKey): [name: string, value: string][];
}

/** For requests of the process that counts. */
export class OwnLimits implements RequestLimits {
  readonly #limits: KeyLimits;

  constructor(limits: KeyLimits) {
    this.#limits = limits;
  }

  admit(
    key: ApiKey,
    _isSmall: boolean,
    then: (refusal: HpcserveError | undefined, held: Reservation | undefined) => void,
  ): void {
    let held: Reservation | undefined;
    try {
      held = this.#limits.admit(key);
    } catch (thrown) {
      then(HpcserveError.from(thrown), undefined);
      return;
    }
    then(undefined, held);
  }

  reserve(
    key: ApiKey,
    reservation: Reservation,
    tokens: number,
    then: (refusal: HpcserveError | undefined) => void,
  ): void {
    try {
      this.#limits.reserve(key, reservation, tokens);
    } catch (thrown) {
      then(HpcserveError.from(thrown));
      return;
    }
    then(undefined);
  }

  release(reservation: Reservation | undefined): void {
    this.#limits.settle(reservation, {});
  }

  rateHeaders(key: ApiKey): [name: string, value: string][] {
    return this.#limits.rateHeaders(key);
  }
}
