/**
 * A kernel is proved before it serves: for one layout, type, row length and use, a few rows of made-up numbers are
 * multiplied by it, and the result is held against sums in double precision over the same rows as the library itself
 * turns them into floats. Libraries are built for CPUs that nobody tried them on; a kernel that is wrong here would
 * give every request wrong tokens, or none.
 *
 * One thread computes, and a layout is tried with as many rows as divide in the same way (see `row_group`), whole and
 * as a part that begins behind the first rows.
 */
import koffi from 'koffi';
import { ggmlRow_bytes, ggmlTypeByName } from '../../native/formats/ggml-types.ts';
import {
  addressOf,
  type Ggml,
  GgmlType,
  ggmlStatusSuccess,
  memoryAt,
  tensorLayout,
} from '../../native/ggml.ts';
import { multiply, multiplyExperts } from '../../native/packed-products.ts';
import type { Pointer } from '../../native/signature.ts';
import { convertedRowBytes, row_group } from './row-groups.ts';

export type KernelUse = 'matrix' | 'experts';

/** What a kernel is told apart by. */
export interface Kernel {
  /** ggml's name of the buffer type: `CPU` for plain memory, `CPU_REPACK`, `AMX`. */
  layout: string;
  type: string;
  /** Elements of a row. */
  width: number;
  /** Rows that are left where the tensor's are taken in groups of `row_group`. */
  rest: number;
  use: KernelUse;
}

/** Columns of the products: alone, as in decoding; a few; and many, with a rest in every size of tile. */
const column_counts = [1, 7, 37] as const;
/** Of many columns, those that are compared. */
const compared_columns = [0, 1, 6, 16, 35, 36] as const;
const expert_count = 2;
/** Numbers that are quantized once, in blocks; the rows are put together of them. */
const pool_row_elements = 256;
const pool_rows = 64;
const block_elements_min = 32;
/**
 * Largest error of a row, and of all rows, as a share of the results' own size. Activations are rounded to 8 bits
 * before they meet quantized weights, which makes 0.006 to 0.01; a row in the wrong place makes 1.4.
 */
const row_error_max = 0.1;
const error_max = 0.03;

