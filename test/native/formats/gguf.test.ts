import { mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import koffi from 'koffi';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ggmlTypes } from '../../../native/formats/ggml-types.ts';
import { readGguf } from '../../../native/formats/gguf-reader.ts';
import { readGgufParts, splitName } from '../../../native/formats/gguf-split.ts';
import { type GgufMetadata, type GgufValue, text, texts, u32 } from '../../../native/formats/gguf-values.ts';
import { layoutGguf } from '../../../native/formats/gguf-writer.ts';
import { findNativeLibraries } from '../../../native/libraries.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { tinyMetadata, tinyTensors, writeTinyGguf } from '../../control/model-source/support.ts';
import { summarizeGgufFile } from './support.ts';

let folder: string;
let good: string;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-gguf-'));
  good = join(folder, 'good.gguf');
  await writeTinyGguf(good);
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function failure(work: () => unknown): HpcserveError {
  try {
    work();
  } catch (error) {
    expect(error).toBeInstanceOf(HpcserveError);
    return error as HpcserveError;
  }
  throw new Error('nothing was thrown');
}

function written(name: string, bytes: Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, bytes);
  return path;
}

test('the table of types is that of the ggml library', () => {
  const library = koffi.load(findNativeLibraries().ggml_base);
  const name = library.func('const char *ggml_type_name(int type)');
  const blockBytes = library.func('size_t ggml_type_size(int type)');
  const blockElements = library.func('int64_t ggml_blck_size(int type)');
  const theirs = ggmlTypes.map(({ id }) => ({
    id,
    name: String(name(id)).toUpperCase(),
    block_elements: Number(blockElements(id)),
    block_bytes: Number(blockBytes(id)),
  }));
  expect(ggmlTypes.map((traits) => ({ ...traits }))).toEqual(theirs);
});

describe('what is written is read back', () => {
  test('tensors with their places and bytes', () => {
    const file = readGguf(good);
    expect(file.version).toBe(3);
    expect(file.tensors.map(({ name, type, shape }) => ({ name, type, shape }))).toEqual(tinyTensors);
    const bytes = readFileSync(good);
    for (const tensor of file.tensors) {
      expect(tensor.offset_bytes % 32).toBe(0);
      expect(bytes[tensor.offset_bytes + 5]).toBe(5);
    }
    expect(file.file_bytes).toBe(bytes.length);
  });

  const scalar: fc.Arbitrary<GgufValue> = fc.oneof(
    fc.integer({ min: 0, max: 0xffffffff }).map((value) => ({ type: 'uint32' as const, value })),
    fc.integer({ min: -128, max: 127 }).map((value) => ({ type: 'int8' as const, value })),
    fc.bigInt({ min: 2n ** 60n, max: 2n ** 64n - 1n }).map((value) => ({ type: 'uint64' as const, value })),
    fc.bigInt({ min: -(2n ** 63n), max: -(2n ** 60n) }).map((value) => ({ type: 'int64' as const, value })),
    fc.float({ noNaN: true }).map((value) => ({ type: 'float32' as const, value })),
    fc.double({ noNaN: true }).map((value) => ({ type: 'float64' as const, value })),
    fc.boolean().map((value) => ({ type: 'bool' as const, value })),
    fc.string({ unit: 'grapheme' }).map(text),
  );
  const array: fc.Arbitrary<GgufValue> = fc.oneof(
    fc.array(fc.string({ unit: 'grapheme' })).map(texts),
    fc.array(fc.integer({ min: -32768, max: 32767 })).map((values) => ({
      type: 'array' as const,
      items: 'int16' as const,
      length: values.length,
      values,
    })),
    fc.array(fc.array(fc.integer({ min: 0, max: 255 }))).map((rows) => ({
      type: 'array' as const,
      items: 'array' as const,
      length: rows.length,
      values: rows.map((values) => ({
        type: 'array' as const,
        items: 'uint8' as const,
        length: values.length,
        values,
      })),
    })),
  );

  test('metadata of every type', () => {
    const entries = fc.uniqueArray(fc.tuple(fc.string({ minLength: 1 }), fc.oneof(scalar, array)), {
      selector: ([key]) => key,
    });
    fc.assert(
      fc.property(entries, (pairs) => {
        const metadata: GgufMetadata = new Map(pairs.filter(([key]) => key !== 'general.alignment'));
        const path = written('any.gguf', layoutGguf(metadata, []).header);
        expect(readGguf(path).metadata).toEqual(metadata);
      }),
      { numRuns: 60 },
    );
  });

  test('long arrays can be skipped, whatever follows them', () => {
    const metadata = tinyMetadata();
    metadata.set('long.texts', texts(Array.from({ length: 100_000 }, (_, index) => `token ${index}`)));
    metadata.set('after', u32(7));
    const file = readGguf(written('long.gguf', layoutGguf(metadata, []).header), { keep_array_items: 10 });
    expect(file.metadata.get('long.texts')).toEqual({ type: 'array', items: 'string', length: 100_000 });
    expect(file.metadata.get('after')).toEqual(u32(7));
  });
});

