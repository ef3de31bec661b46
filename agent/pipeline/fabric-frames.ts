/**
 * Frames that a stage writes into the memory of the one behind it, which is on another node, by libfabric: long ones
 * pass no agent, and are not copied by the kernel. Both have a memory of the same size, in which a frame has the same
 * place; a parcel on the connection says that it is there, and the frame's own checksum whether it is whole.
 *
 *     stage before ── ask: by this provider ──► stage behind: opens memory for it
 *                  ◄─ lent: where it is ──────
 *                  ═══ a trial ═════════════►
 *                  ── probe: what it was ───►
 *                  ◄─ ready ──────────────────
 *                  ═══ frame ═══►  ── parcel ─►  ◄─ taken ──
 *
 * Nothing is encrypted on that way, so that it is taken only where the site calls its network private
 * (`network.private_fabric`). A provider that the site names and that does not work is said, and the next one is tried;
 * until one works, and where none does, frames go over the connection.
 */
import koffi from 'koffi';
import { z } from 'zod';
import { fabricAbsence, probe_bytes } from '../../native/fabric/fabric.ts';
import { SharedMemory, unmap } from '../../native/memory-map.ts';
import type { Pointer } from '../../native/signature.ts';
import { frame_memory_bytes } from '../../spec/worker-memory.ts';
import { silence_ms, transferLimit_ms } from '../transfer/limits.ts';
import { type LentMemory, lentMemorySchema } from '../transfer/messages.ts';
import { FabricSource, FabricTarget } from '../transfer/ways/fabric-way.ts';
import { damaged, type FrameBytes } from './frame.ts';
import { FrameRoom, type Parcel } from './frame-room.ts';
import { provider_length_max, providers_max } from './ring-frame.ts';

/**
 * Shorter ones go over the connection. Lower: more frames wait for a thread to be told that they are there; higher:
 * more bytes are encrypted and copied by two agents.
 */
export const fabric_bytes_min = 256 * 1024;

/** How a stage's worker reaches others without its agent. */
export interface FabricPlace {
  /** Address of the interface. */
  host: string;
  /** By libfabric's names, best first. */
  providers: readonly string[];
  /** The site names them: one that does not work is a fault. Else they are those that a node may have. */
  are_named: boolean;
}

/** Of these, what can be used between nodes. */
export function usableFabrics(place: FabricPlace | undefined): string[] {
  if (!place || fabricAbsence() !== undefined) return [];
  return place.providers
    .filter((name) => name !== 'shm' && name.length <= provider_length_max)
    .slice(0, providers_max);
}

const provider = z.string().min(1).max(provider_length_max);
/** Printable, so that it can stand in a log. */
const because = z
  .string()
  .max(1024)
  .regex(/^[^\p{Cc}]*$/u);
const probe = z.string().regex(new RegExp(`^[0-9a-f]{${2 * probe_bytes}}$`));

export const fabricMetaSchema = z.discriminatedUnion('step', [
  z.strictObject({ step: z.literal('ask'), provider }),
  z.strictObject({ step: z.literal('lent'), provider, address: lentMemorySchema }),
  z.strictObject({ step: z.literal('probe'), provider, probe }),
  z.strictObject({ step: z.literal('ready'), provider }),
  z.strictObject({ step: z.literal('refused'), provider, because }),
  /** The stage before writes nothing any more. */
  z.strictObject({ step: z.literal('closed'), provider }),
]);
export type FabricMeta = z.infer<typeof fabricMetaSchema>;

/** Why something failed, as one line of a message. */
export function becauseOf(error: unknown): string {
  return (error as Error).message.replaceAll(/\p{Cc}/gu, ' ').slice(0, 1024);
}

/** A memory of frames that an end of a fabric has registered. */
class FabricMemory {
  readonly address: Pointer;
  readonly bytes = frame_memory_bytes;
  readonly view: Uint8Array;
  readonly #file: SharedMemory;

