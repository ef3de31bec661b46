/** A way for bytes from one worker's memory to another's: each end is an object of its own. */
import type { MemoryPiece } from '../../../native/fabric/memory.ts';
import type { Patience } from '../../../native/fabric/mover.ts';
import type { Way } from '../messages.ts';

/** The bytes of one run. */
export interface Frame {
  header: Uint8Array;
  /** In order. */
  pieces: readonly MemoryPiece[];
}

export interface SourceEnd {
  readonly way: Way;
  /** For people: `rma (verbs;ofi_rxm)`, `tcp, encrypted`. */
  readonly description: string;
  /**
   * Sends a run; several may be under way. The pieces are the transfer's until the target has said that it has them,
   * or the end is closed.
   * @param places where they belong, for ways on which the source writes there itself
   * @returns their checksum
   * @throws Error: the end is of no use any more
   */
  send(frame: Frame, places: readonly MemoryPiece[] | undefined, patience: Patience): Promise<number>;
  close(): Promise<void>;
}

export interface TargetEnd {
  /** For people, as at the source. */
  readonly description: string;
  /** Whether the source writes by itself, so that it has to know where. */
  readonly tellsPlaces: boolean;
  /**
   * Both ends have met.
   * @param probe what the source has written as a trial
   * @throws Error: they have not
   */
  connected(probe: string | undefined): Promise<void>;
  /**
   * Runs come now, in this order.
   * @param failed is told once where they cannot come any more, before anybody asks
   * @returns resolves to their checksums; asked for once the source says that it has sent all
   */
  expect(
    frames: readonly Frame[],
    patience: Patience,
    failed: (error: Error) => void,
  ): () => Promise<number[]>;
  /** Nothing is written to our memory after it. */
  close(): Promise<void>;
}
