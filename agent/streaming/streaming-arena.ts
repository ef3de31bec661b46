import { HpcserveError } from '../../spec/errors/error.ts';
import type { Backend } from '../backend/backend.ts';
import type { PoolMemory } from '../backend/pool-memory.ts';
import { TensorLoader } from '../memory/load/tensor-loader.ts';

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
  /** For results of graphs; a graph that needs more has memory of its own. */
  scratch_bytes: number;
  /** Threads that bring weights while others compute. */
  copy_threads: number;
}

/**
 * The memory of a device for models that are larger than it. Weights stay in host memory: in the page cache of their
 * files, which all workers of a node share. One model streams at a time, and a switch to another costs nothing but what
 * was brought in advance for the one before.
 *
 *     [ results of graphs | ring, through which weights are streamed | parts that stay ]
 */
export class StreamingArena {
  readonly backend: Backend;
  readonly memory: PoolMemory;
  readonly loader: TensorLoader;
  readonly ring: { offset: number; bytes: number };
  readonly copy_threads: number;
  readonly #scratch_bytes: number;
  readonly #resident: { begin: number; end: number };
  /** Ranges that parts have, in the order of their offsets. */
  readonly #taken: { begin: number; end: number }[] = [];
  #streaming: RingUser | undefined;

  /** @throws HpcserveError E_NATIVE_MEMORY */
  constructor(backend: Backend, options: ArenaOptions) {
    const aligned = (bytes: number): number => Math.ceil(bytes / alignment_bytes) * alignment_bytes;
    this.backend = backend;
    this.copy_threads = options.copy_threads;
    this.#scratch_bytes = aligned(options.scratch_bytes);
    this.ring = { offset: this.#scratch_bytes, bytes: aligned(options.ring_bytes) };
    const begin = this.ring.offset + this.ring.bytes;
    this.#resident = { begin, end: begin + aligned(options.resident_bytes) };
    this.memory = backend.openPool(this.#resident.end);
    if (this.memory.gaps.length > 0) {
      this.memory.free();
      throw new HpcserveError('E_NATIVE_MEMORY', {
        what: `an arena of ${this.#resident.end} bytes does not lie in one buffer of ${backend.description}`,
        because: 'weights that are streamed go through one ring, and the device has no buffer of that size',
        try: 'make the arena smaller',
      });
    }
    this.loader = new TensorLoader(backend, this.memory, { threads: options.copy_threads });
  }

  get alignment_bytes(): number {
    return alignment_bytes;
  }

  /** Where results of graphs lie. */
  get scratch(): { offset: number; bytes: number } {
    return { offset: 0, bytes: this.#scratch_bytes };
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

  /** The ring is that model's from now on. What was brought for another one is given up. */
  turnTo(stream: RingUser): void {
    if (this.#streaming === stream) return;
    this.#streaming?.stop();
    this.#streaming = stream;
    stream.start();
  }

  /** A model is closed. */
  leave(stream: RingUser): void {
    if (this.#streaming === stream) this.rest();
  }

  /** Nothing is brought any more until a model asks. */
  rest(): void {
    this.#streaming?.stop();
    this.#streaming = undefined;
  }

  /** Once no model is open. */
  async close(): Promise<void> {
    await this.loader.close();
    this.memory.free();
  }
}

/** Of parts: what every pool asks of its regions, and a page of a direct read. */
const alignment_bytes = 4096;
