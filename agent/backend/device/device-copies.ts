import koffi from 'koffi';
import { deviceCapabilities, type Ggml, GgmlType, tensorLayout } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import type { Place } from '../pool-memory.ts';

/** Beyond every copy: ggml compares what is asked for with the size of the tensor. */
const any_bytes = 2 ** 50;

/** A point in the copies of a thread that can be waited for. */
export interface Fence {
  /** What was asked for before is what `wait` waits for. */
  set(): void;
  /** Returns at once where it was never set. */
  wait(): void;
  free(): void;
}

/**
 * Copies between the host and a device that go on while the host does something else, where the backend has that: they
 * are asked for in a queue of their own, and memory of the host stays as it is until they are over. Elsewhere each is
 * over when its call returns, and nobody need know. For one thread.
 */
export class DeviceCopies {
  readonly #ggml: Ggml;
  readonly #device: Pointer;
  /** Its queue; absent: the backend copies while its caller waits. */
  readonly #queue: Pointer | undefined;
  readonly #events: boolean;
  readonly #context: Pointer;
  readonly #tensor: Pointer;

  constructor(ggml: Ggml, device: Pointer) {
    this.#ggml = ggml;
    this.#device = device;
    const { async, events } = deviceCapabilities(ggml, device);
    this.#queue = async ? (ggml.ggml_backend_dev_init(device, null) ?? undefined) : undefined;
    this.#events = events;
    this.#context = ggml.ggml_init({
      mem_size: 2 * Number(ggml.ggml_tensor_overhead()),
      mem_buffer: null,
      no_alloc: true,
    })!;
    this.#tensor = ggml.ggml_new_tensor_1d(this.#context, GgmlType.I8, any_bytes)!;
  }

  /** Whether copies go on beside their caller. Only page-locked memory is copied so: other memory is waited for. */
  get overlap(): boolean {
    return this.#queue !== undefined;
  }

  /** @param from bytes of the host, outside the JavaScript heap */
  write(to: Place, from: Pointer, bytes: number): void {
    const tensor = this.#at(to);
    if (this.#queue) this.#ggml.ggml_backend_tensor_set_async(this.#queue, tensor, from, 0, bytes);
    else this.#ggml.ggml_backend_tensor_set(tensor, from, 0, bytes);
  }

  /** @param into outside the JavaScript heap */
  read(from: Place, into: Pointer, bytes: number): void {
    const tensor = this.#at(from);
    if (this.#queue) this.#ggml.ggml_backend_tensor_get_async(this.#queue, tensor, into, 0, bytes);
    else this.#ggml.ggml_backend_tensor_get(tensor, into, 0, bytes);
  }

  /** Waits until all is over. */
  finish(): void {
    if (this.#queue) this.#ggml.ggml_backend_synchronize(this.#queue);
  }

  fence(): Fence {
    const ggml = this.#ggml;
    const queue = this.#queue;
    const event = queue && this.#events ? ggml.ggml_backend_event_new(this.#device) : null;
    let set = false;
    return {
      set: () => {
        set = queue !== undefined;
        if (event) ggml.ggml_backend_event_record(event, queue!);
      },
      wait: () => {
        if (!set) return;
        set = false;
        if (event) ggml.ggml_backend_event_synchronize(event);
        else this.finish();
      },
      free: () => {
        if (event) ggml.ggml_backend_event_free(event);
      },
    };
  }

  /** All is over, and nobody waits for a fence of it any more. */
  free(): void {
    this.finish();
    if (this.#queue) this.#ggml.ggml_backend_free(this.#queue);
    this.#ggml.ggml_free(this.#context);
  }

  #at({ buffer, address }: Place): Pointer {
    koffi.encode(this.#tensor, tensorLayout.buffer, 'void *', buffer);
    koffi.encode(this.#tensor, tensorLayout.data, 'void *', address);
    return this.#tensor;
  }
}