describe('files that are no whole GGUF model say what they are', () => {
  test.each([
    [
      'safetensors',
      Buffer.concat([Buffer.from([16, 0, 0, 0, 0, 0, 0, 0]), Buffer.from('{"__metadata__":{}}')]),
      'safetensors',
    ],
    ['zip', Buffer.from('PK\x03\x04rest of it', 'latin1'), 'PyTorch checkpoint'],
    ['page', Buffer.from('<!DOCTYPE html><html><title>Sign in</title>'), 'HTML page'],
    [
      'pointer',
      Buffer.from('version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 123456\n'),
      '123456 bytes',
    ],
    ['gzip', Buffer.from([0x1f, 0x8b, 8, 0, 0, 0]), 'gzip'],
    ['zeros', Buffer.alloc(4096), 'zeros'],
    ['json', Buffer.from('{"error": "Repository not found"}'), 'JSON'],
    ['text', Buffer.from('Not Found'), 'Not Found'],
    ['noise', Buffer.from([1, 200, 3, 250, 0, 255, 9, 17, 99]), '01c803fa'],
  ])('%s', (name, bytes, words) => {
    const error = failure(() => readGguf(written(`${name}.gguf`, bytes)));
    expect(error.code).toBe('E_MODEL_FORMAT');
    expect(error.because.join()).toContain(words);
  });

  test('absent, empty, and a folder', () => {
    expect(failure(() => readGguf(join(folder, 'none.gguf'))).code).toBe('E_MODEL_MISSING');
    expect(failure(() => readGguf(written('empty.gguf', Buffer.alloc(0)))).code).toBe('E_MODEL_EMPTY');
    const error = failure(() => readGguf(folder));
    expect([error.code, ...error.because]).toEqual(['E_MODEL_UNREADABLE', 'it is a folder']);
  });

  test('old versions and the other byte order', () => {
    const bytes = readFileSync(good);
    bytes.writeUInt32LE(1, 4);
    expect(failure(() => readGguf(written('v1.gguf', bytes))).because.join()).toContain('version 1');
    bytes.writeUInt32BE(3, 4);
    const error = failure(() => readGguf(written('be.gguf', bytes)));
    expect(error.code).toBe('E_MODEL_VERSION');
    expect(error.because.join()).toContain('big-endian');
  });

  test('version 2 is read', () => {
    const bytes = readFileSync(good);
    bytes.writeUInt32LE(2, 4);
    expect(readGguf(written('v2.gguf', bytes)).version).toBe(2);
  });

  test('a file cut anywhere is cut off or, inside the magic, no GGUF', () => {
    const bytes = readFileSync(good);
    for (let length = 1; length < bytes.length - 32; length += length < 1200 ? 7 : 977) {
      const error = failure(() => readGguf(written('cut.gguf', bytes.subarray(0, length))));
      expect([length, error.code]).toEqual([length, length < 4 ? 'E_MODEL_FORMAT' : 'E_MODEL_CUT_OFF']);
    }
  });

  test('a cut in the data names the tensor, the bytes it needs and how many are missing', async () => {
    const path = join(folder, 'short.gguf');
    await writeTinyGguf(path);
    const whole = readGguf(path);
    const tensor = whole.tensors[2]!;
    truncateSync(path, tensor.offset_bytes + 10);
    const error = failure(() => readGguf(path));
    expect(error.because[0]).toBe(
      `tensor "blk.1.ffn_up.weight" needs bytes ${tensor.offset_bytes} to ${tensor.offset_bytes + tensor.size_bytes}, the file has ${tensor.offset_bytes + 10}`,
    );
    const last = whole.tensors.at(-1)!;
    expect(error.details.missing_bytes).toBe(
      last.offset_bytes + last.size_bytes - (tensor.offset_bytes + 10),
    );
  });

  test('hostile counts take no memory', () => {
    const bytes = readFileSync(good);
    for (const [at, name] of [
      [8, 'tensors'],
      [16, 'keys'],
    ] as const) {
      const changed = Buffer.from(bytes);
      changed.writeBigUInt64LE(2n ** 63n, at);
      const before = process.memoryUsage().rss;
      expect([name, failure(() => readGguf(written('hostile.gguf', changed))).code]).toEqual([
        name,
        'E_MODEL_HEADER',
      ]);
      expect(process.memoryUsage().rss - before).toBeLessThan(64 * 1024 * 1024);
    }
  });

  test('any flipped byte of the header is read or refused, never a crash', () => {
    const bytes = readFileSync(good);
    const header = readGguf(good).data_offset_bytes;
    fc.assert(
      fc.property(fc.nat(header - 1), fc.integer({ min: 1, max: 255 }), (at, change) => {
        const changed = Buffer.from(bytes);
        changed[at]! ^= change;
        const path = written('flipped.gguf', changed);
        try {
          summarizeGgufFile(path);
        } catch (error) {
          expect(error).toBeInstanceOf(HpcserveError);
        }
      }),
      { numRuns: 300 },
    );
  });

  test('an unknown type, a doubled tensor, and an offset out of order', () => {
    const bytes = readFileSync(good);
    const at = bytes.indexOf('output_norm.weight') + 'output_norm.weight'.length;
    const typed = Buffer.from(bytes);
    typed.writeUInt32LE(4, at + 4 + 8);
    expect(failure(() => readGguf(written('type.gguf', typed))).code).toBe('E_MODEL_TENSOR_TYPE');
    const moved = Buffer.from(bytes);
    moved.writeBigUInt64LE(0n, at + 4 + 8 + 4);
    expect(failure(() => readGguf(written('moved.gguf', moved))).because.join()).toContain('claims offset 0');
    const twice = layoutGguf(tinyMetadata(), [tinyTensors[3]!, tinyTensors[3]!]).header;
    expect(failure(() => readGguf(written('twice.gguf', twice))).because.join()).toContain('stands twice');
  });
});

