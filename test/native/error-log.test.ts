/** What ggml logs reaches stderr where it is an error, and not otherwise. */
import { spawnSync } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cpuKernelsPath } from '../../native/cpu-kernels-file.ts';
import { model } from '../agent/engine/support.ts';
import { scratchFolder } from '../mesh/support.ts';

const lacking = existsSync(cpuKernelsPath) ? '' : ' [skipped: needs a C compiler]';
const built = (file: string): string =>
  JSON.stringify(new URL(`../../dist/native/${file}`, import.meta.url).href);

/** What a process writes that reads the words of a model, asks for too much memory, and opens a text as GGUF. */
async function logged(environment: Record<string, string>): Promise<string[]> {
  await using scratch = await scratchFolder();
  const text = join(scratch.path, 'text');
  writeFileSync(text, 'words, and more of them than a header has bytes');
  const path = await model('tiny-llama', 'F16');
  const code = `import { loadLlama } from ${built('llama.js')};
    import { Vocabulary } from ${built('vocabulary.js')};
    const { ggml } = loadLlama();
    Vocabulary.open(${JSON.stringify(path)});
    ggml.ggml_backend_buft_alloc_buffer(ggml.ggml_backend_cpu_buffer_type(), 2 ** 50);
    ggml.gguf_init_from_file(${JSON.stringify(text)}, { no_alloc: true, ctx: null });`;
  const { status, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', code], {
    env: { ...process.env, ...environment },
    encoding: 'utf8',
  });
  expect(status, stderr).toBe(0);
  return stderr.trim().split('\n');
}

describe.skipIf(lacking !== '')(`the log of ggml${lacking}`, () => {
  test('is its errors, but for memory that is not there, which is told to who asked for it', async () => {
    const all = await logged({ HPCSERVE_NATIVE_LOG: '1' });
    expect(all.length).toBeGreaterThan(3);
    expect(all.join('\n')).toMatch(/failed to allocate buffer/);
    expect(await logged({})).toEqual([expect.stringMatching(/invalid magic characters: 'word'/)]);
  });
});
