import { existsSync, mkdirSync, renameSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { synthPresets } from '../../../native/synth/presets.ts';
import type { SynthQuantization } from '../../../native/synth/quantization.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';

/** A model of so many layers that four parts fit nowhere together; it is kept for later runs. @returns its path */
export async function deepModel(
  preset: string,
  quantization: SynthQuantization,
  seed = 1,
  n_layer = 6,
): Promise<string> {
  const kept = join(tmpdir(), `hpcserve-test-models-${process.getuid?.() ?? 0}`);
  mkdirSync(kept, { recursive: true, mode: 0o700 });
  const depth = n_layer === 6 ? 'deep' : `deep${n_layer}`;
  const path = join(kept, `${depth}-${preset}-${quantization}-${seed}.gguf`);
  if (existsSync(path)) return path;
  const partial = `${path}.${process.pid}`;
  await synthesize({ path: partial, shape: { ...synthPresets[preset]!, n_layer }, quantization, seed });
  renameSync(partial, path);
  return path;
}
