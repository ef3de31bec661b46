import type { PeerName } from './messages.ts';

/** Questions that wait for an answer. What is above is not asked. */
const waiting_max = 4096;

interface Relayed {
  /** Who wants to know, and the number of its question. */
  to: PeerName;
  nonce: number;
  peer: PeerName;
  at_ms: number;
}

/** Questions that are asked for others, by their own numbers. */
export class RelayedProbes {
  readonly #waiting = new Map<number, Relayed>();

  /** @returns whether it is to be asked */
  ask(nonce: number, question: Relayed): boolean {
    if (this.#waiting.size >= waiting_max) return false;
    this.#waiting.set(nonce, question);
    return true;
  }

  /** @returns who is to be told that a member answered; undefined where that was not asked of it */
  answered(nonce: number, from: PeerName): Relayed | undefined {
    const relayed = this.#waiting.get(nonce);
    if (relayed?.peer !== from) return undefined;
    this.#waiting.delete(nonce);
    return relayed;
  }

  /** Those before a time are not answered any more. */
  forget(before_ms: number): void {
    for (const [nonce, { at_ms }] of this.#waiting) {
      if (at_ms >= before_ms) return; // in the order in which they were asked
      this.#waiting.delete(nonce);
    }
  }
}
