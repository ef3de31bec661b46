import koffi from 'koffi';
import { type Ggml, GgmlType, tensorLayout } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { Place } from '../pool-memory.ts';

/** Beyond every copy: ggml compares what is asked for with the size of the tensor. */
const any_bytes = 2 ** 50;
/** Memory through which ranges move whose distance is shorter. Lower: more copies; higher: more device memory. */
const bounce_bytes = 4 * 1024 * 1024;

/**
 * Bytes of device memory, by ggml's functions for tensors: two structs of tensors are pointed at one place after
 * another. Every call returns when the bytes are there. For one thread.
 */
export class DeviceBytes {
  readonly #ggml: Ggml;
  readonly #bufferType: Pointer;
  readonly #context: Pointer;
  readonly #one: Pointer;
  readonly #other: Pointer;
  #bounce: Pointer | undefined;

  constructor(ggml: Ggml, bufferType: Pointer) {
    this.#ggml = ggml;
    this.#bufferType = bufferType;
    this.#context = ggml.ggml_init({
      mem_size: 3 * Number(ggml.ggml_tensor_overhead()),
      mem_buffer: null,
      no_alloc: true,
    })!;
    this.#one = ggml.ggml_new_tensor_1d(this.#context, GgmlType.I8, any_bytes)!;
    this.#other = ggml.ggml_new_tensor_1d(this.#context, GgmlType.I8, any_bytes)!;
  }

  read(from: Place, into: Uint8Array): void {
    this.#ggml.ggml_backend_tensor_get(pointAt(this.#one, from, any_bytes), into, 0, into.length);
  }

  /** @param source bytes of the host: memory of ours, or an address */
  write(to: Place, source: Uint8Array | Pointer, bytes: number): void {
    this.#ggml.ggml_backend_tensor_set(pointAt(this.#one, to, any_bytes), source, 0, bytes);
  }

  /** @param bytes a multiple of four, as the address is: Vulkan fills words */
  zero(at: Place, bytes: number): void {
    this.#ggml.ggml_backend_tensor_memset(pointAt(this.#one, at, any_bytes), 0, 0, bytes);
  }

  /** The ranges may overlap. Devices copy in any order, so that what overlaps goes in pieces that do not. */
  move(to: Place, from: Place, bytes: number): void {
    const distance = Number(to.address - from.address);
    const apart = to.buffer !== from.buffer || Math.abs(distance) >= bytes;
    if (apart) this.#copy(to, from, bytes);
    if (apart || distance === 0) return;
    const direct = Math.abs(distance) >= bounce_bytes;
    const piece = direct ? Math.abs(distance) : bounce_bytes;
    const count = Math.ceil(bytes / piece);
    for (let index = 0; index < count; index++) {
      // Upwards from the end, downwards from the beginning: what is still to be moved is not written to.
      const at = (distance > 0 ? count - 1 - index : index) * piece;
      const size = Math.min(piece, bytes - at);
      if (direct) this.#copy(shifted(to, at), shifted(from, at), size);
      else {
        const between = this.#bounceMemory();
        this.#copy(between, shifted(from, at), size);
        this.#copy(shifted(to, at), between, size);
      }
    }
  }

  free(): void {
    if (this.#bounce) this.#ggml.ggml_backend_buffer_free(this.#bounce);
    this.#ggml.ggml_free(this.#context);
  }

  #copy(to: Place, from: Place, bytes: number): void {
    this.#ggml.ggml_backend_tensor_copy(pointAt(this.#one, from, bytes), pointAt(this.#other, to, bytes));
  }

  #bounceMemory(): Place {
    const ggml = this.#ggml;
    this.#bounce ??= ggml.ggml_backend_buft_alloc_buffer(this.#bufferType, bounce_bytes) ?? undefined;
    if (!this.#bounce)
      throw new HpcserveError('E_NATIVE_MEMORY', {
        what: 'no memory of the device to move tensors through',
        because: `${bounce_bytes} bytes were refused`,
      });
    return { buffer: this.#bounce, address: ggml.ggml_backend_buffer_get_base(this.#bounce)! };
  }
}

function shifted({ buffer, address }: Place, bytes: number): Place {
  return { buffer, address: address + BigInt(bytes) };
}

function pointAt(tensor: Pointer, { buffer, address }: Place, bytes: number): Pointer {
  koffi.encode(tensor, tensorLayout.buffer, 'void *', buffer);
  koffi.encode(tensor, tensorLayout.data, 'void *', address);
  koffi.encode(tensor, tensorLayout.ne, 'int64_t', bytes);
  return tensor;
}
