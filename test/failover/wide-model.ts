/** A small model whose rows of keys and values are as wide as can be, so that a short prompt has many bytes. */
import { join } from 'node:path';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';

/** @returns its file */
export async function wideModel(folder: string): Promise<string> {
  const path = join(folder, 'model.gguf');
  const tiny = synthPresets['tiny-llama']!;
  await synthesize({ path, shape: { ...tiny, n_head_kv: tiny.n_head }, quantization: 'F16', seed: 1 });
  return path;
}
