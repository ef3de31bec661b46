/** Damaged and foreign model files: an error that says which and why, never the end of the process. */
import { copyFileSync, mkdtempSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { readGguf } from '../../../native/formats/gguf-reader.ts';
import { type GgufMetadata, text, u32 } from '../../../native/formats/gguf-values.ts';
import { type GgufTensorSpec, layoutGguf } from '../../../native/formats/gguf-writer.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { summarizeGgufFile, writeGguf } from '../../native/formats/support.ts';
import { engineOptions, model } from './support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-engine-'));
afterAll(() => rmSync(folder, { recursive: true }));
const sound = await model('tiny-llama', 'Q8_0');

/** The sound model with changed metadata, or other tensors; weights are zero. */
async function variant(
  name: string,
  change: (metadata: GgufMetadata) => void,
  keep: (tensor: string) => boolean = () => true,
  more: GgufTensorSpec[] = [],
): Promise<string> {
  const path = join(folder, `${name}.gguf`);
  const file = readGguf(sound);
  change(file.metadata);
  const tensors = file.tensors.filter((tensor) => keep(tensor.name));
  const layout = layoutGguf(file.metadata, [...tensors, ...more]);
  await writeGguf(path, layout, (tensor) => new Uint8Array(tensor.size_bytes));
  return path;
}

function refusal(path: string): HpcserveError {
  try {
    new NativeEngine(engineOptions(path)).close();
  } catch (error) {
    if (error instanceof HpcserveError) return error;
    throw error;
  }
  throw new Error('the engine took the model');
}

test('an untouched copy is taken', async () => {
  new NativeEngine(engineOptions(await variant('untouched', () => {}))).close();
});

test('a file that is missing, empty, no GGUF, or cut off', () => {
  expect(refusal(join(folder, 'none.gguf')).code).toBe('E_MODEL_MISSING');
  const empty = join(folder, 'empty.gguf');
  writeFileSync(empty, '');
  expect(refusal(empty).code).toBe('E_MODEL_EMPTY');
  const noise = join(folder, 'noise.gguf');
  writeFileSync(noise, 'a text that is no model, and long enough to hold a header'.repeat(20));
  expect(refusal(noise).code).toBe('E_MODEL_FORMAT');
  const cut = join(folder, 'cut.gguf');
  copyFileSync(sound, cut);
  truncateSync(cut, statSync(cut).size - 10_000);
  expect(refusal(cut).code).toBe('E_MODEL_CUT_OFF');
});

test('missing tensors are named', async () => {
  const path = await variant(
    'missing',
    () => {},
    (name) => name !== 'blk.1.ffn_down.weight' && name !== 'output_norm.weight',
  );
  const error = refusal(path);
  expect(error.code).toBe('E_ENGINE_MODEL');
  expect(error.because).toEqual([
    'the tensor blk.1.ffn_down.weight is missing',
    'the tensor output_norm.weight is missing',
  ]);
});

test.each<[string, GgufTensorSpec[], string]>([
  [
    'biases of the feed-forward part',
    [
      { name: 'blk.0.ffn_up.bias', type: 'F32', shape: [512] },
      { name: 'blk.1.attn_output.bias', type: 'F32', shape: [256] },
    ],
    'blk.0.ffn_up.bias and 1 more tensors',
  ],
  [
    'a layer too many',
    [{ name: 'blk.99.attn_norm.weight', type: 'F32', shape: [256] }],
    'blk.99.attn_norm.weight',
  ],
  ['a bias of the output', [{ name: 'output.bias', type: 'F32', shape: [512] }], 'output.bias'],
  [
    'experts of a dense model',
    [{ name: 'blk.0.ffn_gate_inp.weight', type: 'F32', shape: [256, 8] }],
    'blk.0.ffn_gate_inp.weight',
  ],
])('%s that are not computed are refused, by the engine and before', async (name, more, told) => {
  const path = await variant(name.replaceAll(' ', '-'), () => {}, undefined, more);
  const error = refusal(path);
  expect([error.code, ...error.because]).toEqual(['E_ENGINE_MODEL', ...more.map((tensor) => tensor.name)]);
  expect(summarizeGgufFile(path).supported_by_native).toContain(`does not compute with ${told}`);
});

test('tensors without an effect on answers are left out', async () => {
  const path = await variant('frequencies', () => {}, undefined, [
    { name: 'blk.0.attn_rot_embd.weight', type: 'F32', shape: [32] },
    { name: 'cls.output.weight', type: 'F32', shape: [256, 2] },
  ]);
  expect(summarizeGgufFile(path).supported_by_native).toBe(true);
  new NativeEngine(engineOptions(path)).close();
});

test('tensors of another shape than the metadata says are named', async () => {
  const error = refusal(
    await variant('shape', (metadata) => metadata.set('llama.feed_forward_length', u32(256))),
  );
  expect(error.code).toBe('E_ENGINE_MODEL');
  expect(error.because[0]).toContain('blk.0.ffn_gate.weight has the shape [256, 512], expected [256, 256]');
});

test('foreign architectures and impossible metadata', async () => {
  const mamba = refusal(
    await variant('mamba', (metadata) => metadata.set('general.architecture', text('mamba'))),
  );
  expect(mamba.toText()).toContain('architecture mamba');
  const heads = refusal(
    await variant('heads', (metadata) => metadata.set('llama.attention.head_count_kv', u32(3))),
  );
  expect(heads.toText()).toContain('4 heads share 3 KV heads');
  const missing = refusal(await variant('key', (metadata) => metadata.delete('llama.block_count')));
  expect(missing.toText()).toContain('llama.block_count');
  const scaled = refusal(
    await variant('rope', (metadata) => metadata.set('llama.rope.scaling.type', text('longrope'))),
  );
  expect(scaled.toText()).toContain('longrope');
});
