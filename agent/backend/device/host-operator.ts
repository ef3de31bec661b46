import koffi from 'koffi';
import {
  addressOf,
  type Ggml,
  type GgmlType,
  ggmlStatusSuccess,
  tensorLayout,
} from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { operator_bytes, operator_offset, sources_max, writtenSource } from './operator-copy.ts';

const dimensions = 4;

interface HostCopy {
  /** Of the graph, on the device. */
  tensor: Pointer;
  copy: Pointer;
  /** Memory of the copy; grows. */
  bytes: Uint8Array;
}

/**
 * One operator of a graph that the device has no kernel for, on the CPU: what it reads comes from the device before
 * each run, and its result goes there after it. Of a matrix whose rows are picked only those rows come, so that a token
 * embedding in a type that the device cannot pick from costs a row a token. For one thread.
 */
export class HostOperator {
  /** In words: `GET_ROWS (q4_K)`. */
  readonly description: string;
  readonly #ggml: Ggml;
  readonly #context: Pointer;
  readonly #graph: Pointer;
  readonly #sources: HostCopy[] = [];
  readonly #result: HostCopy;
  readonly #picks_rows: boolean;

  /** @throws HpcserveError E_ENGINE_MODEL: it writes into one of its sources, and so into memory of the device */
  constructor(ggml: Ggml, node: Pointer) {
    this.#ggml = ggml;
    const sources = Array.from({ length: sources_max }, (_, index) =>
      pointer(node, tensorLayout.src + 8 * index),
    );
    const name = ggml.ggml_op_desc(node) ?? '?';
    const type = sources[0] ? ggml.ggml_type_name(typeOf(sources[0])) : undefined;
    this.description = type ? `${name} (${type})` : name;
    if (!canRunOnHost(node))
      throw new HpcserveError('E_ENGINE_MODEL', {
        what: `${this.description} cannot be computed on the CPU instead`,
      });
    this.#picks_rows =
      name === 'GET_ROWS' && dimension(sources[0]!, 2) === 1 && dimension(sources[1]!, 1) === 1;
    const tensors = sources.filter((source) => source !== null).length + 1;
    this.#context = ggml.ggml_init({
      mem_size:
        tensors * Number(ggml.ggml_tensor_overhead()) + Number(ggml.ggml_graph_overhead_custom(16, false)),
      mem_buffer: null,
      no_alloc: true,
    })!;
    this.#result = this.#copyOf(node);
    koffi.encode(
      this.#result.copy,
      operator_offset,
      koffi.array('uint8_t', operator_bytes),
      koffi.decode(node, operator_offset, koffi.array('uint8_t', operator_bytes)),
    );
    sources.forEach((source, index) => {
      if (source === null) return;
      const host = this.#copyOf(source);
      this.#sources.push(host);
      koffi.encode(this.#result.copy, tensorLayout.src + 8 * index, 'void *', host.copy);
    });
    this.#graph = ggml.ggml_new_graph_custom(this.#context, 16, false)!;
    ggml.ggml_build_forward_expand(this.#graph, this.#result.copy);
  }

  /**
   * @param backend of the CPU
   * @throws HpcserveError E_ENGINE_COMPUTE
   */
  run(backend: Pointer): void {
    const ggml = this.#ggml;
    if (this.#picks_rows) this.#fetchRows();
    else for (const source of this.#sources) this.#fetch(source);
    this.#shape(this.#result);
    const status = ggml.ggml_backend_graph_compute(backend, this.#graph);
    if (status !== ggmlStatusSuccess)
      throw new HpcserveError('E_ENGINE_COMPUTE', {
        what: `ggml ended ${this.description} with status ${status}`,
      });
    const { tensor, bytes } = this.#result;
    ggml.ggml_backend_tensor_set(tensor, bytes, 0, ggml.ggml_nbytes(tensor));
  }

  free(): void {
    this.#ggml.ggml_free(this.#context);
  }

  #copyOf(tensor: Pointer): HostCopy {
    const copy = this.#ggml.ggml_new_tensor_1d(this.#context, typeOf(tensor), 256)!;
    return { tensor, copy, bytes: new Uint8Array(0) };
  }

  #fetch(source: HostCopy): void {
    this.#shape(source);
    this.#ggml.ggml_backend_tensor_get(source.tensor, source.bytes, 0, this.#ggml.ggml_nbytes(source.tensor));
  }

  /** The rows that are picked, one behind the other, and the numbers that they have there. */
  #fetchRows(): void {
    const ggml = this.#ggml;
    const [matrix, ids] = this.#sources as [HostCopy, HostCopy];
    this.#fetch(ids);
    const count = dimension(ids.tensor, 0);
    const picked = new Int32Array(ids.bytes.buffer, 0, count);
    const row_bytes = Number(koffi.decode(matrix.tensor, tensorLayout.nb + 8, 'size_t'));
    this.#shape(matrix, count * row_bytes);
    koffi.encode(matrix.copy, tensorLayout.ne + 8, 'int64_t', count);
    picked.forEach((row, index) => {
      const into = matrix.bytes.subarray(index * row_bytes, (index + 1) * row_bytes);
      ggml.ggml_backend_tensor_get(matrix.tensor, into, row * row_bytes, row_bytes);
      picked[index] = index;
    });
  }

  /** As many rows as the tensor has at this run, where it has them in memory. */
  #shape(host: HostCopy, needed_bytes = Number(this.#ggml.ggml_nbytes(host.tensor))): void {
    for (let index = 0; index < dimensions; index++) {
      koffi.encode(host.copy, tensorLayout.ne + 8 * index, 'int64_t', dimension(host.tensor, index));
      const stride = koffi.decode(host.tensor, tensorLayout.nb + 8 * index, 'size_t') as number;
      koffi.encode(host.copy, tensorLayout.nb + 8 * index, 'size_t', stride);
    }
    if (host.bytes.length < needed_bytes) host.bytes = new Uint8Array(needed_bytes);
    koffi.encode(host.copy, tensorLayout.data, 'void *', addressOf(host.bytes));
  }
}

/** An operator whose result is nothing that it reads: all of it can be carried back. */
export function canRunOnHost(node: Pointer): boolean {
  const sources = Array.from({ length: sources_max }, (_, index) =>
    pointer(node, tensorLayout.src + 8 * index),
  );
  return writtenSource(node, sources) === undefined;
}

function typeOf(tensor: Pointer): GgmlType {
  return koffi.decode(tensor, 0, 'int32_t') as GgmlType;
}

function dimension(tensor: Pointer, index: number): number {
  return Number(koffi.decode(tensor, tensorLayout.ne + 8 * index, 'int64_t'));
}

function pointer(tensor: Pointer, offset: number): Pointer | null {
  return koffi.decode(tensor, offset, 'void *') as Pointer | null;
}