  /** @throws HpcserveError E_NATIVE_MEMORY */
  constructor() {
    this.#file = SharedMemory.create('hpcserve-fabric-frames', frame_memory_bytes);
    try {
      this.address = this.#file.map();
    } catch (error) {
      this.#file.close();
      throw error;
    }
    this.view = new Uint8Array(koffi.view(this.address, frame_memory_bytes));
  }

  /** After the end was closed: nothing reads or writes it then. */
  close(): void {
    unmap(this.address, frame_memory_bytes);
    this.#file.close();
  }
}

/** The side of the stage before. */
export class FabricOutbox {
  readonly provider: string;
  readonly #memory: FabricMemory;
  readonly #source: FabricSource;
  readonly #room = new FrameRoom(frame_memory_bytes);

  private constructor(name: string, memory: FabricMemory, source: FabricSource) {
    this.provider = name;
    this.#memory = memory;
    this.#source = source;
  }

  /** @throws Error in libfabric's words; HpcserveError E_NATIVE_MEMORY */
  static async connect(name: string, host: string, lent: LentMemory): Promise<FabricOutbox> {
    if (lent.memory_bytes !== frame_memory_bytes)
      throw new Error(`the stage behind lends ${lent.memory_bytes} bytes, not ${frame_memory_bytes}`);
    const memory = new FabricMemory();
    try {
      return new FabricOutbox(name, memory, await FabricSource.connect(memory, name, host, lent));
    } catch (error) {
      memory.close();
      throw error;
    }
  }

  /** What it has written as a trial. */
  get probe(): string {
    return this.#source.probe;
  }

  /** As `rma (tcp;ofi_rxm)`. */
  get description(): string {
    return this.#source.description;
  }

  /**
   * @returns where the frame will lie, and when it does; undefined: it is to go over the connection. Where `written`
   *   rejects, nothing is written any more.
   */
  put(frame: FrameBytes): { parcel: Parcel; written: Promise<void> } | undefined {
    const { length } = frame;
    if (length < fabric_bytes_min) return undefined;
    const parcel = this.#room.place(length);
    if (!parcel) return undefined;
    const { at } = parcel;
    this.#memory.view.set(frame, at);
    const patience = { silence_ms, limit_ms: transferLimit_ms(length) };
    return { parcel, written: this.#source.write([{ from: at, to: at, bytes: length }], patience) };
  }

  /** @throws HpcserveError E_STAGE_FRAME: nothing was written there */
  taken(end: number): void {
    this.#room.taken(end);
  }

  async close(): Promise<void> {
    await this.#source.close();
    this.#memory.close();
  }
}

/** The side of the stage behind. */
export class FabricInbox {
  readonly provider: string;
  readonly #memory: FabricMemory;
  readonly #target: FabricTarget;
  #isBusy = false;

  private constructor(name: string, memory: FabricMemory, target: FabricTarget) {
    this.provider = name;
    this.#memory = memory;
    this.#target = target;
  }

  /** @throws Error in libfabric's words; HpcserveError E_NATIVE_MEMORY */
  static async open(name: string, host: string): Promise<FabricInbox> {
    const memory = new FabricMemory();
    try {
      return new FabricInbox(name, memory, await FabricTarget.open(memory, name, host));
    } catch (error) {
      memory.close();
      throw error;
    }
  }

  get address(): LentMemory {
    return this.#target.address;
  }

  /** @throws Error: what was written as a trial is not there */
  async connected(written: string): Promise<void> {
    await this.#target.connected(written);
  }

  /**
   * @returns the frame, in a buffer of its own
   * @throws HpcserveError E_STAGE_FRAME: it would lie beyond the memory
   */
  take({ at, bytes }: Parcel): FrameBytes {
    if (at + bytes > frame_memory_bytes)
      throw damaged(`${bytes} bytes at ${at} are beyond the memory of frames`);
    if (!this.#isBusy) this.#target.watch(true);
    this.#isBusy = true;
    return this.#memory.view.slice(at, at + bytes);
  }

  /** Called at times: where none has come since, its thread looks less often for more. */
  rest(): void {
    if (!this.#isBusy) this.#target.watch(false);
    this.#isBusy = false;
  }

  async close(): Promise<void> {
    await this.#target.close();
    this.#memory.close();
  }
}
