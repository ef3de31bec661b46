import { readSync } from 'node:fs';
import koffi from 'koffi';
import {
  type HybridDevice,
  type HybridGemm,
  HybridGemmError,
  tile_refused,
} from '../../native/cuda/hybrid-gemm.ts';
import { ggmlTypeByName } from '../../native/formats/ggml-types.ts';
import { addressOf, type Ggml, GgmlType, tensorLayout } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import {
  type HybridSetting,
  type SliceFigures,
  tile_rows_choices,
} from '../../solver/streaming/hybrid-product.ts';
import { chooseKernel, type StreamedKernel } from '../../solver/streaming/kernel-choice.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { GraphOperations } from '../backend/compute.ts';
import type { PlannedWeight } from '../engine/weight-plan.ts';
import type { FileVersion } from '../memory/file-version.ts';
import { OpenModelFile } from '../memory/load/open-model-file.ts';
import type { PartWeights } from './part-weights.ts';

/**
 * Difference from the backend's own product, as a share of its size, both as root mean squares. Both round what they
 * multiply, to 16 or 8 bits; a product that is wrong is off by as much as it is large.
 */
const error_max = 0.02;

/** Where the link takes at least this share of a product's time, the product says what it gives. */
const waiting_share = 0.9;

/** `waits`: the link decides how long it takes. */
type Going = HybridSetting & { waits: boolean };

/** What a device reaches; the link is measured elsewhere. */
export type ComputeRates = Omit<SliceFigures, 'link_bytes_per_s'>;

/** A matrix of a part that is brought again and again. */
interface HostMatrix {
  weight: PlannedWeight;
  type: 8 | 30;
  /** Rows of weights, and what is in each. */
  n: number;
  k: number;
  /** In page-locked memory, as the library has it; absent: not yet. */
  packed?: Pointer;
  /** How the next product goes about it; absent: the weights come into the ring, and the backend multiplies. */
  kernel?: Extract<StreamedKernel, { kernel: 'hybrid' }> | undefined;
  /** A graph has a product with it that is the backend's. */
  barred?: true;
}

export interface HybridProductsOptions {
  ggml: Ggml;
  library: HybridGemm;
  device: HybridDevice;
  rates: ComputeRates;
  /** For copies, where they serve better. */
  arena_bytes: number;
  /** Of host memory, what packed weights may take. */
  locked_bytes: number;
  /** What the link gives; undefined: not known yet. */
  link_bytes_per_s(): number | undefined;
  /** Of that, what a product counts on where it has the choice: others read over the link, too. */
  counted_bytes_per_s(): number | undefined;
  /** A product read so many bytes over the link. @param seconds for which it did nothing but wait for them */
  on_read(bytes: number, seconds?: number): void;
}

/**
 * Products with weights that do not stay on the device, by HybridGEMM: it reads them over the link as it multiplies, so
 * that they need not be copied before. Each shape is first compared with the backend's own product; what differs turns
 * all of it off, and weights are copied as before.
 *
 * Sums go in another order than the backend's, so tokens are those of these products, not those of a resident model.
 */
export class HybridProducts implements GraphOperations {
  readonly #own: HybridProductsOptions;
  readonly #byTensor = new Map<Pointer, HostMatrix>();
  readonly #byPart = new Map<PartWeights, HostMatrix[]>();
  /** Shapes whose product was compared. */
  readonly #proven = new Set<string>();
  #unpacked: { matrix: HostMatrix; version: FileVersion }[] = [];
  #off: string | undefined;
  /** Why some weights have no packed copy. */
  #short: string | undefined;
  #products = 0;
  /** What packed weights take. */
  #locked_bytes = 0;

  constructor(own: HybridProductsOptions) {
    this.#own = own;
  }

  /** Why weights are copied though there is a library; undefined: it is used, or is about to be. */
  get because(): string | undefined {
    return this.#off ?? this.#short;
  }

  /** Products that read host memory so far. */
  get products(): number {
    return this.#products;
  }

  /** A part that is brought again and again: its matrices of types that the library has may be multiplied here. */
  register(part: PartWeights): void {
    const matrices = part.matrices.flatMap(({ weight, tensor }): HostMatrix[] => {
      const type = ggmlTypeByName(weight.type).id;
      if (type !== GgmlType.Q8_0 && type !== GgmlType.BF16) return [];
      const [k, n] = weight.shape as [number, number];
      const matrix: HostMatrix = { weight, type: type as 8 | 30, n, k };
      this.#byTensor.set(tensor, matrix);
      return [matrix];
    });
    this.#byPart.set(part, matrices);
    for (const matrix of matrices) this.#unpacked.push({ matrix, version: part.version });
    part.keepWhole(matrices.map(({ weight }) => weight));
  }

