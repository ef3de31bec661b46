/**
 * One CPU library of ggml in a process of its own, alone in its folder (`HPCSERVE_NATIVE_LIBRARIES`): every layout that
 * it offers is proved for every type, and an engine answers beside libllama on the same library. `node
 * cpu-library-child.js MODEL…` prints a `CpuLibraryReport`.
 */
import { basename } from 'node:path';
import { kernelChoice } from '../../../agent/engine/kernel-choice.ts';
import { loadGgml } from '../../../native/ggml.ts';
import {
  type Asked,
  argmax,
  engineOptions,
  generate,
  prompt,
  reference,
  referenceRows,
  rootMeanSquare,
  topGap,
  withEngine,
} from './support.ts';

export interface CpuLibraryReport {
  features: readonly string[];
  layouts: string[];
  /** Kernels that are wrong. */
  left_out: string[];
  /**
   * Of each model: tokens that were compared, those chosen otherwise, and how near the two best of the reference were
   * then.
   */
  models: { model: string; tokens: number; otherwise: number; gap_max: number; difference_max: number }[];
}

const types = [
  'F32',
  'F16',
  'BF16',
  'Q8_0',
  'Q4_0',
  'Q4_1',
  'Q5_0',
  'Q5_1',
  'Q2_K',
  'Q3_K',
  'Q4_K',
  'Q5_K',
  'Q6_K',
  'IQ4_NL',
  'IQ4_XS',
];
const shapes = [
  [256, 128],
  [2048, 64],
  [768, 104],
] as const;

const ggml = loadGgml();
const kernels = kernelChoice(ggml);
for (const type of types)
  for (const [width, height] of shapes)
    for (const use of ['matrix', 'experts'] as const) {
      const shape = use === 'experts' ? [width, height, 4] : [width, height];
      for (const policy of ['own', 'ggml'] as const)
        kernels.bufferTypeFor({ name: type, type, shape, use, parts: [] }, policy);
    }
const report: CpuLibraryReport = {
  features: ggml.cpuFeatures,
  layouts: ggml.cpuExtraBufferTypes.map((bufferType) => ggml.ggml_backend_buft_name(bufferType)!),
  left_out: kernels.left_out.map((error) => error.toText()),
  models: process.argv.slice(2).map(compare),
};
process.stdout.write(`${JSON.stringify(report)}\n`);

function compare(path: string): CpuLibraryReport['models'][number] {
  const found = { model: basename(path), tokens: 0, otherwise: 0, gap_max: 0, difference_max: 0 };
  withEngine(engineOptions(path), (engine) => {
    const context = reference(path);
    const asked = [1, 17, 200].map((length, seed): Asked => {
      return { prompt: prompt(length, engine.info.n_vocab, seed + 1), max_new_tokens: 8 };
    });
    generate(engine, asked).forEach(({ tokens, rows }, index) => {
      referenceRows(context, asked[index]!.prompt, tokens).forEach((row, at) => {
        found.tokens++;
        found.difference_max = Math.max(found.difference_max, rootMeanSquare(row, rows[at]!));
        if (argmax(row) === tokens[at]) return;
        found.otherwise++;
        found.gap_max = Math.max(found.gap_max, topGap(row));
      });
    });
    context.close();
  });
  return found;
}
