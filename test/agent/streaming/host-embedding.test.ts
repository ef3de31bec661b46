/** The embedding of a streamed model, whose rows are read from its file. */
import { appendFileSync, copyFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import { HostEmbedding } from '../../../agent/streaming/host-embedding.ts';
import { type Ggml, loadGgml } from '../../../native/ggml.ts';
import { scratchFolder } from '../../mesh/support.ts';
import { model } from '../engine/support.ts';

/** What ggml gives, by who takes it back. */
const owned = {
  ggml_backend_buffer_free: 'ggml_backend_buft_alloc_buffer',
  ggml_free: 'ggml_init',
  ggml_gallocr_free: 'ggml_gallocr_new',
} as const;

/** @returns the library, and how much of what it gave it has not got back */
function counted(): { ggml: Ggml; held: () => Record<string, number> } {
  const ggml: Ggml = { ...loadGgml() };
  const held: Record<string, number> = {};
  const count = (name: keyof Ggml, as: string, by: number): void => {
    const call = ggml[name] as (...asked: unknown[]) => unknown;
    const counting = (...asked: unknown[]): unknown => {
      held[as] = (held[as] ?? 0) + by;
      return call(...asked);
    };
    Object.assign(ggml, { [name]: counting });
  };
  for (const [free, give] of Object.entries(owned) as [keyof typeof owned, keyof Ggml][]) {
    count(give, give, 1);
    count(free, give, -1);
  }
  return { ggml, held: () => ({ ...held }) };
}

test('gives back all memory where its file changes meanwhile, and once it is closed', async () => {
  await using scratch = await scratchFolder();
  const path = join(scratch.path, 'model.gguf');
  copyFileSync(await model('tiny-llama', 'Q8_0'), path);
  const { ggml, held } = counted();
  const file = openModelFile(path);
  const embedding = new HostEmbedding(ggml, file, 4);
  const all = held();
  expect(all.ggml_backend_buft_alloc_buffer).toBeGreaterThan(0);
  embedding.free();
  const nothing = Object.fromEntries(Object.keys(all).map((name) => [name, 0]));
  expect(held()).toEqual(nothing);
  // Behind its header, which is looked at first.
  const take = ggml.ggml_backend_buft_alloc_buffer;
  const changing = (...asked: Parameters<typeof take>): ReturnType<typeof take> => {
    appendFileSync(path, 'more');
    return take(...asked);
  };
  Object.assign(ggml, { ggml_backend_buft_alloc_buffer: changing });
  expect(() => new HostEmbedding(ggml, file, 4)).toThrow('changed while its weights were read');
  expect(held()).toEqual(nothing);
});
