/** Memory of the intermediate results of an engine's graphs: its own, or that of a pool. */
import type { Pointer } from '../../native/signature.ts';

export interface ScratchMemory {
  /** ggml's buffer type that graphs are allocated from. */
  readonly bufferType: Pointer;
  /** Once no graph lies in it any more. */
  free(): void;
}

export interface ScratchSource {
  open(): ScratchMemory;
}
