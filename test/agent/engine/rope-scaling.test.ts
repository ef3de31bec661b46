/** Linear scaling of rotary embeddings, in each of the ways that files say it, beside libllama on the same file. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import { readGguf } from '../../../native/formats/gguf-reader.ts';
import { f32, type GgufValue, text } from '../../../native/formats/gguf-values.ts';
import { layoutGguf } from '../../../native/formats/gguf-writer.ts';
import { writeGguf } from '../../native/formats/support.ts';
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
import { deviceTolerances, ownTolerances } from './tolerances.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-rope-'));
afterAll(() => rmSync(folder, { recursive: true }));
const tolerance = (test_device === undefined ? ownTolerances : deviceTolerances).F32!;

/** The tiny llama with these keys, weights and all. */
async function scaled(name: string, keys: Record<string, GgufValue>): Promise<string> {
  const path = join(folder, `${name}.gguf`);
  const sound = await model('tiny-llama', 'F32');
  const file = readGguf(sound);
  const bytes = readFileSync(sound);
  for (const [key, value] of Object.entries(keys)) file.metadata.set(`llama.rope.${key}`, value);
  const offsets = new Map(file.tensors.map((tensor) => [tensor.name, tensor.offset_bytes]));
  await writeGguf(path, layoutGguf(file.metadata, file.tensors), (tensor) => {
    const start = offsets.get(tensor.name)!;
    return bytes.subarray(start, start + tensor.size_bytes);
  });
  return path;
}

test.each<[string, Record<string, GgufValue>, number]>([
  ['the old key alone', { scale_linear: f32(4) }, 0.25],
  ['a factor without a type', { 'scaling.factor': f32(2) }, 0.5],
  ['a factor of 0', { 'scaling.factor': f32(0) }, 1],
  ['a factor beside the type none', { 'scaling.type': text('none'), 'scaling.factor': f32(4) }, 1],
])('%s is taken as libllama takes it', async (name, keys, freq_scale) => {
  const path = await scaled(name.replaceAll(' ', '-'), keys);
  expect(openModelFile(path).model.rope.freq_scale).toBe(freq_scale);
  withEngine(engineOptions(path), (engine) => {
    const context = reference(path);
    const asked = { prompt: prompt(60, engine.info.n_vocab, 5), max_new_tokens: 4 };
    const [generated] = generate(engine, [asked]);
    const rows = referenceRows(context, asked.prompt, generated!.tokens);
    context.close();
    expect(rows).toHaveLength(4);
    rows.forEach((row, index) => {
      expect(rootMeanSquare(row, generated!.rows[index]!)).toBeLessThan(tolerance);
    });
  });
});