  /**
   * How the products of a part will go about it, for a batch of so many rows.
   * @returns weights that need not be brought
   */
  choose(part: PartWeights, rows: number): ReadonlySet<PlannedWeight> {
    const spared = new Set<PlannedWeight>();
    const { arena_bytes, rates } = this.#own;
    const link_bytes_per_s = this.#own.counted_bytes_per_s();
    for (const matrix of this.#byPart.get(part) ?? []) {
      matrix.kernel = undefined;
      if (this.#off !== undefined || link_bytes_per_s === undefined) continue;
      if (matrix.packed === undefined || matrix.barred || !this.#proven.has(shapeOf(matrix))) continue;
      const { n, k, weight } = matrix;
      const bytes = weight.parts.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
      const product = { rows: Math.max(1, rows), columns: n, inner: k, bytes_per_weight: bytes / (n * k) };
      const chosen = chooseKernel(product, { ...rates, link_bytes_per_s }, { arena_bytes });
      if (chosen.kernel !== 'hybrid') continue;
      matrix.kernel = chosen;
      spared.add(weight);
    }
    return spared;
  }

  take(node: Pointer, ordinary: () => void): (() => void) | undefined {
    const { ggml } = this.#own;
    if (ggml.ggml_op_desc(node) !== 'MUL_MAT') return undefined;
    const matrix = this.#byTensor.get(sourceOf(node, 0)!);
    if (!matrix) return undefined;
    if (isPlainRows(sourceOf(node, 1)!)) return () => this.#run(matrix, node, ordinary);
    // From now on it is brought; what has been left out already is not there to multiply by.
    matrix.barred = true;
    return () => {
      if (!matrix.kernel) ordinary();
      else
        throw new HpcserveError('E_ENGINE_COMPUTE', {
          what: `weights of ${shapeOf(matrix)} in host memory are multiplied by rows that do not lie side by side`,
        });
    };
  }

  /**
   * Once a step: the next matrix is packed, so that no step waits for all of them.
   * @throws HpcserveError E_POOL_LOAD: the file has changed
   */
  packNext(): void {
    const next = this.#off === undefined ? this.#unpacked.shift() : undefined;
    if (!next) return;
    const { library } = this.#own;
    const { matrix, version } = next;
    const { type, n, k } = matrix;
    const bytes = library.packedBytes(type, n, k);
    if (bytes === undefined) return;
    if (this.#locked_bytes + bytes > this.#own.locked_bytes) {
      const mib = this.#own.locked_bytes / 2 ** 20;
      this.#stopPacking(`the plan has ${mib.toFixed(1)} MiB of host memory for page-locked copies`);
      return;
    }
    let memory: Pointer | undefined;
    try {
      memory = library.allocateHost(bytes);
      library.pack(type, n, k, rowsOf(matrix, version), memory);
      matrix.packed = memory;
      this.#locked_bytes += bytes;
    } catch (error) {
      if (memory !== undefined && matrix.packed === undefined) library.freeHost(memory);
      if ((error as Error).name !== 'HybridGemmError') throw error;
      this.#stopPacking((error as Error).message);
    }
  }

  /** Weights that have their memory are read in place as before. */
  #stopPacking(because: string): void {
    this.#unpacked = [];
    this.#short = `some weights are copied, and not read in place: ${because}`;
  }

  free(): void {
    for (const matrix of this.#byTensor.values())
      if (matrix.packed !== undefined) this.#own.library.freeHost(matrix.packed);
    this.#byTensor.clear();
    this.#byPart.clear();
    this.#own.device.close();
  }

  #run(matrix: HostMatrix, node: Pointer, ordinary: () => void): void {
    if (matrix.kernel) {
      const { alpha, tile_rows, cost, seconds } = matrix.kernel;
      const link_s = cost.link_bytes / (this.#own.link_bytes_per_s() ?? Number.POSITIVE_INFINITY);
      const waits = link_s >= waiting_share * seconds;
      this.#multiply(matrix, node, this.#addressOf(node), { alpha, tile_rows, waits });
      this.#products++;
      return;
    }
    ordinary();
    const isNew = matrix.packed !== undefined && !this.#proven.has(shapeOf(matrix));
    if (this.#off === undefined && isNew) this.#prove(matrix, node);
  }

  /** @throws HpcserveError E_DEVICE_FAILED: its weights are nowhere else now */
  #multiply(matrix: HostMatrix, node: Pointer, y: Pointer, { alpha, tile_rows, waits }: Going): void {
    const { device, on_read } = this.#own;
    const { type, n, k, packed } = matrix;
    const x = sourceOf(node, 1)!;
    const m = extentOf(node, 1);
    const before = device.link_bytes;
    const began_ms = performance.now();
    const own = { type, m, n, k, packed: packed!, x: this.#addressOf(x), x_stride: strideOf(x, 1) / 4, y };
    try {
      for (let tile = tile_rows; ; tile /= 2) {
        try {
          device.multiply({ ...own, y_stride: n, alpha, tile_rows: tile });
          break;
        } catch (error) {
          // The device has too little memory on its chip for so large a tile; a smaller one gives the same bits.
          const isTooLarge = error instanceof HybridGemmError && error.code === tile_refused;
          if (!isTooLarge || tile <= tile_rows_choices[0]) throw error;
        }
      }
      device.wait();
    } catch (error) {
      throw new HpcserveError('E_DEVICE_FAILED', {
        what: `the product of ${shapeOf(matrix)} with weights in host memory failed`,
        because: (error as Error).message,
        cause: error,
      });
    }
    on_read(device.link_bytes - before, waits ? (performance.now() - began_ms) / 1000 : undefined);
  }

  /** What the backend has just computed, once more, beside it. */
  #prove(matrix: HostMatrix, node: Pointer): void {
    const { device, ggml } = this.#own;
    const [n, m] = [extentOf(node, 0), extentOf(node, 1)];
    const [theirs, ours] = [new Float32Array(m * n), new Float32Array(m * n)];
    ggml.ggml_backend_tensor_get(node, theirs, 0, theirs.byteLength);
    let memory: Pointer | undefined;
    try {
      memory = device.allocate(ours.byteLength);
      // Columns of either sort.
      this.#multiply(matrix, node, memory, { alpha: 0.5, tile_rows: tile_rows_choices[0], waits: false });
      device.copy(addressOf(ours), memory, ours.byteLength);
    } catch (error) {
      this.#turnOff(`HybridGEMM is off, and weights are copied: ${wordsOf(error)}`);
      return;
    } finally {
      if (memory !== undefined) device.free(memory);
    }
    const error = differenceOf(ours, theirs);
    if (error <= error_max) this.#proven.add(shapeOf(matrix));
    else
      this.#turnOff(
        `HybridGEMM is off, and weights are copied: its product of ${shapeOf(matrix)} differs from the backend's by ${(100 * error).toFixed(1)} %`,
      );
  }

  #turnOff(because: string): void {
    this.#off = because;
    this.#unpacked = [];
  }

