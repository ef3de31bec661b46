/**
 * Reads the header of a GGUF file, version 2 or 3, little-endian: metadata and tensor places, no weights
 * (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Every count and size is checked against the
 * length of the file before memory is taken for it.
 */
import { HpcserveError } from '../../spec/errors/error.ts';
import { describeFileKind } from './file-kind.ts';
import { FileWindow } from './file-window.ts';
import { ggmlRow_bytes, ggmlTypeById } from './ggml-types.ts';
import {
  type GgufArray,
  type GgufMetadata,
  type GgufPlain,
  type GgufType,
  type GgufValue,
  gguf_item_bytes,
  ggufTypes,
} from './gguf-values.ts';
import type { GgufTensorPlace } from './gguf-writer.ts';

export interface GgufTensor extends GgufTensorPlace {
  n_elements: number;
}

export interface GgufFile {
  path: string;
  version: number;
  file_bytes: number;
  mtime_ms: number;
  alignment_bytes: number;
  metadata: GgufMetadata;
  /** In file order. */
  tensors: readonly GgufTensor[];
  /** Where tensor data begins. */
  data_offset_bytes: number;
}

export interface GgufReadOptions {
  /**
   * Arrays of more items keep only their length. Default: all are kept, up to `count_max`.
   * A vocabulary of 128,000 tokens takes about 20 MB as strings; summaries do not need it.
   */
  keep_array_items?: number;
}

/** Tensors, keys or items: the largest vocabularies have half a million merges, so above this a count is damage. */
const count_max = 16 * 1024 * 1024;
/** Chat templates are the longest strings, some 10 KB. */
const string_bytes_max = 64 * 1024 * 1024;
const array_depth_max = 4;
/** Length of the name, one dimension, type and offset: the least a tensor's record takes. */
const tensor_record_bytes_min = 8 + 4 + 8 + 4 + 8;
/** Length of the key, type and the smallest value. */
const pair_record_bytes_min = 8 + 4 + 1;

/**
 * Throws E_MODEL_MISSING, E_MODEL_UNREADABLE, E_MODEL_EMPTY, E_MODEL_FORMAT (not GGUF, and what it looks
 * like), E_MODEL_VERSION, E_MODEL_CUT_OFF, E_MODEL_TENSOR_TYPE or E_MODEL_HEADER.
 */
export function readGguf(path: string, options: GgufReadOptions = {}): GgufFile {
  using window = new FileWindow(path);
  return new GgufParser(window, options.keep_array_items ?? count_max).parse();
}

class GgufParser {
  readonly #window: FileWindow;
  readonly #keepItems: number;

  constructor(window: FileWindow, keepItems: number) {
    this.#window = window;
    this.#keepItems = keepItems;
  }

  parse(): GgufFile {
    const version = this.#preamble();
    const tensorCount = this.#count('the number of tensors', tensor_record_bytes_min);
    const pairCount = this.#count('the number of metadata keys', pair_record_bytes_min);
    const metadata: GgufMetadata = new Map();
    for (let index = 0; index < pairCount; index++) {
      const key = this.#string(`key ${index + 1} of ${pairCount}`);
      if (metadata.has(key)) throw this.#damaged(`the key "${key}" stands twice`);
      metadata.set(key, this.#value(key));
    }
    const alignment = this.#alignment(metadata);
    const records = new Map<string, TensorRecord>();
    for (let index = 0; index < tensorCount; index++) {
      const record = this.#tensorRecord(index, tensorCount);
      if (records.has(record.name)) throw this.#damaged(`the tensor "${record.name}" stands twice`);
      records.set(record.name, record);
    }
    const dataOffset = padded(this.#window.position, alignment);
    return {
      path: this.#window.path,
      version,
      file_bytes: this.#window.size,
      mtime_ms: this.#window.mtime_ms,
      alignment_bytes: alignment,
      metadata,
      tensors: this.#place([...records.values()], dataOffset, alignment),
      data_offset_bytes: dataOffset,
    };
  }

  #preamble(): number {
    const window = this.#window;
    const head = Buffer.from(window.bytes(Math.min(512, window.size), 'the magic number'));
    if (head.toString('latin1', 0, 4) !== 'GGUF') {
      const kind = describeFileKind(head);
      throw new HpcserveError('E_MODEL_FORMAT', {
        what: `${window.path} is not a GGUF file`,
        because: kind
          ? `it looks like ${kind.looks_like}`
          : `it begins with the bytes ${head.subarray(0, 8).toString('hex')} instead of "GGUF"`,
        try: kind?.try,
        details: { path: window.path },
      });
    }
    window.rewind(4);
    const version = window.u32('the version');
    if (version === 2 || version === 3) return version;
    const swapped = Buffer.alloc(4);
    swapped.writeUInt32BE(version);
    const bigEndian = swapped.readUInt32LE() <= 16;
    throw new HpcserveError('E_MODEL_VERSION', {
      what: `${window.path} is a GGUF file that cannot be read here`,
      because: bigEndian
        ? 'it is big-endian (made for s390x or another big-endian machine); only little-endian files are read'
        : `it has version ${version}; versions 2 and 3 are read`,
    });
  }

  #alignment(metadata: GgufMetadata): number {
    const entry = metadata.get('general.alignment');
    if (entry === undefined) return 32;
    const value = entry.type === 'uint32' ? Number(entry.value) : 0;
    if (value < 8 || value > 1 << 20 || (value & (value - 1)) !== 0) {
      throw this.#damaged('general.alignment is not a power of two between 8 and 1 MiB, stored as uint32');
    }
    return value;
  }

