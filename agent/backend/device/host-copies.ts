import { type Ggml, memoryAt } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { DeviceUpload, HostCopy } from '../backend.ts';
import { DeviceCopies, type Fence } from './device-copies.ts';

/**
 * Page-locked memory that bytes go through, in two halves: one is on its way while the host fills or empties the other.
 * Lower: less memory that cannot be swapped; higher: fewer waits.
 */
const half_bytes = 2 * 1024 * 1024;
/** Of what lies side by side in it. */
const alignment_bytes = 64;

interface Half {
  address: Pointer;
  used_bytes: number;
  /** Of a read: where bytes of it go once they are there. */
  pending: { at: number; host: Uint8Array }[];
  fence: Fence;
}

/** Many small copies between a device and arrays of the host, on their way together. For one thread. */
export class HostCopies {
  readonly #copies: DeviceCopies;
  readonly #halves: readonly [Half, Half];
  #at = 0;

  /** @throws HpcserveError E_NATIVE_MEMORY */
  constructor(ggml: Ggml, { device, host_buffer_type }: DeviceUpload) {
    const type = host_buffer_type ?? ggml.ggml_backend_cpu_buffer_type()!;
    const buffer = ggml.ggml_backend_buft_alloc_buffer(type, 2 * half_bytes);
    if (!buffer)
      throw new HpcserveError('E_NATIVE_MEMORY', {
        what: 'no memory of the host to copy keys and values through',
        because: `${2 * half_bytes} page-locked bytes were refused`,
      });
    this.#copies = new DeviceCopies(ggml, device);
    const base = ggml.ggml_backend_buffer_get_base(buffer)!;
    const half = (address: Pointer): Half => ({
      address,
      used_bytes: 0,
      pending: [],
      fence: this.#copies.fence(),
    });
    this.#halves = [half(base), half(base + BigInt(half_bytes))];
  }

  readAll(copies: Iterable<HostCopy>): void {
    for (const { place, host } of pieces(copies)) {
      const { half, at } = this.#room(host.length);
      this.#copies.read(place, half.address + BigInt(at), host.length);
      half.pending.push({ at, host });
    }
    this.#end();
  }

  writeAll(copies: Iterable<HostCopy>): void {
    for (const { place, host } of pieces(copies)) {
      const { half, at } = this.#room(host.length);
      const address = half.address + BigInt(at);
      memoryAt(address, host.length).set(host);
      this.#copies.write(place, address, host.length);
    }
    this.#end();
  }

  /** Room for a piece in the half that is filled now, or in the other one once nothing of it is under way. */
  #room(bytes: number): { half: Half; at: number } {
    let half = this.#halves[this.#at]!;
    if (half.used_bytes + bytes > half_bytes) {
      half.fence.set();
      this.#at = 1 - this.#at;
      half = this.#halves[this.#at]!;
      empty(half);
    }
    const at = half.used_bytes;
    half.used_bytes = Math.ceil((at + bytes) / alignment_bytes) * alignment_bytes;
    return { half, at };
  }

  #end(): void {
    this.#copies.finish();
    for (const half of this.#halves) empty(half);
  }
}

function empty(half: Half): void {
  half.fence.wait();
  for (const { at, host } of half.pending) host.set(memoryAt(half.address + BigInt(at), host.length));
  half.pending = [];
  half.used_bytes = 0;
}

function* pieces(
  copies: Iterable<HostCopy>,
): Generator<{ place: { buffer: Pointer; address: Pointer }; host: Uint8Array }> {
  for (const { buffer, address, host } of copies)
    for (let done = 0; done < host.length; done += half_bytes)
      yield {
        place: { buffer, address: address + BigInt(done) },
        host: host.subarray(done, done + half_bytes),
      };
}
