/** What the device, its memory and its link do by themselves: what products are judged by. */
import type { HybridDevice, HybridGemm } from '../../native/cuda/hybrid-gemm.ts';
import { listNvidiaGpus } from '../../native/nvml.ts';
import type { Pointer } from '../../native/signature.ts';
import type { BenchResult } from '../result.ts';

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

/** Which GPU it was, and what it does by itself, as rows: a report says of its machine no more than the CPU. */
export function machineRows(
  { link_bytes_per_s, memory_bytes_per_s }: MeasuredMachine,
  processors: number,
  gpus: readonly string[] = gpuNames(),
): BenchResult[] {
  const device = `${gpus.join(' + ') || 'a GPU that NVML does not name'}, ${processors} processors`;
  const stated = { unit: 'GB/s', peer: '', theirs: null, ratio: null, bar: '', holds: null };
  return [
    { what: `link of ${device}: a copy from page-locked memory`, ours: link_bytes_per_s / 1e9, ...stated },
    { what: `memory of ${device}: a copy within it`, ours: memory_bytes_per_s / 1e9, ...stated },
  ];
}

/** GPUs and slices that this process may use. */
function gpuNames(): string[] {
  const gpus = listNvidiaGpus()?.gpus ?? [];
  return gpus.flatMap((gpu) => {
    if (!gpu?.mig_enabled) return gpu ? [gpu.name] : [];
    return gpu.mig_slices.flatMap((slice) => (slice ? [slice.name] : []));
  });
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