describe('splits', () => {
  const part = (base: string, no: number, count: number): string =>
    join(folder, splitName({ base, part: no, parts: count }));
  const partMetadata = (index: number, count: number): GgufMetadata =>
    new Map<string, GgufValue>([
      ...(index === 0 ? tinyMetadata() : []),
      ['split.no', { type: 'uint16', value: index }],
      ['split.count', { type: 'uint16', value: count }],
    ]);

  test('all parts count together, whichever is named', async () => {
    await writeTinyGguf(part('s', 1, 2), partMetadata(0, 2), tinyTensors.slice(0, 2));
    await writeTinyGguf(part('s', 2, 2), partMetadata(1, 2), tinyTensors.slice(2));
    const summary = summarizeGgufFile(part('s', 2, 2));
    expect(summary.n_params).toBe(summarizeGgufFile(good).n_params);
    expect(summary.supported_by_native).toContain('single files');
  });

  test('a missing part and a part of another split are named', async () => {
    await writeTinyGguf(part('m', 1, 3), partMetadata(0, 3), tinyTensors.slice(0, 2));
    const missing = failure(() => readGgufParts(part('m', 1, 3)));
    expect(missing.code).toBe('E_MODEL_SPLIT');
    expect(missing.because).toHaveLength(2);
    await writeTinyGguf(part('w', 1, 2), partMetadata(0, 2), tinyTensors.slice(0, 2));
    await writeTinyGguf(part('w', 2, 2), partMetadata(0, 2), tinyTensors.slice(2));
    expect(failure(() => readGgufParts(part('w', 1, 2))).because.join()).toContain('part 1 of 2');
  });
});

describe('summaries', () => {
  test('sizes, places and reasons', () => {
    const summary = summarizeGgufFile(good);
    const q4 = (64 / 32) * 18 * 128;
    const q8 = (64 / 32) * 34 * 128;
    expect(summary).toMatchObject({
      architecture: 'llama',
      n_params: 64 * 4 + 2 * 64 * 128 + 64,
      n_layer: 2,
      head_dim: 16,
      n_vocab: 4,
      kv_bytes_per_token: 2 * 2 * (16 + 16) * 2,
      tied_embeddings: true,
      weight_bytes_of: { embedding: 1024, layers: [q4, q8], output: 256 },
      has_chat_template: false,
      supported_by_native: true,
    });
    expect(summary.weight_bytes).toBe(1024 + q4 + q8 + 256);
  });

  test('an architecture, a type and a missing key that the native engine cannot serve', async () => {
    const path = join(folder, 'other.gguf');
    await writeTinyGguf(path, tinyMetadata('mamba'));
    expect(summarizeGgufFile(path).supported_by_native).toContain('not mamba');
    await writeTinyGguf(path, tinyMetadata(), [{ name: 'a', type: 'IQ4_NL', shape: [32, 2] }]);
    expect(summarizeGgufFile(path).supported_by_native).toContain('IQ4_NL');
    const stretched = tinyMetadata();
    stretched.set('llama.rope.scaling.type', text('longrope'));
    await writeTinyGguf(path, stretched);
    expect(summarizeGgufFile(path).supported_by_native).toContain('longrope');
    const deep = tinyMetadata();
    deep.set('llama.block_count', u32(0xffffffff));
    await writeTinyGguf(path, deep);
    expect(failure(() => summarizeGgufFile(path)).because.join()).toContain('a whole number up to');
    const metadata = tinyMetadata();
    metadata.delete('llama.block_count');
    await writeTinyGguf(path, metadata);
    const error = failure(() => summarizeGgufFile(path));
    expect(error.code).toBe('E_MODEL_METADATA');
    expect(error.because.join()).toContain('llama.block_count');
  });
});
