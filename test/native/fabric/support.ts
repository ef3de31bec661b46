import type { TransferMemory } from '../../../native/fabric/memory.ts';
import { memoryAt } from '../../../native/ggml.ts';
import { SharedMemory, unmap } from '../../../native/memory-map.ts';

const mebibyte = 1024 * 1024;

/** Memory in a memory file, as pools of CPUs have it. */
export class TestMemory implements TransferMemory {
  readonly address: bigint;
  readonly bytes: number;
  readonly descriptor: number;
  readonly view: Uint8Array;
  readonly #memory: SharedMemory;

  constructor(mib: number) {
    this.#memory = SharedMemory.create('hpcserve-test', mib * mebibyte);
    this.bytes = this.#memory.bytes;
    this.descriptor = this.#memory.descriptor;
    this.address = this.#memory.map();
    this.view = memoryAt(this.address, this.bytes);
  }

  /** Bytes that differ everywhere, and by seed. */
  fill(seed: number): this {
    const words = new Uint32Array(this.view.buffer, this.view.byteOffset, this.bytes / 4);
    let state = seed >>> 0 || 1;
    for (let at = 0; at < words.length; at++) {
      state ^= state << 13;
      state ^= state >>> 17;
      state ^= state << 5;
      words[at] = state;
    }
    return this;
  }

  free(): void {
    unmap(this.address, this.bytes);
    this.#memory.close();
  }
}
