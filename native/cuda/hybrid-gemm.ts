/**
 * Products on a CUDA device whose weights stay in host memory (native/cuda, in CUDA C++). The build compiles them where
 * there is nvcc; where there was none, there are none.
 */
import { existsSync } from 'node:fs';
import koffi from 'koffi';
import { type Bound, bind, type Pointer, type PointerArgument, type SignatureTable } from '../signature.ts';
import { hybridGemmPath } from './library-file.ts';

/** See native/cuda/hybrid-gemm.h. */
const table = {
  hg_words: ['str', 'i32'],
  hg_device_count: ['i32'],
  hg_open: ['i32', 'str', 'ptr'],
  hg_close: ['void', 'ptr'],
  hg_describe: ['i32', 'ptr', 'ptr'],
  hg_packed_bytes: ['i64', 'i32', 'i64', 'i64'],
  hg_pack: ['i32', 'i32', 'i64', 'i64', 'ptr', 'ptr'],
  hg_host_allocate: ['i32', 'i64', 'ptr'],
  hg_host_free: ['i32', 'ptr'],
  hg_allocate: ['i32', 'ptr', 'i64', 'ptr'],
  hg_free: ['i32', 'ptr', 'ptr'],
  hg_copy: ['i32', 'ptr', 'ptr', 'ptr', 'i64'],
  hg_multiply: [
    ...(['i32', 'ptr', 'i32', 'i64', 'i64', 'i64', 'ptr'] as const),
    ...(['ptr', 'i64', 'ptr', 'i64', 'f64', 'i32'] as const),
  ],
  hg_wait: ['i32', 'ptr'],
  hg_stream: ['ptr', 'ptr'],
  hg_link_bytes: ['i64', 'ptr'],
} as const satisfies SignatureTable;
type Functions = Bound<typeof table>;

/** Numbers of a type of ggml. */
type HybridWeightType = 8 | 30;

/** Why a call did not work, in the library's words and those of the CUDA runtime. */
export class HybridGemmError extends Error {
  override readonly name = 'HybridGemmError';
  readonly code: number;
  constructor(call: string, code: number, words: string) {
    super(`${call}: ${words} (${code})`);
    this.code = code;
  }
}

/** HG_ERROR_TILE: this device has too little shared memory for the M tile. */
export const tile_refused = 4;

export interface HybridMultiplication {
  /** GgmlType.Q8_0 or GgmlType.BF16. */
  type: HybridWeightType;
  /** Rows of x, rows of weights, and what both have in each. */
  m: number;
  n: number;
  k: number;
  /** What `HybridGemm.pack` wrote, in page-locked memory. */
  packed: PointerArgument;
  /** Floats on the device, and from one row to the next. */
  x: PointerArgument;
  x_stride: number;
  y: PointerArgument;
  y_stride: number;
  /** `HybridSetting` of solver/streaming/hybrid-product.ts. */
  alpha: number;
  tile_rows: number;
}

const loaded = new Map<string, HybridGemm>();

/** The library, loaded once a process; undefined where it was not built. It needs no driver to be loaded. */
export function loadHybridGemm(path = hybridGemmPath): HybridGemm | undefined {
  let known = loaded.get(path);
  if (!known && existsSync(path)) {
    known = new HybridGemm(path);
    loaded.set(path, known);
  }
  return known;
}

/** The library in this process: what needs no device, and the way to one. */
export class HybridGemm {
  readonly path: string;
  readonly #functions: Functions;

  constructor(path: string) {
    this.path = path;
    this.#functions = bind(koffi.load(path), table);
  }

  /** Devices of CUDA that this process sees; 0 without a driver. */
  get devices(): number {
    return this.#functions.hg_device_count();
  }

