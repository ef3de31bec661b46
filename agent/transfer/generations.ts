import { HpcserveError } from '../../spec/errors/error.ts';
import { generations_max } from './limits.ts';
import type { KvOffer } from './messages.ts';

/** What was heard last of each sequence, so that nothing that is older or is said twice is taken for new. */
export class Generations {
  readonly #last = new Map<string, { generation: number; round: number }>();

  /** @throws HpcserveError E_KV_STALE */
  advance({ sequence, generation, round }: KvOffer): void {
    const last = this.#last.get(sequence);
    if (last && (generation < last.generation || (generation === last.generation && round <= last.round)))
      throw new HpcserveError('E_KV_STALE', {
        what: `keys and values of generation ${generation}, round ${round}, came for sequence ${sequence}`,
        because: `generation ${last.generation}, round ${last.round}, was here before`,
      });
    this.#last.delete(sequence);
    this.#last.set(sequence, { generation, round });
    if (this.#last.size <= generations_max) return;
    const [oldest] = this.#last.keys();
    this.#last.delete(oldest!);
  }
}
