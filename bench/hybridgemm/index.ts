/**
 * Products whose weights stay in host memory, on a GPU: beside the link's own bandwidth for few rows, beside cuBLAS on
 * weights of the device for many, and what alpha and the M tile do. Without a GPU there is nothing to measure.
 */
import {
  type HybridDevice,
  type HybridGemm,
  HybridGemmError,
  loadHybridGemm,
  tile_refused,
} from '../../native/cuda/hybrid-gemm.ts';
import { GgmlType, memoryAt } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import {
  bestHybrid,
  type HybridSetting,
  type Product,
  tile_rows_choices,
} from '../../solver/streaming/hybrid-product.ts';
import { MissingNeed } from '../need.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { openCublas } from './cublas.ts';
import { best_s, type MeasuredMachine, machineRows, measureMachine } from './machine.ts';

/** Gate and up of Llama-3.1-8B, and its output projection: many columns and few. */
const matrices = [
  { name: 'gate', columns: 14_336, inner: 4096 },
  { name: 'output', columns: 4096, inner: 4096 },
] as const;
/** Rows: answers that decode, and chunks of prompts. */
const few = [1, 16] as const;
const many = [256, 1024, 4096] as const;
const alphas = [0, 0.25, 0.5, 0.75, 1] as const;
const rounds = 5;
const link_share_min = 0.9;
const large_share_min = 0.8;

export const hybridGemmBench: Bench = {
  name: 'hybridgemm',
  describe:
    'products on a GPU whose weights stay in host memory: share of the link for few rows, share of what cuBLAS and the link allow for many, by alpha and M tile',
  run,
};

interface Operands {
  device: HybridDevice;
  machine: MeasuredMachine;
  packed: Record<'BF16' | 'Q8_0', Pointer>;
  /** On the device, for the most rows. */
  x: Pointer;
  y: Pointer;
}

async function run({ log }: BenchOptions): Promise<BenchResult[]> {
  const library = loadHybridGemm();
  if (!library)
    throw new MissingNeed(
      'native/cuda was not compiled: nvcc is not here',
      'build with nvcc on a machine with a GPU of NVIDIA’s (NVCC names it, or CUDA_HOME its toolkit)',
    );
  if (library.devices === 0)
    throw new MissingNeed(
      'a GPU of NVIDIA’s, or a driver that knows it, is not here',
      'run it on a machine with a GPU: it measures nothing without one',
    );
  const device = library.open();
  try {
    const machine = measureMachine(library, device);
    log(
      `link ${gb(machine.link_bytes_per_s)} GB/s, device memory ${gb(machine.memory_bytes_per_s)} GB/s, ${device.figures.processors} processors`,
    );
    const rows = matrices.flatMap((matrix) => measureMatrix(library, device, machine, matrix, log));
    return [...machineRows(machine, device.figures.processors), ...rows];
  } finally {
    device.close();
  }
}

function measureMatrix(
  library: HybridGemm,
  device: HybridDevice,
  machine: MeasuredMachine,
  { name, columns, inner }: (typeof matrices)[number],
  log: (line: string) => void,
): BenchResult[] {
  const rows_max = Math.max(...many);
  const packed = {
    BF16: madeWeights(library, GgmlType.BF16, columns, inner),
    Q8_0: madeWeights(library, GgmlType.Q8_0, columns, inner),
  };
  const x = device.allocate(rows_max * inner * 4);
  const y = device.allocate(rows_max * columns * 4);
  const own: Operands = { device, machine, packed, x, y };
  const shape = { columns, inner };
  try {
    return [
      ...(['BF16', 'Q8_0'] as const).flatMap((type) =>
        few.map((rows) => fewRows(own, name, type, { rows, ...shape })),
      ),
      ...manyRows(own, name, shape, log),
    ];
  } finally {
    device.free(x);
    device.free(y);
    for (const memory of Object.values(packed)) library.freeHost(memory);
  }
}

/** Numbers of a size that multiply to numbers. */
function madeWeights(library: HybridGemm, type: number, n: number, k: number): Pointer {
  const bytes = library.packedBytes(type, n, k)!;
  const memory = library.allocateHost(bytes);
  const pattern = Uint16Array.from({ length: 2 ** 19 }, (_, at) => 0x3000 + ((at * 2654435761) >>> 23));
  const all = memoryAt(memory, bytes);
  const part = new Uint8Array(pattern.buffer);
  for (let at = 0; at < bytes; at += part.length)
    all.set(part.subarray(0, Math.min(part.length, bytes - at)), at);
  return memory;
}

type Shape = Pick<Product, 'rows' | 'columns' | 'inner'>;

/** @returns undefined: this device has no room for the M tile */
function hybrid_s(
  own: Operands,
  type: 'BF16' | 'Q8_0',
  { rows, columns, inner }: Shape,
  setting: HybridSetting,
): number | undefined {
  const { device, packed, x, y } = own;
  const number = type === 'BF16' ? 30 : 8;
  const strides = { x_stride: inner, y_stride: columns };
  try {
    return best_s(rounds, () => {
      device.multiply({
        type: number,
        m: rows,
        n: columns,
        k: inner,
        packed: packed[type],
        x,
        y,
        ...strides,
        ...setting,
      });
      device.wait();
    });
  } catch (error) {
    if (error instanceof HybridGemmError && error.code === tile_refused) return undefined;
    throw error;
  }
}

