import koffi from 'koffi';
import { HpcserveError } from '../spec/errors/error.ts';
import type { Ggml } from './ggml.ts';
import type { Pointer } from './signature.ts';

const pointer_bytes = 8;
/** Fields of `struct ggml_backend_buffer`: its functions, of which these are the first; then type, context, size. */
const functions = { free_buffer: 0, get_base: 1 } as const;
/** Functions at most, in any version. */
const functions_max = 24;

const basePrototype = koffi.proto('void *hpcserve_get_base(void *buffer)');

/**
 * Parts of a buffer of ggml as buffers of their own: the same memory of the device, beginning elsewhere. ggml has no
 * such thing, and its allocator of graphs takes whole buffers only. A part is an empty buffer of ggml's own that is
 * given the functions and the context of the whole, but another base and size; freeing it frees nothing else.
 */
export class SubBuffers {
  readonly #ggml: Ggml;
  readonly #bases = new Map<Pointer, Pointer>();
  readonly #callback: bigint;

  constructor(ggml: Ggml) {
    this.#ggml = ggml;
    this.#callback = koffi.register(
      (buffer: unknown) => this.#bases.get(buffer as Pointer) ?? null,
      koffi.pointer(basePrototype),
    ) as unknown as bigint;
  }

  /**
   * @param base of the part, an address in `whole`
   * @throws HpcserveError E_NATIVE_VERSION: the struct is laid out differently
   */
  open(whole: Pointer, base: Pointer, bytes: number): Pointer {
    const ggml = this.#ggml;
    const type = ggml.ggml_backend_buffer_get_type(whole)!;
    const size = Number(ggml.ggml_backend_buffer_get_size(whole));
    const word = (of: Pointer, index: number): Pointer =>
      BigInt(koffi.decode(of, index * pointer_bytes, 'uint64_t') as number | bigint);
    let count = functions.get_base + 1;
    while (count < functions_max && word(whole, count) !== type) count++;
    const part = ggml.ggml_backend_buft_alloc_buffer(type, 0);
    const own = koffi.call(word(whole, functions.get_base), basePrototype, whole) as Pointer | null;
    const known = Number(word(whole, count + 2)) === size && own === ggml.ggml_backend_buffer_get_base(whole);
    if (!part || !known || word(part, count) !== type)
      throw new HpcserveError('E_NATIVE_VERSION', {
        what: 'struct ggml_backend_buffer is laid out differently than the bindings expect',
      });
    const set = (index: number, value: Pointer): void =>
      koffi.encode(part, index * pointer_bytes, 'uint64_t', value);
    for (let index = 0; index <= count + 1; index++)
      if (index !== functions.free_buffer) set(index, word(whole, index));
    set(functions.get_base, this.#callback);
    set(count + 2, BigInt(bytes));
    this.#bases.set(part, base);
    return part;
  }

  /** ggml has freed the part. */
  close(part: Pointer): void {
    this.#bases.delete(part);
  }

  /** Once no part is left. */
  free(): void {
    koffi.unregister(this.#callback as never);
  }
}