  /**
   * @param pci_bus_id absent: the first device
   * @throws HybridGemmError
   */
  open(pci_bus_id?: string): HybridDevice {
    const opened = new BigUint64Array(1);
    this.#check('hg_open', this.#functions.hg_open(pci_bus_id ?? null, opened));
    return new HybridDevice(this.#functions, opened[0]!);
  }

  /** Bytes of packed weights; undefined: no such type or shape. */
  packedBytes(type: number, n: number, k: number): number | undefined {
    const bytes = Number(this.#functions.hg_packed_bytes(type, n, k));
    return bytes < 0 ? undefined : bytes;
  }

  /**
   * @param rows n rows of k weights, as in a GGUF file
   * @param packed `packedBytes`, at a multiple of 128
   * @throws HybridGemmError
   */
  pack(type: number, n: number, k: number, rows: PointerArgument, packed: PointerArgument): void {
    this.#check('hg_pack', this.#functions.hg_pack(type, n, k, rows, packed));
  }

  /** Page-locked memory that devices read where it is. @throws HybridGemmError: the system locks no more */
  allocateHost(bytes: number): Pointer {
    const memory = new BigUint64Array(1);
    this.#check('hg_host_allocate', this.#functions.hg_host_allocate(bytes, memory));
    return memory[0]!;
  }

  /** A device that failed gives nothing back: what failed has been said, and the memory goes with the process. */
  freeHost(memory: Pointer): void {
    this.#functions.hg_host_free(memory);
  }

  #check(call: string, code: number): void {
    check(this.#functions, call, code);
  }
}

/** A device with a stream of its own: what is begun here runs in order, and beside what others do there. */
export class HybridDevice {
  readonly figures: { processors: number; shared_bytes: number; architecture: number; integrated: boolean };
  readonly #functions: Functions;
  readonly #device: Pointer;

  constructor(functions: Functions, device: Pointer) {
    this.#functions = functions;
    this.#device = device;
    const figures = new Int32Array(4);
    this.#check('hg_describe', functions.hg_describe(device, figures));
    const [processors, shared_bytes, architecture, integrated] = figures as unknown as [
      number,
      number,
      number,
      number,
    ];
    this.figures = { processors, shared_bytes, architecture, integrated: integrated !== 0 };
  }

  /** Begins a product; what it reads has been written, and stays until `wait`. @throws HybridGemmError */
  multiply(own: HybridMultiplication): void {
    const { type, m, n, k, packed, x, x_stride, y, y_stride, alpha, tile_rows } = own;
    const code = this.#functions.hg_multiply(
      this.#device,
      type,
      m,
      n,
      k,
      packed,
      x,
      x_stride,
      y,
      y_stride,
      alpha,
      tile_rows,
    );
    this.#check('hg_multiply', code);
  }

  /** Until all that was begun is done. @throws HybridGemmError */
  wait(): void {
    this.#check('hg_wait', this.#functions.hg_wait(this.#device));
  }

  /** Memory of the device. @throws HybridGemmError */
  allocate(bytes: number): Pointer {
    const memory = new BigUint64Array(1);
    this.#check('hg_allocate', this.#functions.hg_allocate(this.#device, bytes, memory));
    return memory[0]!;
  }

  /** As `HybridGemm.freeHost`. */
  free(memory: Pointer): void {
    this.#functions.hg_free(this.#device, memory);
  }

  /** From or to the device, whole when it returns. @throws HybridGemmError */
  copy(to: PointerArgument, from: PointerArgument, bytes: number): void {
    this.#check('hg_copy', this.#functions.hg_copy(this.#device, to, from, bytes));
  }

  /** For libraries of CUDA that are to compute in turn with these products. */
  get stream(): Pointer | null {
    return this.#functions.hg_stream(this.#device);
  }

  /** Bytes of weights that blocks asked for since it was opened. */
  get link_bytes(): number {
    return Number(this.#functions.hg_link_bytes(this.#device));
  }

  close(): void {
    this.#functions.hg_close(this.#device);
  }

  #check(call: string, code: number): void {
    check(this.#functions, call, code);
  }
}

/** @throws HybridGemmError */
function check(functions: Functions, call: string, code: number): void {
  if (code !== 0) throw new HybridGemmError(call, code, functions.hg_words(code) ?? '');
}
