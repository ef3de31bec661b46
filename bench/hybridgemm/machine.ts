/** What the device, its memory and its link do by themselves: what products are judged by. */
import type { HybridDevice, HybridGemm } from '../../native/cuda/hybrid-gemm.ts';
import type { Pointer } from '../../native/signature.ts';

const copied_bytes = 512 * 2 ** 20;
const copies = 8;

export interface MeasuredMachine {
  /** From page-locked memory of the host to the device, by the copy engine. */
  link_bytes_per_s: number;
  /** Read and written, by a copy within the device. */
  memory_bytes_per_s: number;
}

export function measureMachine(library: HybridGemm, device: HybridDevice): MeasuredMachine {
  const host = library.allocateHost(copied_bytes);
  const [from, to] = [device.allocate(copied_bytes), device.allocate(copied_bytes)];
  const rate = (source: Pointer): number => {
    const seconds = best_s(copies, () => device.copy(to, source, copied_bytes));
    return copied_bytes / seconds;
  };
  const measured = { link_bytes_per_s: rate(host), memory_bytes_per_s: 2 * rate(from) };
  device.free(from);
  device.free(to);
  library.freeHost(host);
  return measured;
}

/** The quickest of several, after one that is not counted. */
export function best_s(times: number, run: () => void): number {
  run();
  let best = Number.POSITIVE_INFINITY;
  for (let time = 0; time < times; time++) {
    const began_ms = performance.now();
    run();
    best = Math.min(best, (performance.now() - began_ms) / 1000);
  }
  return best;
}
