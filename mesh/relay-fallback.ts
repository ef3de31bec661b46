import type { Duplex } from 'node:stream';
import type { SessionRecord } from '../spec/session-record.ts';

/**
 * How often a direct way is looked for again while the fallback is taken. Lower: found sooner; higher: fewer attempts
 * in vain.
 */
const look_again_ms_default = 60_000;
/** Sessions whose way is remembered. */
const remembered_max = 10_000;

/** The way to sessions whose own addresses lead nowhere from here: through the peers of the mesh, which relay it. */
export class RelayFallback {
  readonly #open: (record: SessionRecord) => Promise<Duplex>;
  readonly #look_again_ms: number;
  /** Sessions to which it led when nothing else did; when a direct way was looked for last, ms. */
  readonly #looked_ms = new Map<string, number>();

  /** @param open throws where there is no such way */
  constructor(open: (record: SessionRecord) => Promise<Duplex>, look_again_ms = look_again_ms_default) {
    this.#open = open;
    this.#look_again_ms = look_again_ms;
  }

  open(record: SessionRecord): Promise<Duplex> {
    return this.#open(record);
  }

  /** Whether it led there when nothing else did, and no direct way was found since. */
  isPreferred({ session_id }: SessionRecord): boolean {
    return this.#looked_ms.has(session_id);
  }

  /** Whether a direct way is to be looked for now, beside what goes through the relay: to one caller each time. */
  isLookDue({ session_id }: SessionRecord): boolean {
    const looked_ms = this.#looked_ms.get(session_id);
    const now_ms = performance.now();
    if (looked_ms === undefined || now_ms - looked_ms < this.#look_again_ms) return false;
    this.#looked_ms.set(session_id, now_ms);
    return true;
  }

  /** It led there. */
  took({ session_id }: SessionRecord): void {
    if (this.#looked_ms.has(session_id)) return;
    this.#looked_ms.set(session_id, performance.now());
    const [oldest] = this.#looked_ms.keys();
    if (this.#looked_ms.size > remembered_max) this.#looked_ms.delete(oldest!);
  }

  /** There is a direct way. */
  forget({ session_id }: SessionRecord): void {
    this.#looked_ms.delete(session_id);
  }
}
