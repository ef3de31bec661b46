/**
 * Our kernels, and a device's, beside the same weights written out in F32 on the CPU, where nothing rounds them:
 * libllama is a reference only as far as it is right itself.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import koffi from 'koffi';
import { afterAll, expect, test } from 'vitest';
import { readGguf } from '../../../native/formats/gguf-reader.ts';
import { layoutGguf } from '../../../native/formats/gguf-writer.ts';
import { loadGgml } from '../../../native/ggml.ts';
import { findNativeLibraries } from '../../../native/libraries.ts';
import { packedProducts } from '../../../native/packed-products.ts';
import { fromF16 } from '../../native/kernels/numbers.ts';
import {
  engineOptions,
  generate,
  model,
  prompt,
  reference,
  referenceRows,
  rootMeanSquare,
  withEngine,
} from './support.ts';
import { test_device } from './test-backend.ts';

/** Root mean square of the differences in a row of logits, whose own is about 3: on average, and of the worst row. */
const mean_max = 0.08;
const row_max = 0.3;
/** Where values are rounded as libllama rounds them, beside its differences. */
const beside_theirs_max = 1.2;

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-exact-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const base = koffi.load(findNativeLibraries().ggml_base);
const readers = new Map(
  Object.entries({ Q8_0: 'q8_0', Q4_0: 'q4_0', Q4_K: 'q4_K', Q6_K: 'q6_K' }).map(([type, name]) => [
    type,
    base.func(`void dequantize_row_${name}(const void *blocks, _Out_ float *values, int64_t count)`),
  ]),
);

function asF32(type: string, bytes: Buffer, elements: number): Float32Array {
  if (type === 'F32') return new Float32Array(Uint8Array.from(bytes).buffer);
  if (type === 'F16')
    return Float32Array.from({ length: elements }, (_, at) => fromF16(bytes.readUInt16LE(2 * at)));
  if (type === 'BF16') {
    const bits = Uint32Array.from({ length: elements }, (_, at) => bytes.readUInt16LE(2 * at) << 16);
    return new Float32Array(bits.buffer);
  }
  const read = readers.get(type);
  if (!read) throw new Error(`no ${type} is written out`);
  const values = new Float32Array(elements);
  read(bytes, values, elements);
  return values;
}

function writtenOut(path: string, to: string): void {
  const { metadata, tensors } = readGguf(path);
  const file = readFileSync(path);
  const layout = layoutGguf(
    metadata,
    tensors.map(({ name, shape }) => ({ name, shape, type: 'F32' })),
  );
  const whole = Buffer.alloc(layout.file_bytes);
  whole.set(layout.header);
  tensors.forEach(({ type, shape, offset_bytes, size_bytes }, index) => {
    const bytes = file.subarray(offset_bytes, offset_bytes + size_bytes);
    const elements = shape.reduce((product, extent) => product * extent, 1);
    whole.set(Buffer.from(asF32(type, bytes, elements).buffer), layout.tensors[index]!.offset_bytes);
  });
  writeFileSync(to, whole);
}

function mean(numbers: readonly number[]): number {
  return numbers.reduce((sum, each) => sum + each, 0) / numbers.length;
}

const types = ['F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_K', 'Q4_K_M'] as const;
/** Kernels of devices add up in halves, whatever the weights are. */
const judgedTypes = test_device === undefined ? types : (['F32', ...types] as const);

test.each(judgedTypes)('%s, alone and in prompts, is near to its weights in F32', async (type) => {
  const path = await model('tiny-llama', type);
  const exact_path = join(folder, `${type}.gguf`);
  writtenOut(path, exact_path);
  const exact = reference(exact_path, { gpu_layers: 0, flash_attention: 'disabled' });
  const theirs = reference(path);
  const differences: number[] = [];
  const differencesOfTheirs: number[] = [];
  withEngine(engineOptions(path), (engine) => {
    for (const length of [1, 17, 300]) {
      const asked = prompt(length, engine.info.n_vocab, length);
      const [generated] = generate(engine, [{ prompt: asked, max_new_tokens: 12 }]);
      const rows = referenceRows(exact, asked, generated!.tokens);
      const rowsOfTheirs = referenceRows(theirs, asked, generated!.tokens);
      differences.push(...rows.map((row, index) => rootMeanSquare(row, generated!.rows[index]!)));
      differencesOfTheirs.push(...rows.map((row, index) => rootMeanSquare(row, rowsOfTheirs[index]!)));
    }
  });
  exact.close();
  theirs.close();
  expect(differences).toHaveLength(36);
  const asBytes = packedProducts(loadGgml())?.set.name !== 'AMX-BF16' && !type.endsWith('F16');
  const asTheirs = asBytes || test_device !== undefined;
  const like = (own: number, other: number): number => (asTheirs ? beside_theirs_max * other : own);
  expect(mean(differences)).toBeLessThan(like(mean_max, mean(differencesOfTheirs)));
  expect(Math.max(...differences)).toBeLessThan(like(row_max, Math.max(...differencesOfTheirs)));
});
