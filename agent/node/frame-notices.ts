import { HpcserveError } from '../../spec/errors/error.ts';
import type { WayNews } from '../pipeline/ring-messages.ts';

/** What of a fabric frames of pipelines cannot take, by ring and provider: a notice lives as long as it is true. */
export class FrameNotices {
  readonly #rings = new Map<string, Map<string, HpcserveError>>();

  get all(): HpcserveError[] {
    return [...this.#rings.values()].flatMap((providers) => [...providers.values()]);
  }

  /** @returns whether anything is different since, and a notice that was not there */
  take(news: WayNews): { changed: boolean; added?: HpcserveError } {
    const { ring, provider } = news;
    const known = this.#rings.get(ring);
    if (news.type === 'way') {
      // A ring that comes up begins anew.
      const isOver = provider === undefined ? this.#rings.delete(ring) : known?.delete(provider);
      return { changed: isOver === true };
    }
    const notice = HpcserveError.fromJSON(news.error);
    const before = known?.get(news.provider);
    this.#rings.set(ring, (known ?? new Map()).set(news.provider, notice));
    return before?.toText() === notice.toText() ? { changed: false } : { changed: true, added: notice };
  }

  /** Rings that are left tell theirs again when they come up. */
  clear(): void {
    this.#rings.clear();
  }
}
