/**
 * Lays out GGUF version 3, little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
 * The layout is computed first, so that tensor data can then be written in any order, by several
 * workers, at offsets that are known; nothing but the header is ever held in memory.
 */
import { type GgmlTypeTraits, ggmlRow_bytes, ggmlTypeByName } from './ggml-types.ts';
import {
  type GgufArray,
  type GgufMetadata,
  type GgufPlain,
  type GgufType,
  type GgufValue,
  gguf_item_bytes,
  ggufTypes,
} from './gguf-values.ts';

export interface GgufTensorSpec {
  name: string;
  /** Storage type by name: F32, Q4_0, … */
  type: string;
  /** Elements per dimension, the contiguous one first (ggml's `ne`), one to four of them. */
  shape: readonly number[];
}

export interface GgufTensorPlace extends GgufTensorSpec {
  /** From the start of the file. */
  offset_bytes: number;
  /** Without padding. */
  size_bytes: number;
}

export interface GgufLayout {
  /** Everything before the tensor data, padding included. */
  header: Buffer;
  tensors: readonly GgufTensorPlace[];
  file_bytes: number;
}

const defaultAlignment = 32;

/**
 * Places the tensors one after another, each at a multiple of `general.alignment` (default 32).
 * Throws RangeError where a shape does not fit its type: specs come from our own code.
 */
export function layoutGguf(metadata: GgufMetadata, tensors: readonly GgufTensorSpec[]): GgufLayout {
  const alignment = Number(
    (metadata.get('general.alignment') as { value?: unknown })?.value ?? defaultAlignment,
  );
  const header = new ByteWriter();
  header.raw(Buffer.from('GGUF', 'latin1'));
  header.u32(3);
  header.u64(tensors.length);
  header.u64(metadata.size);
  for (const [key, value] of metadata) {
    header.string(key);
    header.u32(ggufTypes.indexOf(value.type));
    writeValue(header, value);
  }
  const sizes: number[] = [];
  let relative = 0;
  for (const tensor of tensors) {
    const traits = ggmlTypeByName(tensor.type);
    const size = tensorSize_bytes(tensor, traits);
    header.string(tensor.name);
    header.u32(tensor.shape.length);
    for (const extent of tensor.shape) header.u64(extent);
    header.u32(traits.id);
    header.u64(relative);
    sizes.push(size);
    relative += padded(size, alignment);
  }
  header.pad(alignment);
  const bytes = header.finish();
  let offset = bytes.length;
  const places = tensors.map((tensor, index) => {
    const place = { ...tensor, offset_bytes: offset, size_bytes: sizes[index]! };
    offset += padded(place.size_bytes, alignment);
    return place;
  });
  return { header: bytes, tensors: places, file_bytes: offset };
}

function tensorSize_bytes(tensor: GgufTensorSpec, traits: GgmlTypeTraits): number {
  const row = tensor.shape[0] ?? 0;
  if (tensor.shape.length < 1 || tensor.shape.length > 4 || tensor.shape.some((extent) => extent < 1)) {
    throw new RangeError(
      `${tensor.name}: shape [${tensor.shape.join(', ')}] is not one to four positive extents`,
    );
  }
  if (row % traits.block_elements !== 0) {
    throw new RangeError(
      `${tensor.name}: rows of ${row} are no multiple of the ${traits.block_elements} of ${traits.name}`,
    );
  }
  return tensor.shape.slice(1).reduce((product, extent) => product * extent, ggmlRow_bytes(traits, row));
}

function padded(bytes: number, alignment: number): number {
  return Math.ceil(bytes / alignment) * alignment;
}

function writeValue(out: ByteWriter, value: GgufValue): void {
  if (value.type === 'array') writeArray(out, value);
  else out.plain(value.type, value.value);
}

function writeArray(out: ByteWriter, array: GgufArray): void {
  if (array.values === undefined)
    throw new RangeError('an array whose values were skipped cannot be written');
  out.u32(ggufTypes.indexOf(array.items));
  out.u64(array.values.length);
  for (const item of array.values) {
    if (typeof item === 'object') writeArray(out, item);
    else out.plain(array.items, item);
  }
}

/** A buffer that grows by doubling. */
class ByteWriter {
  #bytes = Buffer.alloc(1 << 16);
  #length = 0;

  #room(count: number): number {
    const at = this.#length;
    if (at + count > this.#bytes.length) {
      const larger = Buffer.alloc(Math.max(this.#bytes.length * 2, at + count));
      this.#bytes.copy(larger, 0, 0, at);
      this.#bytes = larger;
    }
    this.#length = at + count;
    return at;
  }

  raw(bytes: Uint8Array): void {
    const at = this.#room(bytes.length);
    this.#bytes.set(bytes, at);
  }

  u32(value: number): void {
    const at = this.#room(4);
    this.#bytes.writeUInt32LE(value, at);
  }

  u64(value: number | bigint): void {
    const at = this.#room(8);
    this.#bytes.writeBigUInt64LE(BigInt(value), at);
  }

  string(value: string): void {
    const size = Buffer.byteLength(value);
    this.u64(size);
    const at = this.#room(size);
    this.#bytes.write(value, at, 'utf8');
  }

  plain(type: GgufType, value: GgufPlain): void {
    if (type === 'string') {
      this.string(String(value));
      return;
    }
    if (type === 'array') throw new RangeError('a plain value cannot be an array');
    const at = this.#room(gguf_item_bytes[type]);
    switch (type) {
      case 'bool':
        this.#bytes.writeUInt8(value ? 1 : 0, at);
        break;
      case 'uint8':
        this.#bytes.writeUInt8(Number(value), at);
        break;
      case 'int8':
        this.#bytes.writeInt8(Number(value), at);
        break;
      case 'uint16':
        this.#bytes.writeUInt16LE(Number(value), at);
        break;
      case 'int16':
        this.#bytes.writeInt16LE(Number(value), at);
        break;
      case 'uint32':
        this.#bytes.writeUInt32LE(Number(value), at);
        break;
      case 'int32':
        this.#bytes.writeInt32LE(Number(value), at);
        break;
      case 'float32':
        this.#bytes.writeFloatLE(Number(value), at);
        break;
      case 'float64':
        this.#bytes.writeDoubleLE(Number(value), at);
        break;
      case 'uint64':
        this.#bytes.writeBigUInt64LE(BigInt(value as number | bigint), at);
        break;
      case 'int64':
        this.#bytes.writeBigInt64LE(BigInt(value as number | bigint), at);
        break;
    }
  }

  pad(alignment: number): void {
    const at = this.#length;
    this.#room(padded(at, alignment) - at);
  }

  finish(): Buffer {
    return this.#bytes.subarray(0, this.#length);
  }
}
