import { type HybridDevice, type HybridGemm, HybridGemmError } from '../../native/cuda/hybrid-gemm.ts';
import { addressOf, GgmlType } from '../../native/ggml.ts';
import { countedRate_bytes_per_s } from '../../solver/streaming/link-estimate.ts';
import type { Backend } from '../backend/backend.ts';
import { type ComputeRates, HybridProducts } from './hybrid-products.ts';
import type { StreamMeter } from './stream-meter.ts';

/** Of the matrix that rates are measured with: large enough that a launch is nothing beside it. */
const measured_size = 4096;
const measured_rows = 256;
const rounds = 3;

/** Products with weights in host memory, or why there are none where the library is. */
export type OpenedProducts = { products: HybridProducts } | { because: string };

interface ProductsAsked {
  backend: Pick<Backend, 'ggml' | 'hybridGemm'>;
  meter: StreamMeter;
  arena_bytes: number;
  /** Of the link, what the model counts on; absent: all of it. */
  link_share?: number | undefined;
  /** Of host memory, what the plan counted for page-locked copies; absent: it saw nothing to copy. */
  locked_bytes?: number | undefined;
}

/** On a device that has them; undefined elsewhere. */
export function openHybridProducts({
  backend,
  meter,
  arena_bytes,
  link_share,
  locked_bytes,
}: ProductsAsked): OpenedProducts | undefined {
  if (locked_bytes === undefined) return undefined;
  const library = backend.hybridGemm();
  if (!library) return undefined;
  if (locked_bytes === 0)
    return {
      because: 'HybridGEMM is off, and weights are copied: its node has no memory for copies of them',
    };
  // A worker sees its own device alone; with several of them nobody says which is which.
  if (library.devices !== 1)
    return { because: `HybridGEMM is off, and weights are copied: it sees ${library.devices} devices` };
  let device: HybridDevice | undefined;
  try {
    device = library.open();
    const products = new HybridProducts({
      ggml: backend.ggml,
      library,
      device,
      rates: measuredRates(library, device),
      arena_bytes,
      locked_bytes,
      link_bytes_per_s: () => meter.statistics.link?.bytes_per_s,
      counted_bytes_per_s: () => {
        const { link } = meter.statistics;
        return link && countedRate_bytes_per_s(link, link_share);
      },
      on_read: (bytes, seconds) => meter.read(bytes, seconds),
    });
    return { products };
  } catch (error) {
    device?.close();
    if (!(error instanceof HybridGemmError)) throw error;
    return { because: `HybridGEMM is off, and weights are copied: ${error.message}` };
  }
}

/**
 * What products reach whose weights lie on the device: one row reads all weights, many rows compute.
 * @param size rows of weights, and what is in each
 * @throws HybridGemmError
 */
export function measuredRates(
  library: HybridGemm,
  device: HybridDevice,
  size = measured_size,
  rows = measured_rows,
): ComputeRates {
  const bytes = library.packedBytes(GgmlType.BF16, size, size)!;
  const weights = new Uint8Array(2 * size * size);
  const freed: (() => void)[] = [];
  try {
    const packed = library.allocateHost(bytes);
    freed.push(() => library.freeHost(packed));
    library.pack(GgmlType.BF16, size, size, weights, packed);
    const [on_device, x, y] = [bytes, 4 * rows * size, 4 * rows * size].map((each) => {
      const memory = device.allocate(each);
      freed.push(() => device.free(memory));
      return memory;
    }) as [bigint, bigint, bigint];
    device.copy(on_device, packed, bytes);
    device.copy(x, addressOf(new Float32Array(rows * size)), 4 * rows * size);
    const seconds = (m: number, tile_rows: number): number => {
      const type = GgmlType.BF16 as 30;
      const strides = { x_stride: size, y_stride: size };
      const times = Array.from({ length: rounds }, () => {
        const began_ms = performance.now();
        device.multiply({
          type,
          m,
          n: size,
          k: size,
          packed: on_device,
          x,
          y,
          ...strides,
          alpha: 0,
          tile_rows,
        });
        device.wait();
        return performance.now() - began_ms;
      });
      return Math.min(...times) / 1000;
    };
    return {
      memory_bytes_per_s: bytes / seconds(1, 16),
      flops_per_s: (2 * rows * size * size) / seconds(rows, 64),
      processors: device.figures.processors,
    };
  } finally {
    for (const free of freed.reverse()) free();
  }
}
