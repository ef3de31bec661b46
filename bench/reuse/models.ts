/** Eight models of 0.3 to 1.4 GB, in the paper's proportions of sizes (30 % small, 60 % middle, 10 % large). */
import { mkdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { synthPresets } from '../../native/synth/presets.ts';
import type { SynthQuantization } from '../../native/synth/quantization.ts';
import { synthesize } from '../../native/synth/synthesize.ts';

const shapes: readonly { quantization: SynthQuantization; n_layer: number }[] = [
  { quantization: 'Q4_0', n_layer: 8 },
  { quantization: 'Q8_0', n_layer: 4 },
  { quantization: 'F16', n_layer: 3 },
  { quantization: 'Q4_0', n_layer: 14 },
  { quantization: 'Q8_0', n_layer: 8 },
  { quantization: 'F16', n_layer: 5 },
  { quantization: 'Q8_0', n_layer: 12 },
  { quantization: 'F16', n_layer: 11 },
];

export interface BenchModels {
  paths: string[];
  remove(): void;
}

/** @param chosen by default all eight */
export async function benchModels(
  name: string,
  log: (line: string) => void,
  chosen: readonly { quantization: SynthQuantization; n_layer: number }[] = shapes,
): Promise<BenchModels> {
  const folder = join(tmpdir(), `hpcserve-bench-${name}-${process.getuid?.() ?? 0}`);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const remove = (): void => rmSync(folder, { recursive: true, force: true });
  const base = synthPresets['llama-3.2-1b']!;
  const paths: string[] = [];
  try {
    for (const [index, { quantization, n_layer }] of chosen.entries()) {
      const path = join(folder, `${index}-${quantization}.gguf`);
      const shape = { ...base, n_layer, n_vocab: 16_384, name: `Bench ${index}` };
      const { file_bytes } = await synthesize({ path, shape, quantization, seed: index + 1, threads: 2 });
      log(`model ${index}: ${quantization}, ${n_layer} layers, ${(file_bytes / 1e9).toFixed(2)} GB`);
      paths.push(path);
    }
  } catch (error) {
    remove();
    throw error;
  }
  return { paths, remove };
}
