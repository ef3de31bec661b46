/** Models of one shape with random weights, larger than the arena that they go through. */
import { copyFileSync, existsSync, mkdirSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { synthPresets } from '../../native/synth/presets.ts';
import type { SynthShape } from '../../native/synth/shape.ts';
import { synthesize } from '../../native/synth/synthesize.ts';

const folder = join(packageRoot, 'build', 'bench-models');

/** 16 layers of 15 million weights each. */
const shape: SynthShape = {
  ...synthPresets['tiny-llama']!,
  name: 'Streamed Llama',
  n_layer: 16,
  n_embd: 1024,
  n_head: 16,
  n_head_kv: 4,
  head_dim: 64,
  n_ff: 4096,
  n_vocab: 4096,
};

/** GGUF files in BF16 of as many models; all but the first are copies, which have pages of their own in the cache. */
export async function streamedModels(count: number, log: (line: string) => void): Promise<string[]> {
  mkdirSync(folder, { recursive: true });
  const [first, ...others] = Array.from({ length: count }, (_, index) =>
    join(folder, `streamed-llama-${index}.gguf`),
  );
  await written(first!, log, (path) => synthesize({ path, shape, quantization: 'BF16', seed: 1 }));
  for (const path of others)
    await written(path, log, (partial) => Promise.resolve(copyFileSync(first!, partial)));
  return [first!, ...others];
}

async function written(
  path: string,
  log: (line: string) => void,
  write: (partial: string) => Promise<unknown>,
): Promise<void> {
  if (existsSync(path)) return;
  log(`writing ${path}`);
  const partial = `${path}.${process.pid}`;
  await write(partial);
  renameSync(partial, path);
}
