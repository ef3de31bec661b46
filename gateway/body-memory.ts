import { HpcserveError } from '../spec/errors/error.ts';

/** What bodies of requests may take of a gateway's memory, from their first byte to the end of their answers. */
export interface BodyMemorySettings {
  /** Of all keys together. Lower: less memory at risk; higher: more large requests at a time. */
  bytes_max: number;
  /** Of one key. Lower: keys get in each other's way less; higher: one alone gets more done. */
  key_bytes_max: number;
  /** How long a request waits for its part. Lower: told sooner to come back; higher: bursts are outlived. */
  wait_ms: number;
}

/** Bodies up to this size wait for no larger ones: an eighth of the memory is theirs alone. */
export const smallBody_bytes = 64 * 1024;
const smallShare = 1 / 8;
/** Bodies are given back as answers end, which is seconds. */
const retryAfter_s = 5;

type Granted = (refusal: HpcserveError | undefined) => void;

interface Waiter {
  hold: BodyHold;
  bytes: number;
  granted: Granted;
  timer: NodeJS.Timeout;
}

/** Counts bytes of bodies in flight, of all and by key. */
export class BodyMemory {
  readonly settings: BodyMemorySettings;
  #held_bytes = 0;
  readonly #byKey = new Map<string, number>();
  /** Oldest first. */
  #waiters: Waiter[] = [];

  constructor(settings: BodyMemorySettings) {
    this.settings = settings;
  }

  /** What of the memory one request of one key can ever have. */
  get body_bytes_max(): number {
    return Math.floor(Math.min(this.settings.key_bytes_max, this.settings.bytes_max * (1 - smallShare)));
  }

  get held_bytes(): number {
    return this.#held_bytes;
  }

  /** For one request, which has nothing yet. */
  hold(key_id: string): BodyHold {
    return new BodyHold(this, key_id);
  }

  /** For `BodyHold`. */
  need(hold: BodyHold, bytes: number, granted: Granted): void {
    if (bytes <= hold.bytes) granted(undefined);
    else if (this.#fits(hold, bytes) && (bytes <= smallBody_bytes || this.#waiters.length === 0)) {
      this.#give(hold, bytes);
      granted(undefined);
    } else {
      const timer = setTimeout(() => this.#refuse(waiter), this.settings.wait_ms);
      const waiter: Waiter = { hold, bytes, granted, timer };
      this.#waiters.push(waiter);
      this.#serve();
    }
  }

  /** For `BodyHold`. */
  release(hold: BodyHold): void {
    const before = this.#waiters.length;
    this.#waiters = this.#waiters.filter((waiter) => {
      if (waiter.hold === hold) clearTimeout(waiter.timer);
      return waiter.hold !== hold;
    });
    // Whoever goes away while it waits lets in those behind it, though it gives nothing back.
    if (hold.bytes === 0 && this.#waiters.length === before) return;
    this.#takeBack(hold);
    if (this.#waiters.length > 0) this.#serve();
  }

  #takeBack(hold: BodyHold): void {
    if (hold.bytes === 0) return;
    this.#held_bytes -= hold.bytes;
    const left = this.#byKey.get(hold.key_id)! - hold.bytes;
    if (left === 0) this.#byKey.delete(hold.key_id);
    else this.#byKey.set(hold.key_id, left);
    hold.bytes = 0;
  }

  #give(hold: BodyHold, bytes: number): void {
    const more = bytes - hold.bytes;
    this.#held_bytes += more;
    this.#byKey.set(hold.key_id, (this.#byKey.get(hold.key_id) ?? 0) + more);
    hold.bytes = bytes;
  }

  #fits(hold: BodyHold, bytes: number): boolean {
    return !this.#isKeyFull(hold, bytes) && !this.#isFull(hold, bytes);
  }

  #isKeyFull(hold: BodyHold, bytes: number): boolean {
    return (this.#byKey.get(hold.key_id) ?? 0) + bytes - hold.bytes > this.settings.key_bytes_max;
  }

  #isFull(hold: BodyHold, bytes: number): boolean {
    const share = bytes <= smallBody_bytes ? 1 : 1 - smallShare;
    return this.#held_bytes + bytes - hold.bytes > share * this.settings.bytes_max;
  }

  /**
   * In their order: who waits for its own key holds up nobody else, and large ones are not passed by less large ones.
   */
  #serve(): void {
    const served: Waiter[] = [];
    let passable = true;
    for (const waiter of this.#waiters) {
      const { hold, bytes } = waiter;
      if (this.#isKeyFull(hold, bytes)) continue;
      if ((passable || bytes <= smallBody_bytes) && !this.#isFull(hold, bytes)) {
        this.#give(hold, bytes);
        served.push(waiter);
      } else passable = false;
    }
    if (served.length === 0) return;
    this.#waiters = this.#waiters.filter((waiter) => !served.includes(waiter));
    for (const { granted, timer } of served) {
      clearTimeout(timer);
      granted(undefined);
    }
  }

  #refuse(waiter: Waiter): void {
    this.#waiters = this.#waiters.filter((other) => other !== waiter);
    const { hold, bytes, granted } = waiter;
    const { key_bytes_max, bytes_max, wait_ms } = this.settings;
    const waited = `it waited for ${Math.round(wait_ms / 100) / 10} s`;
    const details = { retry_after_s: retryAfter_s };
    if (this.#isKeyFull(hold, bytes))
      granted(
        new HpcserveError('E_KEY_BODIES', {
          what: `requests of this key that are being answered hold ${this.#byKey.get(hold.key_id)} bytes, and this one has ${bytes} or more`,
          because: [`one key may hold ${key_bytes_max}`, waited],
          details,
        }),
      );
    else
      granted(
        new HpcserveError('E_GATEWAY_BODIES', {
          what: `requests that are being answered hold ${this.#held_bytes} bytes of this gateway, and this one has ${bytes} or more`,
          because: [`all together may hold ${bytes_max}`, waited],
          details,
        }),
      );
    this.#serve();
  }
}

/** What one request holds. */
export class BodyHold {
  readonly key_id: string;
  /** Written by its `BodyMemory` alone. */
  bytes = 0;
  readonly #memory: BodyMemory;

  constructor(memory: BodyMemory, key_id: string) {
    this.#memory = memory;
    this.key_id = key_id;
  }

  /**
   * Calls back, at once where there is room, when it holds at least so many bytes, or with why it does not get them.
   * Not called back after `release`.
   */
  need(bytes: number, granted: Granted): void {
    this.#memory.need(this, bytes, granted);
  }

  release(): void {
    this.#memory.release(this);
  }
}
