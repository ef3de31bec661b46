/** Models of the true shape of Llama-3.2-1B with random weights, written where they are missing. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';

export const quantizations = ['Q4_0', 'Q8_0', 'BF16'] as const;
export type Quantization = (typeof quantizations)[number];

export const usual_shape = 'llama-3.2-1b';
const folder = join(packageRoot, 'build', 'bench-models');
export const vocabulary_size = synthPresets[usual_shape]!.n_vocab;

/** A GGUF file. @param preset of `synthPresets`; by default Llama-3.2-1B's */
export async function modelFile(
  quantization: Quantization,
  log: (line: string) => void,
  preset: string = usual_shape,
): Promise<string> {
  const path = join(folder, `${preset}-${quantization}.gguf`);
  if (existsSync(path)) return path;
  mkdirSync(folder, { recursive: true });
  log(`writing ${path}`);
  const partial = `${path}.${process.pid}`;
  await synthesize({ path: partial, shape: synthPresets[preset]!, quantization, seed: 1 });
  renameSync(partial, path);
  return path;
}

/** What vLLM computes with on CPUs: `int8` has weights and activations in 8 bits, `int4` weights alone in 4. */
export const peerWeights = ['bf16', 'int8', 'int4'] as const;
export type PeerWeights = (typeof peerWeights)[number];

/**
 * A Hugging Face folder.
 * @param python one with torch and transformers
 */
export function modelFolder(python: string, weights: PeerWeights, log: (line: string) => void): string {
  const path = join(folder, weights === 'bf16' ? `${usual_shape}-hf` : `${usual_shape}-hf-${weights}`);
  if (existsSync(path)) return path;
  const partial = `${path}.${process.pid}`;
  const argv =
    weights === 'bf16'
      ? ['bench/engines/model.py', partial, usual_shape]
      : ['bench/engines/quantize.py', modelFolder(python, 'bf16', log), partial, weights];
  log(`writing ${path}`);
  execFileSync(python, argv, { cwd: packageRoot, stdio: ['ignore', 'ignore', 'inherit'] });
  renameSync(partial, path);
  return path;
}
