import { placeTensor } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Backend } from '../backend/backend.ts';
import { type PoolMemory, placeIn } from '../backend/pool-memory.ts';
import type { DevicePool, PoolRange } from '../memory/device-pool.ts';
import type { TensorLoader } from '../memory/load/tensor-loader.ts';
import { ArenaScratch } from './arena-scratch.ts';

/** A model whose weights go through the ring. */
export interface RingUser {
  /** The ring is empty, and this model's. */
  start(): void;
  /** Another model has the ring from now on. */
  stop(): void;
}

export interface ArenaOptions {
  /** Through which weights are streamed. Lower: less is prefetched; higher: less stays for `resident_bytes`. */
  ring_bytes: number;
  /** For parts of models that stay, of all models together. */
  resident_bytes: number;
  /** Those of the loader, which bring weights while others compute. */
  copy_threads: number;
}

/**
 * A range of a device's pool for models that are larger than it. Weights stay in host memory: in the page cache of
 * their files, which all workers of a node share. One model streams at a time, and a switch to another costs nothing
 * but what was brought in advance for the one before. Results of graphs lie elsewhere in the pool, of all parts in one
 * place (`ArenaScratch`).
 *
 *     [ ring, through which weights are streamed | parts that stay ]
 */
export class StreamingArena {
  readonly backend: Backend;
  readonly memory: PoolMemory;
  readonly loader: TensorLoader;
  readonly scratch: ArenaScratch;
  readonly bytes: number;
  readonly ring: { offset: number; bytes: number };
  readonly copy_threads: number;
  readonly #place: PoolRange;
  readonly #resident: { begin: number; end: number };
  /** Ranges that parts have, in the order of their offsets. */
  readonly #taken: { begin: number; end: number }[] = [];
  #streaming: RingUser | undefined;
  /** A load hangs that may still write to the ring. */
  #lost: HpcserveError | undefined;

  /**
   * @param loader of the pool; it outlives the arena
   * @throws HpcserveError E_POOL_FULL
   */
  constructor(pool: DevicePool, loader: TensorLoader, options: ArenaOptions) {
    const aligned = (bytes: number): number => Math.ceil(bytes / alignment_bytes) * alignment_bytes;
    const ring_bytes = aligned(options.ring_bytes);
    this.bytes = ring_bytes + aligned(options.resident_bytes);
    const place = pool.reserve(this.bytes, 'arena', 'models that are streamed');
    if (!place) throw noArena(pool, this.bytes);
    this.#place = place;
    this.backend = pool.backend;
    this.memory = pool.memory;
    this.loader = loader;
    this.scratch = new ArenaScratch(pool);
    this.copy_threads = options.copy_threads;
    this.ring = { offset: place.offset, bytes: ring_bytes };
    this.#resident = { begin: place.offset + ring_bytes, end: place.offset + this.bytes };
  }

  /** For parts that stay, of all models together. */
  get resident_bytes(): number {
    return this.#resident.end - this.#resident.begin;
  }

  get alignment_bytes(): number {
    return alignment_bytes;
  }

  /**
   * Puts a tensor at an offset of the pool, for good. A backend that is told of it may write there, where another
   * model's weights may lie now: zeros behind the tensor, which CUDA's kernels read. They come with its bytes instead,
   * each time; see `TensorLoad.zeros_behind`.
   */
  place(tensor: Pointer, bufferType: Pointer, offset: number): void {
    const { backend, memory } = this;
    const { buffer, address } = placeIn(memory.layoutOf(bufferType).spans, offset);
    if (bufferType === backend.plain) placeTensor(tensor, buffer, address);
    // Special layouts note in it whose kernels are to multiply.
    else backend.ggml.ggml_backend_tensor_alloc(buffer, tensor, address);
  }

  /** @returns the offset of so many bytes that stay; undefined where there is no room for them */
  takeResident(bytes: number): number | undefined {
    let begin = this.#resident.begin;
    const size = Math.ceil(bytes / alignment_bytes) * alignment_bytes;
    const next = this.#taken.findIndex((range) => {
      if (range.begin - begin >= size) return true;
      begin = range.end;
      return false;
    });
    if (begin + size > this.#resident.end) return undefined;
    this.#taken.splice(next < 0 ? this.#taken.length : next, 0, { begin, end: begin + size });
    return begin;
  }

  giveResident(offset: number): void {
    const index = this.#taken.findIndex(({ begin }) => begin === offset);
    if (index >= 0) this.#taken.splice(index, 1);
  }

  /**
   * The ring is that model's from now on. What was brought for another one is given up.
   * @throws HpcserveError E_POOL_LOAD: it can be nobody's any more
   */
  turnTo(stream: RingUser): void {
    this.checkUsable();
    if (this.#streaming === stream) return;
    this.#stop();
    // What that one had begun may hang.
    this.checkUsable();
    this.#streaming = stream;
    stream.start();
  }

  /** A model is closed: files of the others are mapped again as they are read. */
  leave(stream: RingUser): void {
    if (this.#streaming === stream) this.#stop();
    this.loader.unmapFiles();
  }

  /** Nothing is brought any more until a model asks, and no file is in use. */
  rest(): void {
    this.#stop();
    this.loader.unmapFiles();
  }

  #stop(): void {
    this.#streaming?.stop();
    this.#streaming = undefined;
  }

  /** @throws HpcserveError E_POOL_LOAD: it was lost */
  checkUsable(): void {
    if (this.#lost) throw this.#lost;
  }

  /** A load of the ring hangs, and may write to it at any time: no model computes by it any more. */
  lose(because: HpcserveError): void {
    this.#lost = because;
  }

  /** Once no model is open. */
  close(): void {
    if (!this.#lost) this.#place.give();
  }
}

/** Of parts: what every pool asks of its regions, and a page of a direct read. */
const alignment_bytes = 4096;

/** Whether a load ended with a thread that may still write to the places of its tensors. */
export function isStillWriting(error: unknown): error is HpcserveError {
  return error instanceof HpcserveError && error.details?.still_writing === true;
}

/** A load was given up, and a thread of it did not come back from its file. */
export function hangingLoad(path: string): HpcserveError {
  return new HpcserveError('E_POOL_LOAD', {
    what: `${path} is not read on`,
    because:
      'its disk or filesystem hangs, and what is read may still come where weights are streamed through',
    details: { still_writing: true },
  });
}

function noArena({ store }: DevicePool, bytes: number): HpcserveError {
  const mib = (of: number): string => `${(of / 2 ** 20).toFixed(0)} MiB`;
  const { pool_bytes, active_bytes, kv_bytes, scratch_bytes, largest_free_bytes } = store.stats();
  return new HpcserveError('E_POOL_FULL', {
    what: `the memory pool has no room for an arena of ${mib(bytes)} that weights are streamed through`,
    because: [
      `it lies in one piece, and the largest free one has ${mib(largest_free_bytes)}`,
      `of ${mib(pool_bytes)}, ${mib(active_bytes)} hold weights in use and ${mib(kv_bytes + scratch_bytes)} the KV caches and results of running models`,
    ],
    details: { missing_bytes: bytes, pool_bytes, active_bytes, kv_bytes, scratch_bytes },
  });
}
