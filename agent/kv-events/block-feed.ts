import { tokenHash, tokenHash_end } from '../../solver/routing/token-blocks.ts';
import { type KvBlockNews, kvChange_bytes, kvChanges_max } from '../../spec/kv-blocks.ts';
import type { EngineEvent, EngineEvents } from './engine-events.ts';

/**
 * Blocks of an engine that are kept, and so 4 million tokens with blocks of 16. Lower: less memory of the agent;
 * higher: larger caches are followed.
 */
const blocks_max = 2 ** 18;
/** Changes that are kept for who reads them. Lower: less memory; higher: who reads late is told less twice. */
const kept_max = 2 ** 16;

/** A reader's place in what is told. */
export interface BlockReader {
  /** What is new since the last time, bounded; undefined where nothing is. */
  next(): KvBlockNews | undefined;
}

/**
 * What an engine's KV cache holds, by its own events, under names that gateways make of the same tokens. Where events
 * are missing, contradict each other, or are more than there is room for, nothing more is told: gateways then go by
 * what they sent.
 */
export class BlockFeed {
  /** By the engine's own hash. */
  readonly #names = new Map<string, number>();
  #block_tokens = 0;
  #next_sequence: number | undefined;
  /** Changes as they are told: `tokenHash_end` more where a block is gone. */
  #changes: number[] = [];
  /** Changes that were made before those, and are not kept. */
  #dropped = 0;
  /** Counts what was void at once. */
  #epoch = 0;
  #why_over: string | undefined;

  /** Why nothing is told any more. */
  get whyOver(): string | undefined {
    return this.#why_over;
  }

  /** Blocks that are known. */
  get size(): number {
    return this.#names.size;
  }

  take({ sequence, events }: EngineEvents): void {
    if (this.#why_over !== undefined) return;
    const expected = this.#next_sequence ?? sequence;
    this.#next_sequence = sequence + 1;
    if (sequence !== expected) this.giveUp(`event ${sequence} came where ${expected} was due`);
    for (const event of events) {
      if (this.#why_over !== undefined) return;
      this.#takeEvent(event);
    }
  }

  giveUp(why: string): void {
    this.#why_over ??= why;
    this.#void();
  }

  reader(): BlockReader {
    let epoch = -1;
    let place = 0;
    /** Of those that were there when it began, the ones still to be told. */
    let first: number[] = [];
    let is_over = false;
    return {
      next: () => {
        if (this.#why_over !== undefined) {
          const news = is_over || epoch === -1 ? undefined : { ...this.#news([]), over: true as const };
          is_over = true;
          return news;
        }
        if (this.#block_tokens === 0) return undefined;
        const is_void = epoch !== this.#epoch || place < this.#dropped;
        if (is_void) {
          epoch = this.#epoch;
          place = this.#dropped + this.#changes.length;
          first = [...this.#names.values()];
        }
        const told = first.splice(0, kvChanges_max);
        const from = place - this.#dropped;
        const more = this.#changes.slice(from, from + kvChanges_max - told.length);
        place += more.length;
        const news = this.#news([...told, ...more]);
        if (is_void) return { ...news, reset: true };
        return news.changes === '' ? undefined : news;
      },
    };
  }

  #takeEvent(event: EngineEvent): void {
    if (event.kind === 'cleared') this.#void();
    else if (event.kind === 'stored') this.#store(event);
    else
      for (const hash of event.hashes) {
        const name = this.#names.get(hash);
        if (name === undefined) continue;
        this.#names.delete(hash);
        this.#change(name + tokenHash_end);
      }
  }

  #store({ hashes, parent, tokens, block_tokens, plain }: EngineEvent & { kind: 'stored' }): void {
    // With an adapter, an image or a salt the same tokens are another block. Some layers keep but parts of a prompt.
    if (!plain || tokens.length !== hashes.length * block_tokens) return;
    if (this.#block_tokens === 0) this.#block_tokens = block_tokens;
    if (this.#block_tokens !== block_tokens) {
      this.giveUp(`blocks of ${block_tokens} tokens came behind blocks of ${this.#block_tokens}`);
      return;
    }
    let name = parent === undefined ? 0 : this.#names.get(parent);
    // What stands before it is no block of tokens alone.
    if (name === undefined) return;
    const ids = tokens as number[];
    if (!ids.every((id) => Number.isSafeInteger(id) && id >= 0)) {
      this.giveUp('a block holds what is no token');
      return;
    }
    for (const [index, hash] of hashes.entries()) {
      name = tokenHash(name, ids, index * block_tokens, (index + 1) * block_tokens);
      if (this.#names.has(hash)) continue;
      if (this.#names.size >= blocks_max) {
        this.giveUp(`its cache has more than ${blocks_max} blocks`);
        return;
      }
      this.#names.set(hash, name);
      this.#change(name);
    }
  }

  #change(change: number): void {
    this.#changes.push(change);
    if (this.#changes.length < 2 * kept_max) return;
    this.#dropped += kept_max;
    this.#changes = this.#changes.slice(kept_max);
  }

  #void(): void {
    this.#names.clear();
    this.#dropped += this.#changes.length;
    this.#changes = [];
    this.#epoch++;
  }

  #news(changes: readonly number[]): KvBlockNews {
    const bytes = Buffer.allocUnsafe(changes.length * kvChange_bytes);
    for (const [index, change] of changes.entries())
      bytes.writeUIntBE(change, index * kvChange_bytes, kvChange_bytes);
    return { block_tokens: Math.max(1, this.#block_tokens), changes: bytes.toString('base64') };
  }
}
