/**
 * Brings what a predecessor had in its pool into this node's page cache, the likeliest model first, so that a model
 * which is asked for later comes from memory. It is nobody's hurry: one small read at a time, none while a model is
 * loaded, and where answers are computed it rests most of the time.
 */
import { statSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { type FileVersion, fileVersion, sharedVersionText } from '../memory/file-version.ts';
import type { FileRange } from '../memory/load/pieces.ts';
import { residentRangesInTurns } from '../memory/peers/shared-tensors.ts';
import type { ManifestModel } from '../memory/pool-manifest.ts';

/** Of one read. Lower: gives way sooner; higher: fewer calls. */
const piece_bytes = 1024 * 1024;
/** How long it waits before it looks again whether loads are over. Lower: begins sooner; higher: fewer wake-ups. */
const look_ms = 50;
/** Beside answers it rests so many times as long as it read. Lower: done sooner; higher: answers are disturbed less. */
const rest_factor = 3;
/**
 * Share of the memory that may still be had: the page cache of a job counts as the job's. Lower: others keep theirs.
 */
const memory_share = 0.5;

export interface WarmSurroundings {
  /** Models are on their way: nothing is read. */
  loading(): boolean;
  /** Answers are being computed. */
  busy(): boolean;
  /** A model's ranges are in memory, all or what there was room for. */
  warmed(path: string, read_bytes: number): void;
  warn(text: string): void;
}

/** @param bytes_max read at most; default: what half of the memory that may still be had takes */
export async function warmCache(
  models: readonly ManifestModel[],
  around: WarmSurroundings,
  signal: AbortSignal,
  bytes_max = memory_share * process.availableMemory(),
): Promise<void> {
  let left_bytes = bytes_max;
  for (const model of models) {
    const file = unchanged(model);
    if (!file || signal.aborted) continue;
    try {
      const read_bytes = await warm(file, model.ranges, left_bytes, around, signal);
      left_bytes -= read_bytes;
      if (!signal.aborted) around.warmed(model.path, read_bytes);
    } catch (error) {
      // It would have been faster with it; whoever loads the file says what is wrong with it.
      around.warn(`${model.path} was not read ahead: ${(error as Error).message}`);
    }
    if (left_bytes <= 0) return;
  }
}

/** @returns bytes that were not in memory before */
async function warm(
  file: FileVersion,
  ranges: readonly FileRange[],
  bytes_max: number,
  around: WarmSurroundings,
  signal: AbortSignal,
): Promise<number> {
  const pieces = ranges.flatMap(piecesOf);
  const handle = await open(file.path, 'r');
  try {
    const resident = await residentRangesInTurns(file, pieces);
    const buffer = new Uint8Array(piece_bytes);
    let read_bytes = 0;
    for (const [index, piece] of pieces.entries()) {
      if (resident[index]) continue;
      if (read_bytes + piece.size_bytes > bytes_max) break;
      while (around.loading() && !signal.aborted) await delay(look_ms, undefined, { ref: false });
      if (signal.aborted) break;
      const took_ms = await readPiece(handle, piece, buffer);
      read_bytes += piece.size_bytes;
      if (around.busy()) await delay(rest_factor * took_ms, undefined, { ref: false });
    }
    return read_bytes;
  } finally {
    await handle.close();
  }
}

async function readPiece(
  handle: FileHandle,
  { offset_bytes, size_bytes }: FileRange,
  buffer: Uint8Array,
): Promise<number> {
  const started_ms = performance.now();
  await handle.read(buffer, 0, size_bytes, offset_bytes);
  return performance.now() - started_ms;
}

function piecesOf({ offset_bytes, size_bytes }: FileRange): FileRange[] {
  return Array.from({ length: Math.ceil(size_bytes / piece_bytes) }, (_, index) => ({
    offset_bytes: offset_bytes + index * piece_bytes,
    size_bytes: Math.min(piece_bytes, size_bytes - index * piece_bytes),
  }));
}

/** The file of a model, where it is still the one whose tensors were in the pool. */
function unchanged({ path, version }: ManifestModel): FileVersion | undefined {
  const stats = statSync(path, { bigint: true, throwIfNoEntry: false });
  const file = stats && fileVersion(path, stats);
  return file && sharedVersionText(file) === version ? file : undefined;
}
