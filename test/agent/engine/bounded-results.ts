import type { Backend } from '../../../agent/backend/backend.ts';
import type { ScratchSource } from '../../../agent/engine/scratch.ts';
import { CallbackBufferType } from '../../../native/callback-buffer-type.ts';

/** Memory for results of graphs of which there is no more than so much. */
export class BoundedResults implements ScratchSource {
  bytes_max = Number.POSITIVE_INFINITY;
  /** The most that was asked for. */
  asked_bytes = 0;
  readonly #backend: Backend;

  constructor(backend: Backend) {
    this.#backend = backend;
  }

  open(): ReturnType<ScratchSource['open']> {
    const { ggml, plain } = this.#backend;
    const type = new CallbackBufferType(ggml, plain, (bytes) => {
      this.asked_bytes = Math.max(this.asked_bytes, bytes);
      if (bytes > this.bytes_max) return undefined;
      return ggml.ggml_backend_buft_alloc_buffer(plain, bytes) ?? undefined;
    });
    return { bufferType: type.pointer, free: () => type.free() };
  }
}
