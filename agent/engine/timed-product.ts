import { ggmlTypeByName } from '../../native/formats/ggml-types.ts';
import { type Ggml, GgmlType, memoryAt } from '../../native/ggml.ts';
import { adviseHugePages } from '../../native/huge-pages.ts';
import {
  multiply,
  multiplyExperts,
  type PackedProducts,
  packedProducts,
} from '../../native/packed-products.ts';
import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Compute } from '../backend/compute.ts';

/** A number in every type of weight that is neither zero nor large: 0x3c3c is 1.06 as F16, and 0.011 as BF16. */
const fill_byte = 0x3c;

/** Rows of `k` elements in a type of ggml, which make `n` columns of the result. */
export interface TimedMatrix {
  type: string;
  n: number;
  k: number;
  /** Of a mixture: so many matrices, of which each row takes `used`. */
  experts?: number;
  used?: number;
}

/** A product by one matrix after another, so that weights come from memory as in a model. */
export class TimedProduct {
  readonly #ggml: Ggml;
  readonly #compute: Compute;
  readonly #context: Pointer;
  readonly #buffer: Pointer;
  readonly #allocators: Pointer[] = [];
  readonly #matrices: Pointer[];
  readonly #matrix: TimedMatrix;
  readonly #packed: PackedProducts | undefined;
  /** By rows of the result. */
  readonly #graphs = new Map<number, Pointer>();

  /**
   * @param bufferType where the weights lie: one of ggml's, or ours
   * @param row_counts rows of the result that are to be timed
   * @param weight_bytes of all matrices together, at least of one
   * @param packed our products, in whose layout the weights may lie
   * @throws HpcserveError E_NATIVE_MEMORY
   */
  constructor(
    ggml: Ggml,
    compute: Compute,
    bufferType: Pointer,
    matrix: TimedMatrix,
    row_counts: readonly number[],
    weight_bytes: number,
    packed = packedProducts(ggml),
  ) {
    const { type, n, k, experts = 1 } = matrix;
    const id = ggmlTypeByName(type).id;
    const bytes = n * experts * Number(ggml.ggml_row_size(id, k));
    const count = Math.max(1, Math.round(weight_bytes / bytes));
    this.#ggml = ggml;
    this.#matrix = matrix;
    this.#packed = packed;
    this.#compute = compute;
    const nodes = 3 * count + 2;
    this.#context = ggml.ggml_init({
      mem_size:
        (count + row_counts.length * nodes) * Number(ggml.ggml_tensor_overhead()) +
        row_counts.length * Number(ggml.ggml_graph_overhead_custom(nodes, false)),
      mem_buffer: null,
      no_alloc: true,
    })!;
    this.#matrices = Array.from(
      { length: count },
      () => ggml.ggml_new_tensor_3d(this.#context, id, k, n, experts)!,
    );
    this.#buffer = this.#place(bufferType, new Uint8Array(bytes).fill(fill_byte));
    for (const m of row_counts) this.#graphs.set(m, this.#build(m, nodes));
  }

  /** @returns milliseconds of one product with `m` rows, one of `row_counts` */
  run_ms(m: number): number {
    const started = performance.now();
    this.#compute.open(this.#graphs.get(m)!).run();
    return (performance.now() - started) / this.#matrices.length;
  }

  free(): void {
    for (const allocator of this.#allocators) this.#ggml.ggml_gallocr_free(allocator);
    this.#ggml.ggml_backend_buffer_free(this.#buffer);
    this.#ggml.ggml_free(this.#context);
  }

  #place(bufferType: Pointer, source: Uint8Array): Pointer {
    const ggml = this.#ggml;
    const [first] = this.#matrices;
    const step = Math.ceil(Number(ggml.ggml_backend_buft_get_alloc_size(bufferType, first!)) / 64) * 64;
    const buffer = ggml.ggml_backend_buft_alloc_buffer(bufferType, this.#matrices.length * step);
    if (!buffer) {
      ggml.ggml_free(this.#context);
      throw new HpcserveError('E_NATIVE_MEMORY', {
        what: `no ${this.#matrices.length * step} bytes of memory to time a product in`,
      });
    }
    const base = ggml.ggml_backend_buffer_get_base(buffer)!;
    adviseHugePages(base, this.#matrices.length * step);
    for (const [index, matrix] of this.#matrices.entries()) {
      ggml.ggml_backend_tensor_alloc(buffer, matrix, base + BigInt(index * step));
      ggml.ggml_backend_tensor_set(matrix, source, 0, source.length);
    }
    return buffer;
  }

  #build(m: number, nodes: number): Pointer {
    const ggml = this.#ggml;
    const { k } = this.#matrix;
    const x = ggml.ggml_new_tensor_3d(this.#context, GgmlType.F32, k, 1, m)!;
    ggml.ggml_set_input(x);
    const ids = this.#matrix.experts === undefined ? undefined : this.#expertIds(m);
    const graph = ggml.ggml_new_graph_custom(this.#context, nodes, false)!;
    for (const matrix of this.#matrices)
      ggml.ggml_build_forward_expand(graph, this.#product(matrix, x, m, ids?.tensor));
    const allocator = ggml.ggml_gallocr_new(ggml.ggml_backend_cpu_buffer_type())!;
    this.#allocators.push(allocator);
    ggml.ggml_gallocr_alloc_graph(allocator, graph);
    memoryAt(ggml.ggml_get_data(x)!, 4 * k * m).fill(fill_byte);
    if (ids) memoryAt(ggml.ggml_get_data(ids.tensor)!, ids.values.byteLength).set(bytesOf(ids.values));
    return graph;
  }

  #product(matrix: Pointer, x: Pointer, m: number, ids: Pointer | undefined): Pointer {
    const ggml = this.#ggml;
    const by = [false, this.#packed] as const;
    if (ids !== undefined) return multiplyExperts(ggml, this.#context, [matrix], x, ids, ...by)[0]!;
    const rows = ggml.ggml_reshape_2d(this.#context, x, this.#matrix.k, m);
    return multiply(ggml, this.#context, matrix, rows, ...by);
  }

  /** Experts of each row, different ones, which stay where they are for the next run. */
  #expertIds(m: number): { tensor: Pointer; values: Int32Array } {
    const { experts = 1, used = 1 } = this.#matrix;
    const tensor = this.#ggml.ggml_new_tensor_2d(this.#context, GgmlType.I32, used, m)!;
    this.#ggml.ggml_set_input(tensor);
    this.#ggml.ggml_set_output(tensor);
    const values = Int32Array.from(
      { length: used * m },
      (_, pair) => (7 * Math.floor(pair / used) + 3 * (pair % used)) % experts,
    );
    return { tensor, values };
  }
}

function bytesOf(values: Int32Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}
