/** One operator of a graph, small enough to be tried: its shapes, read from ggml's struct and cut down. */
import koffi from 'koffi';
import { type Ggml, GgmlType, tensorLayout } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';

/** Of struct ggml_tensor: operator, its parameters and flags, one behind the other. */
export const operator_offset = 80;
export const operator_bytes = 72;
export const sources_max = 10;
const dimensions = 4;

/**
 * Rows of a matrix that are tried, of those that are more: beyond the largest tile of every backend, with the same
 * rest. Lower: kernels for large products are not reached; higher: a trial takes longer.
 */
const matrix_rows_max = 256;
const matrix_row_group = 128;
const batch_rows_max = 128;
const batch_row_group = 64;
/** Of a matrix whose rows are picked or written. */
const picked_rows_max = 256;
/** Queries that are attended together, and keys: a number of them that every kernel divides, and one that none does. */
const attended_rows_max = 64;
const key_counts = [512, 333] as const;

export interface Operand {
  type: GgmlType;
  /** ne and nb of the tensor. */
  extents: number[];
  strides: number[];
}

export interface OperatorCopy {
  /** As ggml says it: `MUL_MAT`, `SWIGLU`. */
  name: string;
  /** Operator, parameters and flags, as they lie in the struct. */
  words: Uint8Array;
  /** By place; absent where the operator has none. */
  sources: (Operand | undefined)[];
  result: Operand;
  /** The source that the result is written into; absent: it has memory of its own. */
  writes_into?: number;
}

const plainTypes: ReadonlySet<GgmlType> = new Set([
  GgmlType.F32,
  GgmlType.F16,
  GgmlType.BF16,
  GgmlType.I8,
  GgmlType.I32,
  GgmlType.I64,
]);

/** Operators that compute nothing. */
const views: ReadonlySet<string> = new Set(['NONE', 'VIEW', 'RESHAPE', 'PERMUTE', 'TRANSPOSE']);

/**
 * What of a node is to be tried, most often one copy; attention has as many as kinds of lengths.
 * @param node of a graph that was placed
 */
export function copiesOf(ggml: Ggml, node: Pointer): OperatorCopy[] {
  const name = ggml.ggml_op_desc(node) ?? '?';
  if (views.has(name)) return [];
  const pointers = Array.from({ length: sources_max }, (_, index) =>
    pointer(node, tensorLayout.src + 8 * index),
  );
  const copy: OperatorCopy = {
    name,
    words: koffi.decode(node, operator_offset, koffi.array('uint8_t', operator_bytes)) as Uint8Array,
    sources: pointers.map((source) => (source === null ? undefined : operandOf(source))),
    result: operandOf(node),
  };
  const into = writtenSource(node, pointers);
  if (into !== undefined) copy.writes_into = into;
  else makeContiguous(copy.result);
  if (name === 'FLASH_ATTN_EXT') return key_counts.map((keys) => attentionOf(structuredClone(copy), keys));
  shrink(copy);
  return [copy];
}

/** What two copies have in common if the same kernel serves them, as far as one can tell from outside. */
export function keyOf({ name, words, sources, result }: OperatorCopy): string {
  const operands = [...sources, result].map(
    (operand) => operand && [operand.type, ...operand.extents, ...operand.strides].join(','),
  );
  return `${name} ${Buffer.from(words)
    .toString('hex')
    .replace(/(00)+$/, '')} ${operands.join(';')}`;
}

/** Bytes from the beginning of a tensor to behind its last element. */
export function bytesOfOperand(ggml: Ggml, { type, extents, strides }: Operand): number {
  const row_bytes = Number(ggml.ggml_row_size(type, extents[0]!));
  return strides.slice(1).reduce((sum, stride, index) => sum + (extents[index + 1]! - 1) * stride, row_bytes);
}

/** The source in whose memory an operator's result is, where it is to write into that. */
export function writtenSource(node: Pointer, sources: readonly (Pointer | null)[]): number | undefined {
  const into = pointer(node, tensorLayout.view_src);
  if (into === null) return undefined;
  const index = sources.findIndex(
    (source) => source !== null && (source === into || pointer(source, tensorLayout.view_src) === into),
  );
  return index < 0 ? undefined : index;
}

