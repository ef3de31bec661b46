import { addressOf, type Ggml, tensorLayout } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';

const twoTo32 = 2 ** 32;

/**
 * Memory of one kept graph's tensor structs, inside the JavaScript heap, so that views can be moved between
 * runs by plain writes: where a view begins, and how many KV rows it spans.
 */
export class GraphMemory {
  readonly context: Pointer;
  readonly #ggml: Ggml;
  readonly #words: Uint32Array;
  readonly #base: number;

  constructor(ggml: Ggml, tensors_max: number) {
    this.#ggml = ggml;
    const bytes =
      (tensors_max + 8) * Number(ggml.ggml_tensor_overhead()) +
      Number(ggml.ggml_graph_overhead_custom(tensors_max, false));
    this.#words = new Uint32Array(Math.ceil(bytes / 4) + 16);
    const memory = addressOf(this.#words);
    this.#base = Number(memory);
    this.context = ggml.ggml_init({ mem_size: this.#words.byteLength, mem_buffer: memory, no_alloc: true })!;
  }

  /** Where a tensor's struct lies, for the methods below. */
  slot(tensor: Pointer): number {
    return (Number(tensor) - this.#base) / 4;
  }

  /** Moves a view to an offset of its source, which lies at `base`: backends go by its address or by the offset. */
  moveView(slot: number, base: number, offset_bytes: number): void {
    this.#write(slot + tensorLayout.data / 4, base + offset_bytes);
    this.#write(slot + tensorLayout.view_offs / 4, offset_bytes);
  }

  /** ne[dimension]. */
  setExtent(slot: number, dimension: number, extent: number): void {
    this.#write(slot + tensorLayout.ne / 4 + 2 * dimension, extent);
  }

  /** ne[dimension] of a tensor. */
  extent(tensor: Pointer, dimension: number): number {
    return this.#words[this.slot(tensor) + tensorLayout.ne / 4 + 2 * dimension]!;
  }

  /** nb[dimension] of a tensor. */
  stride(tensor: Pointer, dimension: number): number {
    return this.#words[this.slot(tensor) + tensorLayout.nb / 4 + 2 * dimension]!;
  }

  /** Reinterprets a view: the same memory as elements of another type, with its extents and strides in bytes. */
  retype(tensor: Pointer, type: number, extents: readonly number[], strides: readonly number[]): void {
    const slot = this.slot(tensor);
    this.#words[slot] = type;
    let extent = 1;
    let stride = 0;
    for (let dimension = 0; dimension < 4; dimension++) {
      stride = strides[dimension] ?? stride * extent;
      extent = extents[dimension] ?? 1;
      this.setExtent(slot, dimension, extent);
      this.setStride(slot, dimension, stride);
    }
  }

  /** nb[dimension]. */
  setStride(slot: number, dimension: number, bytes: number): void {
    this.#write(slot + tensorLayout.nb / 4 + 2 * dimension, bytes);
  }

  /** Makes the result of an operation a view into another tensor, as ggml's `_inplace` operations are. */
  writeInto(tensor: Pointer, target: Pointer, offset_bytes: number): void {
    const slot = this.slot(tensor);
    this.#write(slot + tensorLayout.view_src / 4, Number(target));
    this.#write(slot + tensorLayout.view_offs / 4, offset_bytes);
  }

  #write(word: number, value: number): void {
    this.#words[word] = value % twoTo32;
    this.#words[word + 1] = Math.floor(value / twoTo32);
  }

  free(): void {
    this.#ggml.ggml_free(this.context);
  }
}
