import { type ApiKey, type KeyChange, type KeyFinder, KeyIndex } from '../../ledger/index.ts';

/** Who asks with keys that do not exist must not make the primary look all the time. */
const again_ms = 1000;

/** The keys as the primary knows them, which reads their folder. */
export class RemoteKeys implements KeyFinder {
  readonly #index = new KeyIndex();
  readonly #look: () => Promise<void>;
  #looking: Promise<void> | undefined;
  #asked_at_ms = Number.NEGATIVE_INFINITY;

  /** @param look has the primary look for new ones; resolves when they are known here */
  constructor(look: () => Promise<void>) {
    this.#look = look;
  }

  apply(changes: readonly KeyChange[]): void {
    for (const change of changes) this.#index.apply(change);
  }

  find(secret: string): ApiKey | undefined {
    return this.#index.find(secret);
  }

  async lookForNew(): Promise<void> {
    if (!this.#looking) {
      if (performance.now() - this.#asked_at_ms < again_ms) return;
      this.#asked_at_ms = performance.now();
      this.#looking = this.#look().finally(() => {
        this.#looking = undefined;
      });
    }
    await this.#looking;
  }
}