function shrink({ name, sources, result }: OperatorCopy): void {
  const [first, second, third] = sources;
  if (name === 'MUL_MAT' && first!.extents[2] === 1 && first!.extents[3] === 1) {
    const rows = cut(first!.extents[1]!, matrix_rows_max, matrix_row_group);
    const columns = cut(second!.extents[1]!, batch_rows_max, batch_row_group);
    resize(first!, 1, rows);
    resize(second!, 1, columns);
    resize(result, 0, rows);
    resize(result, 1, columns);
  } else if (name === 'MUL_MAT_ID') {
    const rows = cut(first!.extents[1]!, matrix_rows_max, matrix_row_group);
    const columns = cut(second!.extents[2]!, batch_rows_max, batch_row_group);
    resize(first!, 1, rows);
    resize(second!, 2, columns);
    resize(third!, 1, columns);
    resize(result, 0, rows);
    resize(result, 2, columns);
  } else if (name === 'GET_ROWS' && first!.extents[2] === 1 && second!.extents[1] === 1) {
    const columns = cut(second!.extents[0]!, batch_rows_max, batch_row_group);
    resize(first!, 1, Math.min(first!.extents[1]!, picked_rows_max));
    resize(second!, 0, columns);
    resize(result, 1, columns);
  } else if (name === 'SET_ROWS') {
    const rows = Math.min(result.extents[1]!, Math.max(picked_rows_max, first!.extents[1]!));
    resize(third!, 1, rows);
    resize(result, 1, rows);
  }
}

/** Rows of one sequence over so many keys: how many there are is known when a graph runs. */
function attentionOf(copy: OperatorCopy, keys: number): OperatorCopy {
  const [queries, key, value, mask] = copy.sources;
  const rows = cut(queries!.extents[1]!, attended_rows_max, attended_rows_max);
  resize(queries!, 1, rows);
  resize(key!, 1, keys);
  resize(value!, 1, keys);
  resize(copy.result, 2, rows);
  if (mask) {
    mask.extents = [keys, rows, 1, 1];
    makeContiguous(mask);
  }
  return copy;
}

/** At most about so many, with the same rest in groups. */
function cut(count: number, max: number, group: number): number {
  return count <= max ? count : max + (count % group);
}

/** Strides that followed from the extents before them still do; others stay: heads lie as far apart as ever. */
function resize(operand: Operand, dimension: number, extent: number): void {
  const followed = [1, 2, 3].filter((at) => operand.strides[at] === strideBehind(operand, at));
  operand.extents[dimension] = extent;
  for (const at of followed) operand.strides[at] = strideBehind(operand, at);
}

function makeContiguous(operand: Operand): void {
  for (const at of [1, 2, 3]) operand.strides[at] = strideBehind(operand, at);
}

/** Stride of a dimension where nothing lies between its elements. */
function strideBehind({ type, extents, strides }: Operand, dimension: number): number {
  // Elements of quantized types come in blocks: their rows stay as they are.
  const isRow = dimension === 1 && !plainTypes.has(type);
  return isRow ? strides[1]! : strides[dimension - 1]! * extents[dimension - 1]!;
}

function operandOf(tensor: Pointer): Operand {
  const struct = koffi.decode(tensor, 0, koffi.array('uint8_t', tensorLayout.size)) as Uint8Array;
  const view = new DataView(struct.buffer, struct.byteOffset);
  const list = (offset: number): number[] =>
    Array.from({ length: dimensions }, (_, index) => Number(view.getBigUint64(offset + 8 * index, true)));
  return {
    type: view.getInt32(0, true) as GgmlType,
    extents: list(tensorLayout.ne),
    strides: list(tensorLayout.nb),
  };
}

function pointer(tensor: Pointer, offset: number): Pointer | null {
  return koffi.decode(tensor, offset, 'void *') as Pointer | null;
}
