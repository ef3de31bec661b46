import koffi from 'koffi';
import { HpcserveError } from '../spec/errors/error.ts';
import type { Ggml } from './ggml.ts';
import type { Pointer } from './signature.ts';

/** Fields of `struct ggml_backend_buffer_type`, pointers all: get_name, alloc_buffer, …, is_host, device, context. */
const fields = { get_name: 0, alloc_buffer: 1, get_alignment: 2, max_size: 3, is_host: 5, count: 8 } as const;
const pointer_bytes = 8;
/** ggml aligns results on CPUs to half of it, and loads of whole lines (tiles of AMX, AVX-512) then take two each. */
const cache_line_bytes = 64;

const allocPrototype = koffi.proto('void *hpcserve_alloc_buffer(void *buffer_type, size_t bytes)');
const alignmentPrototype = koffi.proto('size_t hpcserve_get_alignment(void *buffer_type)');
const namePrototype = koffi.proto('const char *hpcserve_get_name(void *buffer_type)');
const flagPrototype = koffi.proto('bool hpcserve_is_host(void *buffer_type)');

/**
 * A buffer type of ggml whose memory a function here gives: ggml's allocator of graphs asks a buffer type for memory,
 * and knows no other way to be told where. It is another buffer type with its own `alloc_buffer`, which is asked
 * for all memory of a graph at once, and tensors in it begin with a cache line.
 */
export class CallbackBufferType {
  readonly pointer: Pointer;
  readonly #callbacks: readonly bigint[];

  /**
   * @param like the buffer type whose buffers are given
   * @param allocate gives a ggml buffer of at least so many bytes, which begins with a cache line; undefined: there is
   *   no memory. Called on this thread only, from within calls of ggml
   * @throws HpcserveError E_NATIVE_VERSION: the struct is laid out differently
   */
  constructor(ggml: Ggml, like: Pointer, allocate: (bytes: number) => Pointer | undefined) {
    const field = (index: number): Pointer | null =>
      koffi.decode(like, index * pointer_bytes, 'void *') as Pointer | null;
    const name = koffi.call(field(fields.get_name)!, namePrototype, like) as string;
    if (
      name !== ggml.ggml_backend_buft_name(like) ||
      isHost(field(fields.is_host), like) !== ggml.ggml_backend_buft_is_host(like)
    )
      throw new HpcserveError('E_NATIVE_VERSION', {
        what: 'struct ggml_backend_buffer_type is laid out differently than the bindings expect',
      });
    this.pointer = koffi.alloc('void *', fields.count) as Pointer;
    for (let index = 0; index < fields.count; index++)
      koffi.encode(this.pointer, index * pointer_bytes, 'void *', field(index));
    const alignment = Math.max(cache_line_bytes, Number(ggml.ggml_backend_buft_get_alignment(like)));
    const give = koffi.register(
      (_type: unknown, bytes: number | bigint) => allocate(Number(bytes)) ?? null,
      koffi.pointer(allocPrototype),
    ) as unknown as bigint;
    const align = koffi.register(() => alignment, koffi.pointer(alignmentPrototype)) as unknown as bigint;
    this.#callbacks = [give, align];
    // Without it there is no largest size, and so no second buffer for one graph.
    koffi.encode(this.pointer, fields.max_size * pointer_bytes, 'void *', null);
    koffi.encode(this.pointer, fields.alloc_buffer * pointer_bytes, 'void *', give);
    koffi.encode(this.pointer, fields.get_alignment * pointer_bytes, 'void *', align);
  }

  /** Once nothing asks it for memory any more. */
  free(): void {
    for (const callback of this.#callbacks) koffi.unregister(callback as never);
    koffi.free(this.pointer);
  }
}

/** `is_host` is optional in ggml: a buffer type without it is not the host's. */
function isHost(address: Pointer | null, bufferType: Pointer): boolean {
  return address !== null && (koffi.call(address, flagPrototype, bufferType) as boolean);
}
