/** Rows of keys and values as a frame has them: layer by layer keys, then values, each in the order of the rows. */

import { joinMemoryPieces, type MemoryPiece } from '../../native/fabric/memory.ts';
import type { OperatorRange } from '../../solver/refactoring/layout.ts';
import type { KvMemory, RowRun } from '../engine/kv-memory.ts';
import type { KvRange } from '../engine/kv-runs.ts';
import { kv_block_tokens } from '../engine/kv-storage.ts';
import { damaged } from './frame.ts';

interface Rows {
  block: number;
  begin: number;
  end: number;
}

/** Layers whose attention is among the operators. */
export function layersOf({ begin, end }: OperatorRange, n_layer: number): KvRange {
  // Operator 1 + 2l attends in layer l; the last operator is the head.
  const layerFrom = (operator: number): number =>
    Math.min(n_layer, Math.max(0, Math.ceil((operator - 1) / 2)));
  return { begin: layerFrom(begin), end: layerFrom(end) };
}

/** Bytes of a row in all layers of a range. */
export function layers_row_bytes(kv: KvMemory, layers: KvRange): number {
  return 2 * (layers.end - layers.begin) * kv.row_bytes;
}

/** @throws HpcserveError E_STAGE_FRAME: they do not exist here */
export function readKvRows(kv: KvMemory, layers: KvRange, rows: readonly Rows[], into: Uint8Array): void {
  kv.readRuns(withBytes(kv, layers, rows, into));
}

/** @throws HpcserveError E_STAGE_FRAME: they do not exist here, or are not as many */
export function writeKvRows(kv: KvMemory, layers: KvRange, rows: readonly Rows[], from: Uint8Array): void {
  const n_rows = rows.reduce((sum, { begin, end }) => sum + end - begin, 0);
  if (from.length !== n_rows * layers_row_bytes(kv, layers))
    throw damaged(`${n_rows} rows of KV came as ${from.length} bytes`);
  kv.writeRuns(withBytes(kv, layers, rows, from));
}

/**
 * Where rows lie in the pool of the device, in the order in which a frame has them.
 * @returns undefined where they are in no pool that others can address
 * @throws HpcserveError E_STAGE_FRAME: they do not exist here
 */
export function rowPieces(kv: KvMemory, layers: KvRange, rows: readonly Rows[]): MemoryPiece[] | undefined {
  const { storage, row_bytes } = kv;
  if (!storage.poolOffset) return undefined;
  const pieces: MemoryPiece[] = [];
  // Neighbours may lie in two slabs; rows of a block never do.
  for (const { matrix, row, count } of runs(kv, layers, rows))
    for (let at = row; at < row + count; ) {
      const next = Math.min(row + count, (Math.floor(at / kv_block_tokens) + 1) * kv_block_tokens);
      pieces.push({ offset: storage.poolOffset(matrix, at), bytes: (next - at) * row_bytes });
      at = next;
    }
  return joinMemoryPieces(pieces);
}

function* withBytes(
  kv: KvMemory,
  layers: KvRange,
  rows: readonly Rows[],
  bytes: Uint8Array,
): Generator<RowRun> {
  let at = 0;
  for (const { matrix, row, count } of runs(kv, layers, rows)) {
    const end = at + count * kv.row_bytes;
    yield { matrix, row, host: bytes.subarray(at, end) };
    at = end;
  }
}

/** Of every matrix, rows that lie side by side. */
function* runs(
  kv: KvMemory,
  layers: KvRange,
  rows: readonly Rows[],
): Generator<{ matrix: number; row: number; count: number }> {
  const n_blocks = kv.storage.slab_rows / kv_block_tokens;
  const found: { row: number; count: number }[] = [];
  for (const { block, begin, end } of rows) {
    if (block >= n_blocks || end > kv_block_tokens)
      throw damaged(`block ${block} of its rows does not exist here`);
    const row = kv.storage.block_rows[block]! + begin;
    const last = found.at(-1);
    if (last && last.row + last.count === row) last.count += end - begin;
    else found.push({ row, count: end - begin });
  }
  const missing = Array.from({ length: layers.end - layers.begin }, (_, index) => layers.begin + index).find(
    (layer) => !kv.layers.has(layer),
  );
  if (missing !== undefined) throw damaged(`layer ${missing} of its rows is not in this stage`);
  for (const matrix of kv.matricesOf(layers)) for (const run of found) yield { matrix, ...run };
}