function fewRows(own: Operands, name: string, type: 'BF16' | 'Q8_0', shape: Shape): BenchResult {
  const bytes = shape.columns * shape.inner * (type === 'BF16' ? 2 : 34 / 32);
  const ours = bytes / hybrid_s(own, type, shape, { alpha: 0, tile_rows: 16 })!;
  const { link_bytes_per_s } = own.machine;
  return {
    ...{
      what: `${name}, ${type}, rows: ${shape.rows}; weights read from host memory`,
      unit: 'GB/s',
      ours: ours / 1e9,
    },
    ...{ peer: 'a copy over the link', theirs: link_bytes_per_s / 1e9, ratio: ours / link_bytes_per_s },
    ...{ bar: `ratio ≥ ${link_share_min}`, holds: ours / link_bytes_per_s >= link_share_min },
  };
}

/** With every alpha and M tile; the quickest is held against what cuBLAS and the link allow. */
function manyRows(
  own: Operands,
  name: string,
  shape: Omit<Shape, 'rows'>,
  log: (line: string) => void,
): BenchResult[] {
  const cublas = openCublas(own.device);
  if (!cublas) log('cuBLAS cannot be loaded (libcublas.so on LD_LIBRARY_PATH): nothing is held against it');
  const weights = cublas && own.device.allocate(shape.columns * shape.inner * 2);
  try {
    return many.flatMap((rows) => {
      const product = { rows, ...shape };
      const flops = 2 * rows * shape.columns * shape.inner;
      const resident_s = cublas
        ? best_s(rounds, () => {
            cublas.multiply(rows, shape.columns, shape.inner, own.x, weights!, own.y);
            own.device.wait();
          })
        : undefined;
      return curve(own, name, product, flops, resident_s);
    });
  } finally {
    if (weights !== undefined) own.device.free(weights);
    cublas?.close();
  }
}

function curve(
  own: Operands,
  name: string,
  product: Shape,
  flops: number,
  resident_s: number | undefined,
): BenchResult[] {
  const measured = tile_rows_choices.flatMap((tile_rows) =>
    alphas.flatMap((alpha) => {
      const seconds = hybrid_s(own, 'BF16', product, { alpha, tile_rows });
      return seconds === undefined ? [] : [{ alpha, tile_rows, rate: flops / seconds }];
    }),
  );
  const best = measured.reduce((top, one) => (one.rate > top.rate ? one : top));
  const what = `${name}, BF16, rows: ${product.rows}`;
  const stated = { peer: '', theirs: null, ratio: null, bar: '', holds: null };
  const rows: BenchResult[] = measured
    .filter(({ tile_rows }) => tile_rows === best.tile_rows)
    .map(({ alpha, tile_rows, rate }) => ({
      what: `${what}; M tile ${tile_rows}, alpha ${alpha}`,
      unit: 'TFLOP/s',
      ours: rate / 1e12,
      ...stated,
    }));
  // A byte of weights over the link is good for as many FLOP as there are rows, in BF16.
  const by_link = product.rows * own.machine.link_bytes_per_s;
  const floor = Math.min(by_link, resident_s === undefined ? Number.POSITIVE_INFINITY : flops / resident_s);
  const ratio = best.rate / floor;
  rows.push({
    ...{
      what: `${what}; the quickest: M tile ${best.tile_rows}, alpha ${best.alpha}`,
      unit: 'TFLOP/s',
      ours: best.rate / 1e12,
    },
    peer:
      floor < by_link
        ? 'cuBLAS on weights of the device'
        : resident_s === undefined
          ? 'the link alone, without cuBLAS'
          : 'the link',
    ...{ theirs: floor / 1e12, ratio, bar: `ratio ≥ ${large_share_min}`, holds: ratio >= large_share_min },
  });
  if (resident_s !== undefined) rows.push(decided(own, what, product, flops, resident_s, best.rate));
  return rows;
}

/** What the decision chooses, by what was measured of this machine. */
function decided(
  own: Operands,
  what: string,
  product: Shape,
  flops: number,
  resident_s: number,
  best: number,
): BenchResult {
  const slice = {
    ...own.machine,
    flops_per_s: flops / resident_s,
    processors: own.device.figures.processors,
  };
  const { alpha, tile_rows } = bestHybrid({ ...product, bytes_per_weight: 2 }, slice);
  const seconds = hybrid_s(own, 'BF16', product, { alpha, tile_rows });
  const ours = seconds === undefined ? 0 : flops / seconds;
  return {
    ...{
      what: `${what}; as decided: M tile ${tile_rows}, alpha ${alpha.toFixed(2)}`,
      unit: 'TFLOP/s',
      ours: ours / 1e12,
    },
    ...{ peer: 'the quickest setting', theirs: best / 1e12, ratio: ours / best, bar: '', holds: null },
  };
}

function gb(bytes_per_s: number): string {
  return (bytes_per_s / 1e9).toFixed(1);
}
