import { CallbackBufferType } from '../../native/callback-buffer-type.ts';
import type { Pointer } from '../../native/signature.ts';
import type { PoolPart } from '../backend/pool-memory.ts';
import type { ScratchMemory, ScratchSource } from '../engine/scratch.ts';
import type { StreamingArena } from './streaming-arena.ts';

/**
 * Results of the graphs of all parts lie over one another: one part computes at a time, and what leaves it is copied
 * before the next one begins.
 */
export function arenaScratch(arena: StreamingArena): ScratchSource {
  return { open: () => new ArenaScratch(arena) };
}

class ArenaScratch implements ScratchMemory {
  readonly #type: CallbackBufferType;
  #part: PoolPart | undefined;

  constructor({ backend, memory, scratch }: StreamingArena) {
    const { ggml, plain } = backend;
    this.#type = new CallbackBufferType(ggml, plain, (bytes) => {
      // ggml has let go of the old buffer before it asks for another.
      this.#part?.end();
      this.#part = bytes <= scratch.bytes ? memory.part(scratch.offset, bytes) : undefined;
      return this.#part?.buffer ?? ggml.ggml_backend_buft_alloc_buffer(plain, bytes) ?? undefined;
    });
  }

  get bufferType(): Pointer {
    return this.#type.pointer;
  }

  free(): void {
    this.#part?.end();
    this.#type.free();
  }
}
