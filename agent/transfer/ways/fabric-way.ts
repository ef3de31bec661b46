/** Bytes that the source writes into the target's memory by itself, over libfabric. */
import { randomBytes } from 'node:crypto';
import { FabricEnd, probe_bytes } from '../../../native/fabric/fabric.ts';
import {
  type MemoryCopy,
  type MemoryPiece,
  pairPieces,
  type TransferMemory,
} from '../../../native/fabric/memory.ts';
import { Mover, type Patience } from '../../../native/fabric/mover.ts';
import { meeting_ms } from '../limits.ts';
import type { LentMemory } from '../messages.ts';
import type { Frame, SourceEnd, TargetEnd } from './way.ts';

/** The end that writes. */
export class FabricSource implements SourceEnd {
  readonly way = 'rma';
  readonly #end: FabricEnd;
  readonly #memory: TransferMemory;
  /** Sums up what is sent. */
  #mover: Mover | undefined;
  readonly #target_bytes: number;
  /** What it has written as a trial, as the target must have it. */
  readonly probe: string;

  private constructor(end: FabricEnd, memory: TransferMemory, target_bytes: number, probe: string) {
    this.#end = end;
    this.#memory = memory;
    this.#target_bytes = target_bytes;
    this.probe = probe;
  }

  /** @throws Error in libfabric's words */
  static async connect(
    memory: TransferMemory,
    provider: string,
    source: string,
    { name, numbers, memory_bytes }: LentMemory,
  ): Promise<FabricSource> {
    const end = await FabricEnd.open(provider, source, memory);
    try {
      const words = BigUint64Array.from(numbers, (number) => BigInt(`0x${number}`));
      await end.connect({ name: Buffer.from(name, 'base64'), numbers: words });
      const probe = randomBytes(probe_bytes);
      await end.probe(probe, meeting_ms);
      return new FabricSource(end, memory, memory_bytes, probe.toString('hex'));
    } catch (error) {
      const because = end.words() || (error as Error).message;
      await end.close();
      throw new Error(because);
    }
  }

  get description(): string {
    return `rma (${this.#end.provider})`;
  }

  async send(
    { pieces }: Frame,
    places: readonly MemoryPiece[] | undefined,
    patience: Patience,
  ): Promise<number> {
    if (!places) throw new Error('the peer did not say where the bytes belong');
    this.#mover ??= new Mover(this.#memory);
    const [summed] = await Promise.all([
      this.#mover.check(pieces),
      this.write(pairPieces(pieces, places), patience),
    ]);
    return summed.checksum;
  }

  /** Bytes that carry a checksum of their own. @throws MoveFailure; then nothing more can be written */
  async write(copies: readonly MemoryCopy[], patience: Patience): Promise<void> {
    await this.#end.write(copies, this.#target_bytes, patience);
  }

  async close(): Promise<void> {
    await this.#end.close();
    await this.#mover?.close();
  }
}

/** The end that is written to; its memory can be written by the source alone, until it is closed. */
export class FabricTarget implements TargetEnd {
  readonly tellsPlaces = true;
  readonly #end: FabricEnd;
  readonly #memory: TransferMemory;
  #mover: Mover | undefined;

  private constructor(end: FabricEnd, memory: TransferMemory) {
    this.#end = end;
    this.#memory = memory;
    end.expect(true);
  }

  /** @throws Error in libfabric's words */
  static async open(memory: TransferMemory, provider: string, source: string): Promise<FabricTarget> {
    return new FabricTarget(await FabricEnd.open(provider, source, memory), memory);
  }

  get description(): string {
    return `rma (${this.#end.provider})`;
  }

  /** How the source writes here. */
  get address(): LentMemory {
    const { name, numbers } = this.#end.address;
    return {
      provider: this.#end.provider,
      name: Buffer.from(name).toString('base64'),
      numbers: Array.from(numbers, (number) => number.toString(16).padStart(16, '0')),
      memory_bytes: this.#memory.bytes,
    };
  }

  async connected(probe: string | undefined): Promise<void> {
    const found = Buffer.from(this.#end.probed()).toString('hex');
    this.#end.expect(false);
    if (found !== probe) throw new Error('what the peer has written as a trial did not come');
  }

  expect(frames: readonly Frame[]): () => Promise<number[]> {
    this.#end.expect(true);
    return async () => {
      this.#end.expect(false);
      this.#mover ??= new Mover(this.#memory);
      const mover = this.#mover;
      const checked = await Promise.all(frames.map(({ pieces }) => mover.check(pieces)));
      return checked.map(({ checksum }) => checksum);
    };
  }

  /** Whether anything is expected: see `FabricEnd.expect`. */
  watch(isExpected: boolean): void {
    this.#end.expect(isExpected);
  }

  async close(): Promise<void> {
    await this.#end.close();
    await this.#mover?.close();
  }
}
