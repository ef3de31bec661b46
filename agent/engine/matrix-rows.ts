import koffi from 'koffi';
import { ggmlTypeByName } from '../../native/formats/ggml-types.ts';
import { type Ggml, tensorLayout } from '../../native/ggml.ts';
import { specialBufferTypes } from '../../native/packed-products.ts';
import type { Pointer } from '../../native/signature.ts';
import { convertedRowBytes, row_group } from './row-groups.ts';
import type { PlannedWeight } from './weight-plan.ts';

/**
 * Rows of a loaded matrix as a tensor of their own, for products that need only a part of a joined projection: a view,
 * where rows lie as in the file. Rows that were packed for a kernel may be longer (AMX: Q8_0 by an eighth), and ggml
 * places views by the row size of the file. So the part gets a tensor at the address where its packed rows begin, where
 * the layout is known to be made of groups of rows; where it is not, there is no such tensor and the whole product has
 * to be taken.
 */
export class MatrixRows {
  readonly #ggml: Ggml;
  readonly #contexts: Pointer[] = [];
  readonly #made = new Map<string, Pointer | undefined>();

  constructor(ggml: Ggml) {
    this.#ggml = ggml;
  }

  /**
   * @param matrix the tensor of `weight`, in memory; it must outlive the result
   * @returns shape [width, end − begin]; undefined where these rows cannot be addressed on their own
   */
  take(matrix: Pointer, weight: PlannedWeight, begin: number, end: number): Pointer | undefined {
    if (begin === 0 && end === weight.shape[1]) return matrix;
    const key = `${matrix} ${begin} ${end}`;
    if (!this.#made.has(key)) this.#made.set(key, this.#make(matrix, weight, begin, end));
    return this.#made.get(key);
  }

  free(): void {
    for (const context of this.#contexts) this.#ggml.ggml_free(context);
    this.#made.clear();
  }

  #make(matrix: Pointer, weight: PlannedWeight, begin: number, end: number): Pointer | undefined {
    const ggml = this.#ggml;
    const [width, height] = weight.shape as [number, number];
    const type = ggmlTypeByName(weight.type).id;
    const buffer = koffi.decode(matrix, tensorLayout.buffer, 'void *') as Pointer;
    const bufferType = ggml.ggml_backend_buffer_get_type(buffer)!;
    const packed = specialBufferTypes(ggml).includes(bufferType);
    if (packed && (begin % row_group !== 0 || (end % row_group !== 0 && end !== height))) return undefined;
    const row_bytes = packed
      ? convertedRowBytes(ggml, bufferType, type, width, height)
      : Number(ggml.ggml_row_size(type, width));
    if (row_bytes === undefined) return undefined;
    const context = ggml.ggml_init({
      mem_size: 2 * Number(ggml.ggml_tensor_overhead()),
      mem_buffer: null,
      no_alloc: true,
    })!;
    this.#contexts.push(context);
    if (!packed) {
      const view = ggml.ggml_view_2d(context, matrix, width, end - begin, row_bytes, begin * row_bytes)!;
      ggml.ggml_backend_view_init(view);
      return view;
    }
    const part = ggml.ggml_new_tensor_2d(context, type, width, end - begin)!;
    ggml.ggml_backend_tensor_alloc(buffer, part, ggml.ggml_get_data(matrix)! + BigInt(begin * row_bytes));
    return part;
  }
}
