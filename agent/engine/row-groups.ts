/**
 * Whether a special layout can be made from a tensor group by group. ggml converts whole tensors only and says
 * nothing of how rows lie in the result, so it is tried: a small tensor of the same type and row length, converted
 * whole and in groups, must give the same bytes.
 */
import { type Ggml, memoryAt } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';

/**
 * Rows that are converted together, and where a part of a converted tensor may begin: special layouts interleave groups
 * of 4 to 32 rows (ggml's repack.cpp, amx).
 */
export const row_group = 32;

/** What came of a trial. */
interface GroupedLayout {
  row_bytes: number;
  /** The layout has the bytes of the file as they are: AMX takes F16 so. */
  as_in_file: boolean;
}

const known = new Map<string, GroupedLayout | undefined>();

/**
 * @param rows of the tensor: layouts are chosen by what divides it, so that the trial has the same remainder
 * @returns bytes of a row in the special layout; undefined where only whole tensors can be converted
 */
export function convertedRowBytes(
  ggml: Ggml,
  bufferType: Pointer,
  type: number,
  row_elements: number,
  rows: number,
): number | undefined {
  return groupedLayout(ggml, bufferType, type, row_elements, rows)?.row_bytes;
}

/** Whether a tensor may be copied into a special layout, as there is nothing to convert. */
export function isLaidOutAsInFile(
  ggml: Ggml,
  bufferType: Pointer,
  type: number,
  row_elements: number,
  rows: number,
): boolean {
  return groupedLayout(ggml, bufferType, type, row_elements, rows)?.as_in_file ?? false;
}

function groupedLayout(
  ggml: Ggml,
  bufferType: Pointer,
  type: number,
  row_elements: number,
  rows: number,
): GroupedLayout | undefined {
  const rest = rows % row_group;
  const key = `${bufferType} ${type} ${row_elements} ${rest}`;
  if (!known.has(key)) known.set(key, tryGroups(ggml, bufferType, type, row_elements, rest));
  return known.get(key);
}

function tryGroups(
  ggml: Ggml,
  bufferType: Pointer,
  type: number,
  row_elements: number,
  rest: number,
): GroupedLayout | undefined {
  const groups = [row_group, row_group, ...(rest > 0 ? [rest] : [])];
  const rows = groups.reduce((sum, group) => sum + group, 0);
  const context = ggml.ggml_init({
    mem_size: (groups.length + 2) * Number(ggml.ggml_tensor_overhead()),
    mem_buffer: null,
    no_alloc: true,
  })!;
  const tensor = (count: number): Pointer => ggml.ggml_new_tensor_2d(context, type, row_elements, count)!;
  const sizeOf = (of: Pointer): number => Number(ggml.ggml_backend_buft_get_alloc_size(bufferType, of));
  const whole = tensor(rows);
  const bytes = sizeOf(whole);
  const buffer = ggml.ggml_backend_buft_alloc_buffer(bufferType, 2 * bytes + 64);
  try {
    const row_bytes = bytes / rows;
    const parts = groups.map(tensor);
    if (!buffer || parts.some((part, index) => sizeOf(part) !== groups[index]! * row_bytes)) return undefined;
    const base = ggml.ggml_backend_buffer_get_base(buffer)!;
    const second = base + BigInt(Math.ceil(bytes / 64) * 64);
    // Numbers that differ everywhere, so that rows out of place show.
    const file_bytes = Number(ggml.ggml_nbytes(whole));
    const source = new Uint8Array(file_bytes);
    for (let index = 0; index < file_bytes; index++) source[index] = (index * 2654435761) >>> 15;
    ggml.ggml_backend_tensor_alloc(buffer, whole, base);
    ggml.ggml_backend_tensor_set(whole, source, 0, file_bytes);
    let row = 0;
    parts.forEach((part, index) => {
      const begin = (row * file_bytes) / rows;
      const end = ((row + groups[index]!) * file_bytes) / rows;
      ggml.ggml_backend_tensor_alloc(buffer, part, second + BigInt(row * row_bytes));
      ggml.ggml_backend_tensor_set(part, source.subarray(begin, end), 0, end - begin);
      row += groups[index]!;
    });
    const laid_out = memoryAt(base, bytes);
    if (Buffer.compare(laid_out, memoryAt(second, bytes)) !== 0) return undefined;
    return { row_bytes, as_in_file: Buffer.compare(laid_out, source) === 0 };
  } finally {
    if (buffer) ggml.ggml_backend_buffer_free(buffer);
    ggml.ggml_free(context);
  }
}
