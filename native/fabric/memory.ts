/** Memory that is sent from and received into, and ranges of it. */
import type { Pointer } from '../signature.ts';

export interface TransferMemory {
  readonly address: Pointer;
  readonly bytes: number;
  /** The memory file whose offset 0 is at `address`; absent: it is no file, and nothing is sent by sendfile. */
  readonly descriptor?: number;
}

/** Bytes [offset, offset + bytes) of a memory. */
export interface MemoryPiece {
  offset: number;
  bytes: number;
}

/** Bytes of one memory, and where they belong in another. */
export interface MemoryCopy {
  from: number;
  to: number;
  bytes: number;
}

/** Neighbours become one. */
export function joinMemoryPieces(pieces: Iterable<MemoryPiece>): MemoryPiece[] {
  const joined: MemoryPiece[] = [];
  for (const { offset, bytes } of pieces) {
    const last = joined.at(-1);
    if (last && last.offset + last.bytes === offset) last.bytes += bytes;
    else joined.push({ offset, bytes });
  }
  return joined;
}

export function piecesSize_bytes(pieces: readonly MemoryPiece[]): number {
  return pieces.reduce((sum, { bytes }) => sum + bytes, 0);
}

/**
 * The bytes of `from` in order belong at those of `to` in order.
 * @throws RangeError where they are not as many
 */
export function pairPieces(from: readonly MemoryPiece[], to: readonly MemoryPiece[]): MemoryCopy[] {
  if (piecesSize_bytes(from) !== piecesSize_bytes(to))
    throw new RangeError(`${piecesSize_bytes(from)} bytes for ${piecesSize_bytes(to)}`);
  const copies: MemoryCopy[] = [];
  let target = 0;
  let done = 0;
  for (const piece of from)
    for (let at = 0; at < piece.bytes; ) {
      const { offset, bytes } = to[target]!;
      const taken = Math.min(piece.bytes - at, bytes - done);
      copies.push({ from: piece.offset + at, to: offset + done, bytes: taken });
      at += taken;
      done += taken;
      if (done === bytes) [target, done] = [target + 1, 0];
    }
  return copies;
}
