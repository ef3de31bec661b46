import koffi from 'koffi';
import { type Ggml, memoryAt, tensorLayout } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';

/**
 * `struct ggml_backend_buffer_type`: get_name, alloc_buffer, get_alignment, get_max_size, get_alloc_size, is_host,
 * device, context.
 */
const typeFields = { get_name: 0, alloc_buffer: 1, get_alloc_size: 4, count: 8 } as const;
/**
 * `struct ggml_backend_buffer_i`, at the beginning of a buffer: free_buffer, get_base, init_tensor, memset_tensor,
 * set_tensor, …
 */
const set_tensor_field = 4;
const buffer_fields_max = 16;

const namePrototype = koffi.proto('const char *long_rows_name(void *type)');
const allocPrototype = koffi.proto('void *long_rows_alloc(void *type, size_t bytes)');
const sizePrototype = koffi.proto('size_t long_rows_size(void *type, void *tensor)');
const setPrototype = koffi.proto(
  'void long_rows_set(void *buffer, void *tensor, void *data, size_t offset, size_t bytes)',
);

/**
 * A layout made up for the tests, as AMX has it on CPUs that few have: rows are longer in memory than in the file, by
 * some bytes behind each. It is plain memory of ggml whose functions for sizes and for writing are replaced, so that
 * products over it come out wrong: no kernel knows it.
 */
export class LongRowsLayout {
  readonly bufferType: Pointer;
  /** Bytes behind each row. */
  readonly padding_bytes = 32;
  readonly #ggml: Ggml;
  readonly #callbacks: Pointer[] = [];
  readonly #set_tensor: Pointer;

  constructor(ggml: Ggml) {
    this.#ggml = ggml;
    const plain = ggml.ggml_backend_cpu_buffer_type()!;
    this.bufferType = koffi.alloc('void *', typeFields.count) as Pointer;
    for (let index = 0; index < typeFields.count; index++)
      this.#field(this.bufferType, index, koffi.decode(plain, index * 8, 'void *') as Pointer);
    const { get_name, get_alloc_size, alloc_buffer } = typeFields;
    const field = (index: number, callback: Pointer) => this.#field(this.bufferType, index, callback);
    field(
      get_name,
      this.#register(namePrototype, () => 'LONG_ROWS'),
    );
    const sizeOf = (_: unknown, tensor: Pointer) => {
      const { rows, row_bytes } = this.#shape(tensor);
      return rows * (row_bytes + this.padding_bytes);
    };
    field(get_alloc_size, this.#register(sizePrototype, sizeOf));
    const allocate = (_: unknown, bytes: number | bigint) => this.#buffer(plain, Number(bytes));
    field(alloc_buffer, this.#register(allocPrototype, allocate));
    // A callback cannot be registered from within another.
    const write = (
      _: unknown,
      tensor: Pointer,
      data: Pointer,
      offset: number | bigint,
      bytes: number | bigint,
    ) => this.#write(tensor, data, Number(offset), Number(bytes));
    this.#set_tensor = this.#register(setPrototype, write);
  }

  /** As the layout has them: each row, and padding that is none of the row's bytes. */
  expected(source: Uint8Array, rows: number): Uint8Array {
    const row_bytes = source.length / rows;
    const packed = new Uint8Array(rows * (row_bytes + this.padding_bytes)).fill(0xee);
    for (let row = 0; row < rows; row++)
      packed.set(
        source.subarray(row * row_bytes, (row + 1) * row_bytes),
        row * (row_bytes + this.padding_bytes),
      );
    return packed;
  }

  #write(tensor: Pointer, data: Pointer, offset: number, bytes: number): void {
    if (offset !== 0) throw new Error('this layout is made from whole tensors');
    const { rows } = this.#shape(tensor);
    const packed = this.expected(memoryAt(data, bytes), rows);
    memoryAt(this.#ggml.ggml_get_data(tensor)!, packed.length).set(packed);
  }

  free(): void {
    for (const callback of this.#callbacks) koffi.unregister(callback as never);
    koffi.free(this.bufferType);
  }

  #buffer(plain: Pointer, bytes: number): Pointer | null {
    const buffer = this.#ggml.ggml_backend_buft_alloc_buffer(plain, bytes);
    if (!buffer) return null;
    this.#field(buffer, set_tensor_field, this.#set_tensor);
    for (let index = 0; index < buffer_fields_max; index++)
      if (koffi.decode(buffer, index * 8, 'void *') === plain) {
        this.#field(buffer, index, this.bufferType);
        return buffer;
      }
    throw new Error('struct ggml_backend_buffer has no type where one was looked for');
  }

  #shape(tensor: Pointer): { rows: number; row_bytes: number } {
    const extent = (index: number) => Number(koffi.decode(tensor, tensorLayout.ne + 8 * index, 'int64_t'));
    const row_bytes = Number(koffi.decode(tensor, tensorLayout.nb + 8, 'size_t'));
    return { rows: extent(1) * extent(2), row_bytes };
  }

  #register(prototype: ReturnType<typeof koffi.proto>, callback: (...args: never[]) => unknown): Pointer {
    const registered = koffi.register(callback as never, koffi.pointer(prototype)) as unknown as Pointer;
    this.#callbacks.push(registered);
    return registered;
  }

  #field(struct: Pointer, index: number, value: Pointer): void {
    koffi.encode(struct, index * 8, 'void *', value);
  }
}
