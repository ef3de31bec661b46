/**
 * Frames by memory that two stages of a node have in common. The stage before writes them into a memory file of its
 * own and sends a parcel over the connection, which says where they lie; the stage behind copies them out of its
 * mapping, which it cannot write to, and says up to where it has. What finds no room goes over the connection, in its
 * place among the parcels.
 *
 *     stage before ── shared: where the memory is ──► stage behind
 *                  ◄─ shared: whether it is mapped ──
 *                  ── parcel ─►  ◄─ taken ──
 *
 * A file without a name is found by process and descriptor, so that none is left behind, whoever is killed. What lies
 * there may be another process's where the stage behind is on another node: a token in the memory tells.
 */
import { randomBytes } from 'node:crypto';
import koffi from 'koffi';
import { z } from 'zod';
import { mapMemoryOf, SharedMemory, unmap } from '../../native/memory-map.ts';
import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { frame_memory_bytes } from '../../spec/worker-memory.ts';
import { damaged, type FrameBytes } from './frame.ts';
import { FrameRoom, type Parcel } from './frame-room.ts';

const memory_name = 'hpcserve-frames';
const token_bytes = 16;
/** Behind the token, a cache line of its own. */
const frames_begin = 64;
const room_bytes = frame_memory_bytes - frames_begin;
/** Shorter ones go over the connection, which takes no more of the cores: a parcel is two messages. */
export const shared_bytes_min = 1024 * 1024;

/** Where a memory of frames is. */
export const sharedMetaSchema = z.strictObject({
  pid: z.int().min(1),
  descriptor: z.int().min(0),
  token: z.string().length(2 * token_bytes),
});
export type SharedMeta = z.infer<typeof sharedMetaSchema>;

/** Whether the stage behind has it. */
export const mappedMetaSchema = z.strictObject({ mapped: z.boolean() });

/** The side of the stage before. */
export class FrameOutbox {
  readonly told: SharedMeta;
  readonly #memory: SharedMemory;
  readonly #address: Pointer;
  readonly #frames: Uint8Array;
  readonly #room = new FrameRoom(room_bytes);
  /** The stage behind has mapped it. */
  isMapped = false;

  private constructor(memory: SharedMemory) {
    this.#memory = memory;
    this.#address = memory.map();
    const all = new Uint8Array(koffi.view(this.#address, frame_memory_bytes));
    const token = randomBytes(token_bytes);
    all.set(token);
    this.#frames = all.subarray(frames_begin);
    this.told = { pid: process.pid, descriptor: memory.descriptor, token: token.toString('hex') };
  }

  /** @returns undefined where there is no memory for it: frames go over the connection */
  static open(): FrameOutbox | undefined {
    let memory: SharedMemory | undefined;
    try {
      memory = SharedMemory.create(memory_name, frame_memory_bytes);
      return new FrameOutbox(memory);
    } catch (error) {
      memory?.close();
      if (error instanceof HpcserveError && error.code === 'E_NATIVE_MEMORY') return undefined;
      throw error;
    }
  }

  /** @returns where the frame lies now; undefined: it is to go over the connection */
  put(frame: FrameBytes): Parcel | undefined {
    if (!this.isMapped || frame.length < shared_bytes_min) return undefined;
    const parcel = this.#room.place(frame.length);
    if (parcel) this.#frames.set(frame, parcel.at);
    return parcel;
  }

  /** @throws HpcserveError E_STAGE_FRAME: nothing was written there */
  taken(end: number): void {
    this.#room.taken(end);
  }

  close(): void {
    this.isMapped = false;
    unmap(this.#address, frame_memory_bytes);
    this.#memory.close();
  }
}

/** The side of the stage behind. */
export class FrameInbox {
  readonly #address: Pointer;
  readonly #frames: Uint8Array;

  private constructor(address: Pointer, frames: Uint8Array) {
    this.#address = address;
    this.#frames = frames;
  }

  /** @returns undefined where there is no such memory here: the stage before is on another node, or may not be seen */
  static open({ pid, descriptor, token }: SharedMeta): FrameInbox | undefined {
    const address = mapMemoryOf(pid, descriptor, memory_name, frame_memory_bytes);
    if (address === undefined) return undefined;
    const all = new Uint8Array(koffi.view(address, frame_memory_bytes));
    if (Buffer.from(all.subarray(0, token_bytes)).toString('hex') === token)
      return new FrameInbox(address, all.subarray(frames_begin));
    unmap(address, frame_memory_bytes);
    return undefined;
  }

  /**
   * @returns the frame, in a buffer of its own
   * @throws HpcserveError E_STAGE_FRAME: it would lie beyond the memory
   */
  take({ at, bytes }: Parcel): FrameBytes {
    if (at + bytes > room_bytes) throw damaged(`${bytes} bytes at ${at} are beyond the memory of frames`);
    return this.#frames.slice(at, at + bytes);
  }

  close(): void {
    unmap(this.#address, frame_memory_bytes);
  }
}
