/** Memory of the intermediate results of an engine's graphs: its own, or that of a pool. */
import { CallbackBufferType } from '../../native/callback-buffer-type.ts';
import type { Ggml } from '../../native/ggml.ts';
import { adviseHugePages } from '../../native/huge-pages.ts';
import type { Pointer } from '../../native/signature.ts';

export interface ScratchMemory {
  /** ggml's buffer type that graphs are allocated from. */
  readonly bufferType: Pointer;
  /** Of a pool, what they have now; 0 where they lie in memory of their own. */
  readonly pool_bytes: number;
  /** Once no graph lies in it any more. */
  free(): void;
}

export interface ScratchSource {
  open(): ScratchMemory;
}

/** Memory of the host that ggml allocates for one engine. */
export class OwnScratch implements ScratchMemory {
  readonly pool_bytes = 0;
  readonly #type: CallbackBufferType;

  constructor({ ggml, plain }: { ggml: Ggml; plain: Pointer }) {
    this.#type = new CallbackBufferType(ggml, plain, (bytes) => {
      const buffer = ggml.ggml_backend_buft_alloc_buffer(plain, bytes);
      if (buffer) adviseHugePages(ggml.ggml_backend_buffer_get_base(buffer)!, bytes);
      return buffer ?? undefined;
    });
  }

  get bufferType(): Pointer {
    return this.#type.pointer;
  }

  free(): void {
    this.#type.free();
  }
}
