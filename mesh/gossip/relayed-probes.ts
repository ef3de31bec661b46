import type { PeerName } from './messages.ts';

/** Probes that wait for an answer. What is above is not sent. */
const waiting_max = 4096;

interface Relayed {
  /** Who wants to know, and the number of its probe. */
  to: PeerName;
  nonce: number;
  peer: PeerName;
  at_ms: number;
}

/** Indirect probes: those that this member sends for others, by its own numbers. */
export class RelayedProbes {
  readonly #waiting = new Map<number, Relayed>();

  /** @returns whether it is to be sent */
  ask(nonce: number, question: Relayed): boolean {
    if (this.#waiting.size >= waiting_max) return false;
    this.#waiting.set(nonce, question);
    return true;
  }

  /** @returns who is to be told that a member answered; undefined where it was not probed */
  answered(nonce: number, from: PeerName): Relayed | undefined {
    const relayed = this.#waiting.get(nonce);
    if (relayed?.peer !== from) return undefined;
    this.#waiting.delete(nonce);
    return relayed;
  }

  /** Those before a time are not answered any more. */
  forget(before_ms: number): void {
    for (const [nonce, { at_ms }] of this.#waiting) {
      if (at_ms >= before_ms) return; // in the order in which they were sent
      this.#waiting.delete(nonce);
    }
  }
}
