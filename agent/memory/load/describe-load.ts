import { ggmlTypeByName } from '../../../native/formats/ggml-types.ts';
import type { Backend } from '../../backend/backend.ts';
import type { PoolMemory } from '../../backend/pool-memory.ts';
import { convertedRowBytes, isLaidOutAsInFile, row_group } from '../../engine/row-groups.ts';
import type { PlacedWeight } from '../../engine/weights.ts';
import type { FileRange, TensorLoad } from './pieces.ts';

/** How a weight comes from its file into a pool, wherever it will lie there. */
export function describeLoad(
  { ggml, addressable }: Backend,
  memory: PoolMemory,
  { weight, bufferType }: Pick<PlacedWeight, 'weight' | 'bufferType'>,
): Omit<TensorLoad, 'pool_offset'> {
  const layout = memory.layoutOf(bufferType);
  const [row_elements, ...others] = weight.shape as [number, ...number[]];
  const rows = others.reduce((product, extent) => product * extent, 1);
  const planes = others[1] ?? 1;
  const type = ggmlTypeByName(weight.type).id;
  const divisible = layout !== memory.plain && (planes === 1 || (rows / planes) % row_group === 0);
  const pool_row_bytes = divisible
    ? convertedRowBytes(ggml, bufferType, type, row_elements, rows)
    : undefined;
  // Where the host writes to the pool, all layouts are the same memory.
  const copied = addressable && divisible && isLaidOutAsInFile(ggml, bufferType, type, row_elements, rows);
  return {
    name: weight.name,
    parts: weight.parts.map(rangeOf),
    type,
    row_elements,
    rows,
    planes,
    layout: copied ? 0 : memory.layouts.indexOf(layout),
    pool_row_bytes,
  };
}

/** Nothing but the range, so that it can be sent to a thread. */
function rangeOf({ offset_bytes, size_bytes }: FileRange): FileRange {
  return { offset_bytes, size_bytes };
}