  #tensorRecord(index: number, count: number): TensorRecord {
    const name = this.#string(`the name of tensor ${index + 1} of ${count}`);
    const what = `the record of tensor "${name}"`;
    const dimensions = this.#window.u32(what);
    if (dimensions < 1 || dimensions > 4) {
      throw this.#damaged(`tensor "${name}" has ${dimensions} dimensions; one to four are allowed`);
    }
    const shape: number[] = [];
    let elements = 1;
    for (let dimension = 0; dimension < dimensions; dimension++) {
      const extent = Number(this.#window.u64(what));
      elements *= extent;
      if (extent < 1 || elements > Number.MAX_SAFE_INTEGER) {
        throw this.#damaged(`tensor "${name}" has an impossible shape: [${[...shape, extent].join(', ')}]`);
      }
      shape.push(extent);
    }
    const typeId = this.#window.u32(what);
    const traits = ggmlTypeById(typeId);
    if (traits === undefined) {
      throw new HpcserveError('E_MODEL_TENSOR_TYPE', {
        what: `tensor "${name}" of ${this.#window.path} has the unknown type ${typeId}`,
        because:
          'the type was added after this version of hpcserve, or was removed from ggml, or the file is damaged',
        details: { tensor: name, type: typeId },
      });
    }
    const row = shape[0]!;
    if (row % traits.block_elements !== 0) {
      throw this.#damaged(
        `tensor "${name}" has rows of ${row} elements, which are no whole blocks of ${traits.name} (${traits.block_elements})`,
      );
    }
    return {
      name,
      type: traits.name,
      shape,
      n_elements: elements,
      size_bytes: (elements / row) * ggmlRow_bytes(traits, row),
      relative_offset: this.#window.u64(what),
    };
  }

  /** Tensors follow one another without gaps or overlaps, as ggml demands, and end inside the file. */
  #place(records: readonly TensorRecord[], dataOffset: number, alignment: number): GgufTensor[] {
    const window = this.#window;
    let expected = 0;
    return records.map(({ relative_offset, ...record }) => {
      if (relative_offset !== BigInt(expected)) {
        throw this.#damaged(
          `tensor "${record.name}" claims offset ${relative_offset}, but the tensor before it ends at ${expected}`,
        );
      }
      const offset = dataOffset + expected;
      if (offset + record.size_bytes > window.size) {
        const missing = this.#end(records, dataOffset, alignment) - window.size;
        throw new HpcserveError('E_MODEL_CUT_OFF', {
          what: `${window.path} is cut off`,
          because: [
            `tensor "${record.name}" needs bytes ${offset} to ${offset + record.size_bytes}, the file has ${window.size}`,
            `${missing} bytes are missing at the end`,
          ],
          details: {
            path: window.path,
            tensor: record.name,
            file_bytes: window.size,
            missing_bytes: missing,
          },
        });
      }
      expected += padded(record.size_bytes, alignment);
      return { ...record, offset_bytes: offset };
    });
  }

  /** Where the last tensor ends, from the start of the file; padding after it may be absent. */
  #end(records: readonly TensorRecord[], dataOffset: number, alignment: number): number {
    let end = dataOffset;
    let next = dataOffset;
    for (const record of records) {
      end = next + record.size_bytes;
      next += padded(record.size_bytes, alignment);
    }
    return end;
  }

  #value(key: string): GgufValue {
    const type = this.#type(key);
    return type === 'array' ? this.#array(key, 1) : { type, value: this.#plain(type, key) };
  }

  #type(key: string): GgufType {
    const number = this.#window.u32(`the type of "${key}"`);
    const type = ggufTypes[number];
    if (type === undefined) throw this.#damaged(`the key "${key}" has the unknown value type ${number}`);
    return type;
  }

  #array(key: string, depth: number): GgufArray {
    if (depth > array_depth_max)
      throw this.#damaged(`the key "${key}" nests arrays deeper than ${array_depth_max}`);
    const items = this.#type(key);
    const itemBytes = items === 'string' ? 8 : items === 'array' ? 12 : gguf_item_bytes[items];
    const length = this.#count(`the length of "${key}"`, itemBytes);
    if (length > this.#keepItems) {
      this.#skipItems(key, items, length, depth);
      return { type: 'array', items, length };
    }
    const values: (GgufPlain | GgufArray)[] = [];
    for (let index = 0; index < length; index++) {
      values.push(items === 'array' ? this.#array(key, depth + 1) : this.#plain(items, key));
    }
    return { type: 'array', items, length, values };
  }

  #skipItems(key: string, items: GgufType, length: number, depth: number): void {
    if (items !== 'string' && items !== 'array') {
      this.#window.skip(length * gguf_item_bytes[items], `"${key}"`);
      return;
    }
    for (let index = 0; index < length; index++) {
      if (items === 'array') this.#array(key, depth + 1);
      else this.#window.skip(this.#stringLength(`"${key}"`), `"${key}"`);
    }
  }

  #plain(type: Exclude<GgufType, 'array'>, key: string): GgufPlain {
    if (type === 'string') return this.#string(`"${key}"`);
    const bytes = this.#window.bytes(gguf_item_bytes[type], `"${key}"`);
    switch (type) {
      case 'bool':
        return bytes[0] !== 0;
      case 'uint8':
        return bytes.readUInt8();
      case 'int8':
        return bytes.readInt8();
      case 'uint16':
        return bytes.readUInt16LE();
      case 'int16':
        return bytes.readInt16LE();
      case 'uint32':
        return bytes.readUInt32LE();
      case 'int32':
        return bytes.readInt32LE();
      case 'float32':
        return bytes.readFloatLE();
      case 'float64':
        return bytes.readDoubleLE();
      case 'uint64':
        return narrow(bytes.readBigUInt64LE());
      case 'int64':
        return narrow(bytes.readBigInt64LE());
    }
  }

  #string(what: string): string {
    return this.#window.bytes(this.#stringLength(what), what).toString('utf8');
  }

  #stringLength(what: string): number {
    const length = this.#window.u64(what);
    if (length > string_bytes_max) throw this.#damaged(`${what} claims to be a string of ${length} bytes`);
    return Number(length);
  }

  /** A count of records that take at least `record_bytes` each: the file must have room for them. */
  #count(what: string, record_bytes: number): number {
    const count = this.#window.u64(what);
    if (count > BigInt(count_max))
      throw this.#damaged(`${what} is ${count}; more than ${count_max} is no model`);
    const needed = Number(count) * record_bytes;
    if (needed > this.#window.remaining) {
      throw new HpcserveError('E_MODEL_CUT_OFF', {
        what: `${this.#window.path} ends inside its header`,
        because: `${what} is ${count}, which takes at least ${needed} bytes, but only ${this.#window.remaining} follow`,
        details: { path: this.#window.path, file_bytes: this.#window.size },
      });
    }
    return Number(count);
  }

  #damaged(because: string): HpcserveError {
    return new HpcserveError('E_MODEL_HEADER', {
      what: `the header of ${this.#window.path} is damaged`,
      because,
      details: { path: this.#window.path },
    });
  }
}

interface TensorRecord {
  name: string;
  type: string;
  shape: number[];
  n_elements: number;
  size_bytes: number;
  relative_offset: bigint;
}

function padded(bytes: number, alignment: number): number {
  return Math.ceil(bytes / alignment) * alignment;
}

function narrow(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}
