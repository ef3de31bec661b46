import type { PeerName } from './messages.ts';

/** Members that left are remembered for push-pulls with them, so many. Higher: larger partitions heal from any side. */
const kept_max = 512;

/** Members whose last session left, the latest last. */
export class LeftMembers {
  readonly #names = new Set<PeerName>();

  get names(): PeerName[] {
    return [...this.#names];
  }

  add(peer: PeerName): void {
    this.#names.delete(peer);
    this.#names.add(peer);
    const [oldest] = this.#names;
    if (this.#names.size > kept_max) this.#names.delete(oldest!);
  }

  delete(peer: PeerName): void {
    this.#names.delete(peer);
  }
}
