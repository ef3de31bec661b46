/** Memory of the host through which bytes of a load go on their way to a layout or a device. */
import koffi from 'koffi';
import type { Ggml } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';

/** What direct reads ask of memory, offsets and sizes: a page, which is a multiple of every block of a disk. */
export const direct_alignment_bytes = 4096;

export interface StagingMemory {
  /** A multiple of `direct_alignment_bytes`. */
  address: Pointer;
  bytes: number;
  free(): void;
}

/** @param hostType of page-locked memory, from which a device copies by itself; undefined, or none left: any memory */
export function stagingMemory(ggml: Ggml, hostType: Pointer | undefined, bytes: number): StagingMemory {
  const taken_bytes = bytes + direct_alignment_bytes;
  const buffer = hostType === undefined ? null : ggml.ggml_backend_buft_alloc_buffer(hostType, taken_bytes);
  if (buffer) {
    const address = aligned(ggml.ggml_backend_buffer_get_base(buffer)!);
    return { address, bytes, free: () => ggml.ggml_backend_buffer_free(buffer) };
  }
  const base = koffi.alloc('uint8_t', taken_bytes) as Pointer;
  return { address: aligned(base), bytes, free: () => koffi.free(base) };
}

function aligned(address: Pointer): Pointer {
  const unit = BigInt(direct_alignment_bytes);
  return ((address + unit - 1n) / unit) * unit;
}
