import type { Duplex } from 'node:stream';
import type { SessionRecord } from '../spec/session-record.ts';

/** How long the detour is taken first where it was the one that led somewhere. Lower: a direct way is found again sooner. */
const prefer_ms = 60_000;

/** A way to sessions whose own addresses lead nowhere from here: through the peers of the mesh. */
export class Detour {
  readonly #open: (record: SessionRecord) => Promise<Duplex>;
  readonly #taken_ms = new Map<string, number>();

  /** @param open throws where there is no such way */
  constructor(open: (record: SessionRecord) => Promise<Duplex>) {
    this.#open = open;
  }

  open(record: SessionRecord): Promise<Duplex> {
    return this.#open(record);
  }

  /** Whether it led there lately, when nothing else did. */
  isPreferred({ session_id }: SessionRecord): boolean {
    const taken_ms = this.#taken_ms.get(session_id);
    if (taken_ms === undefined) return false;
    if (performance.now() - taken_ms < prefer_ms) return true;
    this.#taken_ms.delete(session_id);
    return false;
  }

  /** It led there. */
  took({ session_id }: SessionRecord): void {
    if (!this.#taken_ms.has(session_id)) this.#taken_ms.set(session_id, performance.now());
  }
}
