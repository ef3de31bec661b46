/** The commands as people run them: the built program in a process of its own. */
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { packageRoot } from '../../../host/package-root.ts';
import { presetShape } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import { HubServer, sha256 } from './hub-server.ts';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-model-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

interface Ended {
  code: number;
  stdout: string;
  stderr: string;
}

function hpcserve(...args: string[]): Promise<Ended> {
  const main = join(packageRoot, 'cli/hpcserve.mjs');
  const env = { PATH: process.env.PATH, HOME: folder, HPCSERVE_SITE: 'local' };
  return new Promise((resolve) => {
    execFile(process.execPath, [main, ...args], { cwd: folder, env }, (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code) : 0, stdout, stderr });
    });
  });
}

test('synth with threads writes the bytes that it writes without, then inspect and check take the file', async () => {
  const made = await hpcserve(
    'model',
    'synth',
    'a.gguf',
    '--preset',
    'tiny-qwen3moe',
    '--quantization',
    'Q4_0',
    '--threads',
    '2',
    '--seed',
    '5',
  );
  expect(made).toMatchObject({ code: 0, stdout: `${join(folder, 'a.gguf')}\n` });
  const alone = join(folder, 'b.gguf');
  await synthesize({ path: alone, shape: presetShape('tiny-qwen3moe'), quantization: 'Q4_0', seed: 5 });
  expect(sha256(readFileSync(join(folder, 'a.gguf')))).toBe(sha256(readFileSync(alone)));

  const inspected = await hpcserve('model', 'inspect', 'a.gguf', '--tensors', '--metadata', '--json');
  const answer = JSON.parse(inspected.stdout);
  expect(answer.summary).toMatchObject({
    architecture: 'qwen3moe',
    experts: { count: 8, used_per_token: 2 },
  });
  expect(answer.metadata['tokenizer.ggml.tokens'].at(-1)).toBe('… 1016 more');
  expect(answer.tensors[0]).toMatchObject({ name: 'token_embd.weight', type: 'Q4_0', shape: [256, 1024] });

  const checked = await hpcserve('model', 'check', './a.gguf');
  expect(checked.code).toBe(0);
  expect(checked.stdout).toContain('native engine  yes');
});

test('errors: exit codes, text on stderr, nothing on stdout', async () => {
  const typo = await hpcserve('model', 'inspect', 'c.gguf');
  expect(typo).toMatchObject({ code: 4, stdout: '' });
  expect(typo.stderr).toContain('E_MODEL_MISSING');
  const shape = await hpcserve('model', 'synth', 'x.gguf', '--heads', '5');
  expect(shape).toMatchObject({ code: 2, stdout: '' });
  expect(shape.stderr).toContain('multiple of n_head_kv');
  const number = await hpcserve('model', 'synth', 'x.gguf', '--layers', 'many');
  expect(number.code).toBe(2);
});

test('pull ends with the path on stdout, or JSON lines; an existing file is not replaced', async () => {
  await using hub = await HubServer.start();
  const content = Buffer.from('not a model, but a file');
  hub.files.set('/data.bin', { content });
  const pulled = await hpcserve('model', 'pull', `${hub.origin}/data.bin`, '--sha256', sha256(content));
  expect(pulled).toMatchObject({ code: 0, stdout: `${join(folder, 'data.bin')}\n` });
  expect(pulled.stderr).toContain('verified by sha256');
  expect((await hpcserve('model', 'pull', `${hub.origin}/data.bin`)).code).toBe(10);
  const json = await hpcserve('model', 'pull', `${hub.origin}/data.bin`, '-o', 'other.bin', '--json');
  const lines = json.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(lines.at(-1)).toMatchObject({
    kind: 'pulled',
    path: join(folder, 'other.bin'),
    bytes: content.length,
  });
});
