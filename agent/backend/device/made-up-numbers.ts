/** Contents of an operator's sources for a trial, the same everywhere, and results of any type as numbers. */
import { ggmlRow_bytes, ggmlTypeByName } from '../../../native/formats/ggml-types.ts';
import { addressOf, type Ggml, GgmlType } from '../../../native/ggml.ts';
import { fromHalf } from '../../../native/synth/half.ts';
import { isProvable, normalNumbers } from '../../engine/kernel-proof.ts';
import { bytesOfOperand, type Operand, type OperatorCopy } from './operator-copy.ts';

/** Numbers that are quantized once; what is longer repeats them. No power of two: rows of a model differ. */
const pool_rows = 37;
const pool_row_elements = 256;
/** −∞ in 16 bits. */
const half_negative_infinity = 0xfc00;
/** Beyond the contexts of small models, and of no special form. */
const position_step = 13;
const q8_block_elements = 32;
const q8_block_bytes = 34;

/** @returns bytes of the source at a place of an operator; undefined: numbers of its type cannot be made up */
export function contentsOf(ggml: Ggml, copy: OperatorCopy, index: number): Uint8Array | undefined {
  const operand = copy.sources[index]!;
  const { name, sources } = copy;
  const { type, extents } = operand;
  if (type === GgmlType.I32) {
    if (name === 'ROPE') return integers(ggml, operand, (at) => at * position_step);
    if (name === 'GET_ROWS' && index === 1)
      return integers(ggml, operand, (at, row) => (at * 7 + row) % sources[0]!.extents[1]!);
    if (name === 'MUL_MAT_ID')
      return integers(ggml, operand, (at, row) => (at + row) % sources[0]!.extents[2]!);
    return integers(ggml, operand, (at, row) => (at * 31 + row * 17) | 0);
  }
  if (type === GgmlType.I64) {
    // Every row is written once, in an order of its own.
    const bytes = new BigInt64Array(extents[0]!);
    for (let at = 0; at < bytes.length; at++) bytes[at] = BigInt(bytes.length - 1 - at);
    return new Uint8Array(bytes.buffer);
  }
  if (name === 'FLASH_ATTN_EXT' && index === 3) return causalMask(operand);
  return numbers(ggml, operand);
}

/** A result as numbers, where its type can be read. */
export function asNumbers(type: GgmlType, bytes: Uint8Array): ArrayLike<number> | undefined {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  switch (type) {
    case GgmlType.F32:
      return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
    case GgmlType.I32:
      return new Int32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
    case GgmlType.F16:
      return Float32Array.from({ length: bytes.length / 2 }, (_, at) =>
        fromHalf(view.getUint16(2 * at, true)),
      );
    case GgmlType.Q8_0:
      return Float32Array.from({ length: (bytes.length / q8_block_bytes) * q8_block_elements }, (_, at) => {
        const block = Math.floor(at / q8_block_elements) * q8_block_bytes;
        return fromHalf(view.getUint16(block, true)) * view.getInt8(block + 2 + (at % q8_block_elements));
      });
    default:
      return undefined;
  }
}

function integers(ggml: Ggml, operand: Operand, value: (at: number, row: number) => number): Uint8Array {
  const bytes = new Uint8Array(bytesOfOperand(ggml, operand));
  const view = new DataView(bytes.buffer);
  const [width, rows, planes] = operand.extents as [number, number, number];
  for (let plane = 0; plane < planes; plane++)
    for (let row = 0; row < rows; row++)
      for (let at = 0; at < width; at++)
        view.setInt32(
          at * 4 + row * operand.strides[1]! + plane * operand.strides[2]!,
          value(at, row + plane * rows),
          true,
        );
  return bytes;
}

/** The last rows of a sequence over all of its keys. */
function causalMask({ extents }: Operand): Uint8Array {
  const [keys, rows] = extents as [number, number];
  const mask = new Uint16Array(keys * rows);
  for (let row = 0; row < rows; row++)
    mask.fill(half_negative_infinity, row * keys + Math.min(keys, keys - rows + row + 1), (row + 1) * keys);
  return new Uint8Array(mask.buffer);
}

/** About normally distributed, in any type that numbers can be rounded to. */
function numbers(ggml: Ggml, operand: Operand): Uint8Array | undefined {
  const pool = poolOf(ggml, operand.type);
  if (!pool) return undefined;
  const bytes = new Uint8Array(bytesOfOperand(ggml, operand));
  for (let at = 0; at < bytes.length; at += pool.length)
    bytes.set(pool.subarray(0, Math.min(pool.length, bytes.length - at)), at);
  return bytes;
}

const pools = new Map<GgmlType, Uint8Array | undefined>();

function poolOf(ggml: Ggml, type: GgmlType): Uint8Array | undefined {
  if (!pools.has(type)) pools.set(type, makePool(ggml, type));
  return pools.get(type);
}

function makePool(ggml: Ggml, type: GgmlType): Uint8Array | undefined {
  const name = ggml.ggml_type_name(type)?.toUpperCase() ?? '';
  if (!isProvable(name)) return undefined;
  const source = normalNumbers(pool_rows * pool_row_elements, 5);
  if (type === GgmlType.F32) return new Uint8Array(source.buffer);
  const row_bytes = ggmlRow_bytes(ggmlTypeByName(name), pool_row_elements);
  const pool = new Uint8Array(pool_rows * row_bytes);
  const importance = ggml.ggml_quantize_requires_imatrix(type)
    ? new Float32Array(pool_row_elements).fill(1)
    : null;
  ggml.ggml_quantize_chunk(
    type,
    addressOf(source),
    addressOf(pool),
    0,
    pool_rows,
    pool_row_elements,
    importance && addressOf(importance),
  );
  return pool;
}