/** Types that `ggml_quantize_chunk` makes; any other it answers by ending the process. */
const quantizable = new Set(
  [
    ['F32', 'F16', 'BF16', 'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'Q2_K', 'Q3_K', 'Q4_K', 'Q5_K', 'Q6_K'],
    ['IQ2_XXS', 'IQ2_XS', 'IQ2_S', 'IQ3_XXS', 'IQ3_S', 'IQ1_S', 'IQ1_M', 'IQ4_NL', 'IQ4_XS'],
    ['TQ1_0', 'TQ2_0', 'MXFP4'],
  ].flat(),
);

/** Whether numbers of this type can be made up; a layout of any other type cannot be proved. */
export function isProvable(type: string): boolean {
  return quantizable.has(type);
}

/**
 * Computes some milliseconds.
 * @returns what is wrong with the kernel; undefined: nothing
 */
export function whatIsWrongWith(ggml: Ggml, bufferType: Pointer, kernel: Kernel): string | undefined {
  const proof = new Proof(ggml, bufferType, kernel);
  try {
    return proof.run();
  } finally {
    proof.free();
  }
}

/** One kernel's product beside the same one in double precision; holds its memory until `free`. */
class Proof {
  readonly #ggml: Ggml;
  readonly #kernel: Kernel;
  readonly #bufferType: Pointer;
  readonly #backend: Pointer;
  readonly #context: Pointer;
  readonly #buffers: Pointer[] = [];
  readonly #rows: number;
  readonly #planes: number;
  readonly #activations: Float32Array;

  constructor(ggml: Ggml, bufferType: Pointer, kernel: Kernel) {
    this.#ggml = ggml;
    this.#kernel = kernel;
    this.#bufferType = bufferType;
    this.#rows = 2 * row_group + kernel.rest;
    this.#planes = kernel.use === 'experts' ? expert_count : 1;
    this.#activations = normalNumbers(kernel.width * Math.max(...column_counts), 7);
    this.#backend = ggml.ggml_backend_dev_init(ggml.cpuDevice, null)!;
    ggml.cpu.ggml_backend_set_n_threads(this.#backend, 1);
    this.#context = ggml.ggml_init({
      mem_size:
        64 * Number(ggml.ggml_tensor_overhead()) + 8 * Number(ggml.ggml_graph_overhead_custom(32, false)),
      mem_buffer: null,
      no_alloc: true,
    })!;
  }

  run(): string | undefined {
    const bytes = this.#makeRows();
    const plain = this.#ggml.ggml_backend_cpu_buffer_type()!;
    const numbers = this.#asFloats(this.#place(plain, bytes));
    const whole = this.#place(this.#bufferType, bytes);
    for (const columns of column_counts) {
      const wrong = this.#compare(this.#product(whole, columns), numbers, columns, 0);
      if (wrong !== undefined) return `${columns} columns: ${wrong}`;
    }
    const part = this.#part(whole);
    if (!part) return undefined;
    const columns = column_counts.at(-1)!;
    const wrong = this.#compare(this.#product(part, columns), numbers, columns, row_group);
    return wrong === undefined ? undefined : `a part of the rows: ${wrong}`;
  }

  free(): void {
    for (const buffer of this.#buffers) this.#ggml.ggml_backend_buffer_free(buffer);
    this.#ggml.ggml_free(this.#context);
    this.#ggml.ggml_backend_free(this.#backend);
  }

  /** Rows of the type, each of blocks that were quantized once, in an order of its own. */
  #makeRows(): Uint8Array {
    const ggml = this.#ggml;
    const { type, width } = this.#kernel;
    const traits = ggmlTypeByName(type);
    const source = normalNumbers(pool_rows * pool_row_elements, 3);
    const pool = new Uint8Array(pool_rows * ggmlRow_bytes(traits, pool_row_elements));
    const importance = ggml.ggml_quantize_requires_imatrix(traits.id)
      ? new Float32Array(pool_row_elements).fill(1)
      : null;
    ggml.ggml_quantize_chunk(
      traits.id,
      addressOf(source),
      addressOf(pool),
      0,
      pool_rows,
      pool_row_elements,
      importance && addressOf(importance),
    );
    // Short blocks are taken by several: a row is a multiple of 32 elements in every model.
    const block =
      (Math.max(traits.block_elements, block_elements_min) / traits.block_elements) * traits.block_bytes;
    const row_bytes = ggmlRow_bytes(traits, width);
    const rows = this.#rows * this.#planes;
    const bytes = new Uint8Array(rows * row_bytes);
    const random = numbersFrom(11);
    for (let offset = 0; offset < bytes.length; offset += block) {
      const from = (random() % (pool.length / block)) * block;
      bytes.set(pool.subarray(from, from + block), offset);
    }
    return bytes;
  }

  #place(bufferType: Pointer, bytes: Uint8Array): Pointer {
    const ggml = this.#ggml;
    const { type, width } = this.#kernel;
    const id = ggmlTypeByName(type).id;
    const tensor = ggml.ggml_new_tensor_3d(this.#context, id, width, this.#rows, this.#planes)!;
    const buffer = this.#take(bufferType, Number(ggml.ggml_backend_buft_get_alloc_size(bufferType, tensor)));
    ggml.ggml_backend_tensor_alloc(buffer, tensor, ggml.ggml_backend_buffer_get_base(buffer)!);
    ggml.ggml_backend_tensor_set(tensor, bytes, 0, bytes.length);
    return tensor;
  }

  #take(bufferType: Pointer, bytes: number): Pointer {
    const buffer = this.#ggml.ggml_backend_buft_alloc_buffer(bufferType, bytes);
    if (!buffer) throw new Error(`no ${bytes} bytes of ${this.#kernel.layout} memory to try a kernel in`);
    this.#buffers.push(buffer);
    return buffer;
  }

  /** The rows as the library reads them, [rows of all planes, width]. */
  #asFloats(plain: Pointer): Float32Array {
    const ggml = this.#ggml;
    const { width } = this.#kernel;
    const rows = this.#rows * this.#planes;
    const ids = ggml.ggml_new_tensor_1d(this.#context, GgmlType.I32, rows)!;
    const flat = ggml.ggml_reshape_2d(this.#context, plain, width, rows)!;
    const floats = ggml.ggml_get_rows(this.#context, flat, ids)!;
    return this.#compute(floats, [[ids, Int32Array.from({ length: rows }, (_, row) => row)]], rows * width);
  }

  /** [columns, rows] of the first plane, or of the plane that each column takes. */
  #product(matrix: Pointer, columns: number): Float32Array {
    const ggml = this.#ggml;
    const { width, use } = this.#kernel;
    const input = this.#activations.subarray(0, columns * width);
    const rows = Number(koffi.decode(matrix, tensorLayout.ne + 8, 'int64_t'));
    if (use === 'matrix') {
      const x = ggml.ggml_new_tensor_2d(this.#context, GgmlType.F32, width, columns)!;
      return this.#compute(multiply(ggml, this.#context, matrix, x), [[x, input]], rows * columns);
    }
    const x = ggml.ggml_new_tensor_3d(this.#context, GgmlType.F32, width, 1, columns)!;
    const ids = ggml.ggml_new_tensor_2d(this.#context, GgmlType.I32, 1, columns)!;
    const chosen = Int32Array.from({ length: columns }, (_, column) => planeOf(column));
    const [product] = multiplyExperts(ggml, this.#context, [matrix], x, ids);
    return this.#compute(
      product!,
      [
        [x, input],
        [ids, chosen],
      ],
      rows * columns,
    );
  }

  /** All rows but the first group, where the layout lets them be taken alone. */
  #part(whole: Pointer): Pointer | undefined {
    const ggml = this.#ggml;
    const { type, width, use, layout } = this.#kernel;
    if (use !== 'matrix' || layout === plainLayout) return undefined;
    const id = ggmlTypeByName(type).id;
    const row_bytes = convertedRowBytes(ggml, this.#bufferType, id, width, this.#rows);
    if (row_bytes === undefined) return undefined;
    const part = ggml.ggml_new_tensor_2d(this.#context, id, width, this.#rows - row_group)!;
    const address = ggml.ggml_get_data(whole)! + BigInt(row_group * row_bytes);
    ggml.ggml_backend_tensor_alloc(this.#buffers.at(-1)!, part, address);
    return part;
  }

  #compute(
    result: Pointer,
    inputs: readonly [tensor: Pointer, values: Float32Array | Int32Array][],
    elements: number,
  ): Float32Array {
    const ggml = this.#ggml;
    const graph = ggml.ggml_new_graph_custom(this.#context, 32, false)!;
    for (const [tensor] of inputs) ggml.ggml_set_input(tensor);
    ggml.ggml_set_output(result);
    ggml.ggml_build_forward_expand(graph, result);
    const allocator = ggml.ggml_gallocr_new(ggml.ggml_backend_cpu_buffer_type()!)!;
    try {
      if (!ggml.ggml_gallocr_alloc_graph(allocator, graph)) throw new Error('no memory to try a kernel in');
      for (const [tensor, values] of inputs)
        memoryAt(ggml.ggml_get_data(tensor)!, values.byteLength).set(
          new Uint8Array(values.buffer, values.byteOffset, values.byteLength),
        );
      const status = ggml.ggml_backend_graph_compute(this.#backend, graph);
      if (status !== ggmlStatusSuccess)
        throw new Error(`a kernel that was tried ended with status ${status}`);
      const bytes = memoryAt(ggml.ggml_get_data(result)!, 4 * elements).slice();
      return new Float32Array(bytes.buffer);
    } finally {
      ggml.ggml_gallocr_free(allocator);
    }
  }

  /** @param first of the rows of `numbers` that the product begins with */
  #compare(product: Float32Array, numbers: Float32Array, columns: number, first: number): string | undefined {
    const { width, use } = this.#kernel;
    const rows = product.length / columns;
    const compared = compared_columns.filter((column) => column < columns);
    const expected = new Float64Array(rows * compared.length);
    compared.forEach((column, index) => {
      const plane = use === 'experts' ? planeOf(column) : 0;
      for (let row = 0; row < rows; row++) {
        const begin = (plane * this.#rows + first + row) * width;
        let sum = 0;
        for (let at = 0; at < width; at++)
          sum += numbers[begin + at]! * this.#activations[column * width + at]!;
        expected[index * rows + row] = sum;
      }
    });
    const size = Math.sqrt(expected.reduce((sum, value) => sum + value * value, 0) / expected.length);
    let whole = 0;
    for (let row = 0; row < rows; row++) {
      let own = 0;
      compared.forEach((column, index) => {
        own += (product[column * rows + row]! - expected[index * rows + row]!) ** 2;
      });
      const error = Math.sqrt(own / compared.length) / size;
      // What is no number fails as well.
      if (!(error <= row_error_max)) return `row ${first + row} is off by ${error.toFixed(3)} of its size`;
      whole += own;
    }
    const error = Math.sqrt(whole / (rows * compared.length)) / size;
    return error <= error_max ? undefined : `rows are off by ${error.toFixed(3)} of their size`;
  }
}

/** ggml's name of plain memory. */
export const plainLayout = 'CPU';

function planeOf(column: number): number {
  return column % expert_count;
}

/** Whole numbers below 2³², the same everywhere (xorshift32). */
function numbersFrom(seed: number): () => number {
  let state = (seed * 2654435761) >>> 0;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    return state;
  };
}

/** About normally distributed: the sum of four, of variance 1. */
export function normalNumbers(count: number, seed: number): Float32Array {
  const random = numbersFrom(seed);
  const uniform = () => random() / 2 ** 32 - 0.5;
  return Float32Array.from(
    { length: count },
    () => Math.sqrt(3) * (uniform() + uniform() + uniform() + uniform()),
  );
}
