import { CallbackBufferType } from '../../native/callback-buffer-type.ts';
import type { Ggml } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import type { ScratchMemory } from '../engine/scratch.ts';
import type { PoolMemory } from './pool-memory.ts';
import type { Region } from './region-list.ts';
import type { PoolOwner } from './reuse-store.ts';

/** Intermediate results of an engine's graphs in a pool: one region, made anew where a larger graph comes. */
export class PooledScratch implements ScratchMemory {
  readonly #type: CallbackBufferType;
  readonly #give: (region: Region<PoolOwner>) => void;
  #region: Region<PoolOwner> | undefined;

  /** @param take a region of so many bytes; undefined where there is none */
  constructor(
    ggml: Ggml,
    memory: PoolMemory,
    take: (bytes: number) => Region<PoolOwner> | undefined,
    give: (region: Region<PoolOwner>) => void,
  ) {
    this.#give = give;
    this.#type = new CallbackBufferType(ggml, (bytes) => {
      // ggml has let go of the old buffer before it asks for another.
      this.#release();
      this.#region = take(bytes);
      // A model that runs must go on: where the pool is full, its results lie outside, and are counted there.
      if (!this.#region)
        return ggml.ggml_backend_buft_alloc_buffer(ggml.ggml_backend_cpu_buffer_type(), bytes) ?? undefined;
      const address = memory.plain.base + BigInt(this.#region.offset);
      return ggml.ggml_backend_cpu_buffer_from_ptr(address, bytes) ?? undefined;
    });
  }

  get bufferType(): Pointer {
    return this.#type.pointer;
  }

  free(): void {
    this.#release();
    this.#type.free();
  }

  #release(): void {
    if (this.#region) this.#give(this.#region);
    this.#region = undefined;
  }
}