  #addressOf(tensor: Pointer): Pointer {
    return this.#own.ggml.ggml_get_data(tensor)!;
  }
}

function shapeOf({ weight, n, k }: HostMatrix): string {
  return `${weight.type} ${n} × ${k}`;
}

function rowsOf({ weight }: HostMatrix, version: FileVersion): Uint8Array {
  const source = new OpenModelFile(version);
  try {
    const rows = new Uint8Array(weight.parts.reduce((sum, { size_bytes }) => sum + size_bytes, 0));
    let offset = 0;
    for (const { offset_bytes, size_bytes } of weight.parts) {
      for (let done = 0; done < size_bytes; ) {
        const count = readSync(
          source.descriptor,
          rows,
          offset + done,
          size_bytes - done,
          offset_bytes + done,
        );
        if (count === 0)
          throw new HpcserveError('E_POOL_LOAD', {
            what: `${version.path} ended while its weights were read`,
            because: `byte ${offset_bytes + done} was asked for and is not there`,
          });
        done += count;
      }
      offset += size_bytes;
    }
    source.check();
    return rows;
  } finally {
    source.close();
  }
}

/** Root mean square of the difference, as a share of that of `b`. */
function differenceOf(a: Float32Array, b: Float32Array): number {
  let [difference, size] = [0, 0];
  for (let at = 0; at < a.length; at++) {
    difference += (a[at]! - b[at]!) ** 2;
    size += b[at]! ** 2;
  }
  // Not a number is no small difference.
  return size === 0 ? (difference === 0 ? 0 : 1) : Math.sqrt(difference / size);
}

function wordsOf(error: unknown): string {
  return error instanceof HpcserveError
    ? [error.message, ...error.because].join(': ')
    : (error as Error).message;
}

function isPlainRows(x: Pointer): boolean {
  const isOne = (dimension: number): boolean => extentOf(x, dimension) === 1;
  return koffi.decode(x, 0, 'int32_t') === GgmlType.F32 && strideOf(x, 0) === 4 && isOne(2) && isOne(3);
}

function sourceOf(node: Pointer, index: number): Pointer | null {
  return koffi.decode(node, tensorLayout.src + 8 * index, 'void *') as Pointer | null;
}

function extentOf(tensor: Pointer, dimension: number): number {
  return Number(koffi.decode(tensor, tensorLayout.ne + 8 * dimension, 'int64_t'));
}

function strideOf(tensor: Pointer, dimension: number): number {
  return Number(koffi.decode(tensor, tensorLayout.nb + 8 * dimension, 'size_t'));
}
