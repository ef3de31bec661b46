import type { MemoryPiece } from '../../native/fabric/memory.ts';

export const memory_bytes = 1024 ** 3;

/** What is moved and timed as a whole: several transfers of one size, one after the other. */
export interface Round {
  bytes: number;
  piece_bytes: number;
  transfers: number;
}

export interface Timed {
  wall_ms: number;
  cpu_ms: number;
}

/** As peer.c places them: contiguous in order, or pieces from the end. */
export function piecesOf({ bytes, piece_bytes }: Round, transfer: number): MemoryPiece[] {
  const base = (transfer * bytes) % memory_bytes;
  const start = base + bytes > memory_bytes ? 0 : base;
  if (piece_bytes === bytes) return [{ offset: start, bytes }];
  return Array.from({ length: bytes / piece_bytes }, (_, at) => ({
    offset: start + bytes - (at + 1) * piece_bytes,
    bytes: piece_bytes,
  }));
}

/** A name for tables. */
export function sizeName(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB'];
  const step = Math.floor(Math.log2(bytes) / 10);
  return `${bytes / 1024 ** step} ${units[step]}`;
}
