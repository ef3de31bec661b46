/** Reads the header of a safetensors file (https://github.com/huggingface/safetensors, "Format"); no weights. */
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';
import { describeFileKind } from './file-kind.ts';
import { FileWindow } from './file-window.ts';

export interface SafetensorsTensor {
  name: string;
  /** As the file names it: F32, BF16, F8_E4M3, … */
  type: string;
  shape: number[];
  n_elements: number;
  /** From the start of the file. */
  offset_bytes: number;
  size_bytes: number;
}

export interface SafetensorsFile {
  path: string;
  file_bytes: number;
  mtime_ms: number;
  metadata: Record<string, string>;
  tensors: SafetensorsTensor[];
}

/** The limit that the reference implementation sets. */
const header_bytes_max = 100_000_000;

const bitsOfType: Readonly<Record<string, number>> = {
  BOOL: 8,
  F4: 4,
  F6_E2M3: 6,
  F6_E3M2: 6,
  U8: 8,
  I8: 8,
  F8_E5M2: 8,
  F8_E4M3: 8,
  F8_E8M0: 8,
  F8_E4M3FNUZ: 8,
  F8_E5M2FNUZ: 8,
  I16: 16,
  U16: 16,
  F16: 16,
  BF16: 16,
  I32: 32,
  U32: 32,
  F32: 32,
  C64: 64,
  F64: 64,
  I64: 64,
  U64: 64,
};

const count = z.int().nonnegative();
const entrySchema = z.object({
  dtype: z.string(),
  shape: z.array(count),
  data_offsets: z.tuple([count, count]),
});

/** Throws E_MODEL_MISSING, _UNREADABLE, _EMPTY, _FORMAT, _HEADER, _TENSOR_TYPE or _CUT_OFF. */
export function readSafetensors(path: string): SafetensorsFile {
  using window = new FileWindow(path);
  const { header, data_offset } = readHeader(window);
  const { __metadata__: metadata = {}, ...entries } = header;
  const tensors = Object.entries(entries).map(([name, entry]) => tensorOf(path, name, entry, data_offset));
  tensors.sort((a, b) => a.offset_bytes - b.offset_bytes);
  checkPlaces(window, tensors, data_offset);
  return {
    path,
    file_bytes: window.size,
    mtime_ms: window.mtime_ms,
    metadata: z.record(z.string(), z.string()).catch({}).parse(metadata),
    tensors,
  };
}

function readHeader(window: FileWindow): { header: Record<string, unknown>; data_offset: number } {
  const head = Buffer.from(window.bytes(Math.min(512, window.size), 'the header'));
  const length = head.length >= 8 ? head.readBigUInt64LE(0) : 0n;
  if (length < 2n || length > BigInt(header_bytes_max) || (head.length > 8 && head[8] !== 0x7b)) {
    const kind = describeFileKind(head);
    throw new HpcserveError('E_MODEL_FORMAT', {
      what: `${window.path} is not a safetensors file`,
      because: kind
        ? `it looks like ${kind.looks_like}`
        : 'it does not begin with the length of a JSON header',
      try: kind?.try,
    });
  }
  window.rewind(8);
  const text = window.bytes(Number(length), 'the JSON header').toString('utf8');
  const header = parseObject(text);
  if (header === undefined) throw damaged(window.path, 'its header is not a JSON object');
  return { header, data_offset: 8 + Number(length) };
}

function tensorOf(path: string, name: string, entry: unknown, data_offset: number): SafetensorsTensor {
  const parsed = entrySchema.safeParse(entry);
  if (!parsed.success) {
    throw damaged(path, `the entry of tensor "${name}" is not {dtype, shape, data_offsets}`);
  }
  const { dtype, shape, data_offsets } = parsed.data;
  const bits = bitsOfType[dtype];
  if (bits === undefined) {
    throw new HpcserveError('E_MODEL_TENSOR_TYPE', {
      what: `tensor "${name}" of ${path} has the unknown type ${dtype}`,
    });
  }
  const n_elements = shape.reduce((product, extent) => product * extent, 1);
  const size_bytes = data_offsets[1] - data_offsets[0];
  if (!Number.isSafeInteger(n_elements) || size_bytes !== Math.ceil((n_elements * bits) / 8)) {
    throw damaged(
      path,
      `tensor "${name}" has shape [${shape.join(', ')}] of ${dtype} but ${size_bytes} bytes of data`,
    );
  }
  return { name, type: dtype, shape, n_elements, offset_bytes: data_offset + data_offsets[0], size_bytes };
}

/** Tensors cover the data without gaps or overlaps, as the format demands, and end where the file ends. */
function checkPlaces(window: FileWindow, tensors: readonly SafetensorsTensor[], data_offset: number): void {
  let expected = data_offset;
  for (const tensor of tensors) {
    if (tensor.offset_bytes !== expected) {
      throw damaged(
        window.path,
        `tensor "${tensor.name}" begins at ${tensor.offset_bytes}, not at ${expected}`,
      );
    }
    expected += tensor.size_bytes;
  }
  const beyond = tensors.find((tensor) => tensor.offset_bytes + tensor.size_bytes > window.size);
  if (beyond !== undefined) {
    throw new HpcserveError('E_MODEL_CUT_OFF', {
      what: `${window.path} is cut off`,
      because: [
        `tensor "${beyond.name}" needs bytes ${beyond.offset_bytes} to ${beyond.offset_bytes + beyond.size_bytes}, the file has ${window.size}`,
        `${expected - window.size} bytes are missing at the end`,
      ],
      details: { path: window.path, file_bytes: window.size, missing_bytes: expected - window.size },
    });
  }
  if (expected !== window.size) {
    throw damaged(window.path, `${window.size - expected} bytes follow the last tensor`);
  }
}

function parseObject(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

function damaged(path: string, because: string): HpcserveError {
  return new HpcserveError('E_MODEL_HEADER', { what: `the header of ${path} is damaged`, because });
}
