import { HpcserveError } from '../../spec/errors/error.ts';

/**
 * How often a key may hold what is free, so that the more wait the less one key may add. Lower: keys get in each
 * other's way less; higher: one alone gets more done.
 */
const keyOverFree_max = 4;
/**
 * The last sixteenth of the places is for keys that hold none, a place each. Lower: fewer keys find one where others
 * took all that they may; higher: less for a key that is alone.
 */
const firstPlacesShare = 1 / 16;

/** What of the room is taken. */
export interface WaitingPlaces {
  places: number;
  free: number;
  /** By requests of the key that asks. */
  held: number;
}

/** Why a request finds no place: its key holds its share, or the room is full. */
export type NoPlace = 'key' | 'room';

/**
 * Whether a key may take one place more. It may hold four times as many as are free, those left out that are for keys
 * with none (dynamic thresholds: Choudhury and Hahne, 1998). So one key alone gets three quarters of the room, the next
 * four fifths of what is left of it, and a key that holds nothing is refused only where nothing is free.
 */
export function noPlaceFor({ places, free, held }: WaitingPlaces): NoPlace | undefined {
  if (free === 0) return 'room';
  const shared = free - Math.ceil(places * firstPlacesShare);
  return held === 0 || held < keyOverFree_max * shared ? undefined : 'key';
}

/** What a request holds that waits. */
export interface WaitingPlace {
  /** Gives it back; once. */
  leave(): void;
}

/**
 * Counts the requests of a gateway that wait for a replica to load, by key: each holds its body in memory. Whoever has
 * one key cannot take all places from the others.
 */
export class WaitingRoom {
  readonly places: number;
  #free: number;
  readonly #byKey = new Map<string, number>();

  /** @param places lower: more are refused while a replica loads; higher: more come at once when it has */
  constructor(places: number) {
    this.places = places;
    this.#free = places;
  }

  get free(): number {
    return this.#free;
  }

  held(key_id: string): number {
    return this.#byKey.get(key_id) ?? 0;
  }

  enter(key_id: string): WaitingPlace | NoPlace {
    const held = this.held(key_id);
    const refused = noPlaceFor({ places: this.places, free: this.#free, held });
    if (refused) return refused;
    this.#free--;
    this.#byKey.set(key_id, held + 1);
    return { leave: () => this.#leave(key_id) };
  }

  /** What a request is told that found no place. @param because what it would have waited for */
  refusal(why: NoPlace, key_id: string, because: readonly string[]): HpcserveError {
    const taken = this.places - this.#free;
    if (why === 'room')
      return new HpcserveError('E_GATEWAY_WAITING', {
        what: `${taken} requests wait at this gateway for replicas that start: all that may`,
        because: [...because],
      });
    return new HpcserveError('E_KEY_WAITING', {
      what: `${this.held(key_id)} requests of this key wait for replicas that start, which is its share of the ${this.places} places of this gateway`,
      because: [
        `${taken} places are taken, and a key may hold four times as many as are free for all`,
        ...because,
      ],
    });
  }

  #leave(key_id: string): void {
    this.#free++;
    const left = this.held(key_id) - 1;
    if (left === 0) this.#byKey.delete(key_id);
    else this.#byKey.set(key_id, left);
  }
}
