import { CallbackBufferType } from '../../native/callback-buffer-type.ts';
import { makeHugePages } from '../../native/huge-pages.ts';
import type { Pointer } from '../../native/signature.ts';
import type { Backend } from '../backend/backend.ts';
import type { PoolMemory, PoolPart } from '../backend/pool-memory.ts';
import type { ScratchMemory } from '../engine/scratch.ts';
import type { Region } from './region-list.ts';
import type { PoolOwner } from './reuse-store.ts';

/**
 * Results take whole pieces of so many bytes. Lower: their regions have as many sizes as there are graphs, and gaps
 * that they leave in a small pool fit nothing else; higher: more is taken than is used.
 */
const piece_bytes = 256 * 1024;

/** Intermediate results of an engine's graphs in a pool: one region, made anew where a larger graph comes. */
export class PooledScratch implements ScratchMemory {
  readonly #type: CallbackBufferType;
  readonly #give: (region: Region<PoolOwner>) => void;
  #region: Region<PoolOwner> | undefined;
  #part: PoolPart | undefined;

  /** @param take a region of so many bytes; undefined where there is none */
  constructor(
    { ggml, plain }: Backend,
    memory: PoolMemory,
    take: (bytes: number) => Region<PoolOwner> | undefined,
    give: (region: Region<PoolOwner>) => void,
  ) {
    this.#give = give;
    this.#type = new CallbackBufferType(ggml, plain, (bytes) => {
      // ggml has let go of the old buffer before it asks for another.
      this.#release();
      this.#region = take(Math.ceil(bytes / piece_bytes) * piece_bytes);
      // A model that runs must go on: where the pool is full, its results lie outside, and are counted there.
      if (!this.#region) return ggml.ggml_backend_buft_alloc_buffer(plain, bytes) ?? undefined;
      for (const range of memory.hugeRanges?.([this.#region]) ?? []) makeHugePages(range);
      this.#part = memory.part(this.#region.offset, bytes);
      return this.#part?.buffer;
    });
  }

  get bufferType(): Pointer {
    return this.#type.pointer;
  }

  get pool_bytes(): number {
    return this.#region?.bytes ?? 0;
  }

  free(): void {
    this.#release();
    this.#type.free();
  }

  #release(): void {
    this.#part?.end();
    this.#part = undefined;
    if (this.#region) this.#give(this.#region);
    this.#region = undefined;
  }
}
