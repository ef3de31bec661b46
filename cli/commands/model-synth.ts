import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { resolve } from 'node:path';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { presetShape, synthPresets } from '../../native/synth/presets.ts';
import { type SynthQuantization, synthQuantizations } from '../../native/synth/quantization.ts';
import { type SynthArchitecture, type SynthShape, synthArchitectures } from '../../native/synth/shape.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { CliContext } from '../context.ts';
import { formatCount } from '../format/model-summary.ts';
import { formatBytes, formatDuration } from '../format/quantities.ts';

/** Sizes that a flag overrides, by commander's name of the flag. */
const sizeFlags = {
  layers: 'n_layer',
  embd: 'n_embd',
  heads: 'n_head',
  headsKv: 'n_head_kv',
  headDim: 'head_dim',
  ff: 'n_ff',
  vocab: 'n_vocab',
  context: 'n_ctx_train',
} as const satisfies Record<string, keyof SynthShape>;

interface SynthFlags extends Partial<Record<keyof typeof sizeFlags, number>> {
  preset: string;
  architecture?: SynthArchitecture;
  quantization?: SynthQuantization;
  experts?: number;
  expertsUsed?: number;
  seed: number;
  name?: string;
  tied?: boolean;
  ropeBase?: number;
  threads?: number;
  force?: boolean;
}

export function registerModelSynth(model: Command, context: CliContext): void {
  model
    .command('synth <file>')
    .description(
      'Write a real GGUF model with random weights and a usable tokenizer, for tests and benchmarks',
    )
    .option('--preset <name>', 'shape to start from', 'tiny-llama')
    .addOption(new Option('--architecture <name>', 'instead of the preset’s').choices(synthArchitectures))
    .addOption(new Option('--quantization <type>', 'weight type (default: Q8_0)').choices(synthQuantizations))
    .option('--seed <n>', 'the same seed gives the same bytes', wholeNumber, 1)
    .option('--name <text>', 'name in the metadata')
    .option('--layers <n>', 'layers', wholeNumber)
    .option('--embd <n>', 'embedding length', wholeNumber)
    .option('--heads <n>', 'attention heads', wholeNumber)
    .option('--heads-kv <n>', 'key and value heads', wholeNumber)
    .option('--head-dim <n>', 'elements of a head', wholeNumber)
    .option('--ff <n>', 'feed-forward length, of one expert where there are experts', wholeNumber)
    .option('--vocab <n>', 'tokens of the vocabulary', wholeNumber)
    .option('--context <n>', 'context length in the metadata', wholeNumber)
    .option('--experts <n>', 'experts (llama: as Mixtral)', wholeNumber)
    .option('--experts-used <n>', 'experts a token uses', wholeNumber)
    .option('--rope-base <x>', 'base of the rotary frequencies', positiveReal)
    .option('--tied', 'the embedding serves as output matrix')
    .option('--no-tied', 'a separate output matrix')
    .option('--threads <n>', 'threads that compute (default: the cores)', wholeNumber)
    .option('--force', 'replace the file if it exists')
    .addHelpText(
      'after',
      `
Presets: ${Object.keys(synthPresets).join(', ')}.
--heads must be a multiple of --heads-kv, --head-dim even; K quantizations want rows of 256 and fall back to
Q8_0 where they have others. Weights are random, so answers make no sense; sizes, speed, tokenizer and chat template are real.

Examples:
  $ hpcserve model synth tiny.gguf
  $ hpcserve model synth 1b.gguf --preset llama-3.2-1b --quantization Q4_0
  $ hpcserve model synth moe.gguf --preset tiny-qwen3moe --experts 16 --experts-used 4 --seed 7`,
    )
    .action(async (file: string, flags: SynthFlags) => {
      const path = resolve(context.working_folder, file);
      if (existsSync(path) && !flags.force) {
        throw new HpcserveError('E_FILE_EXISTS', {
          what: `${path} exists already`,
          try: 'name another file, or give --force to replace it',
        });
      }
      let tenth = 0;
      const result = await synthesize({
        path,
        shape: shapeOf(flags),
        quantization: flags.quantization ?? 'Q8_0',
        seed: flags.seed,
        threads: flags.threads ?? availableParallelism(),
        on_progress: (written, total) => {
          const now = Math.floor((10 * written) / total);
          if (now <= tenth || total < 64 * 1024 * 1024) return;
          tenth = now;
          context.note(`${formatBytes(written)} of ${formatBytes(total)}`);
        },
      });
      if (context.json) {
        context.out(JSON.stringify(result));
        return;
      }
      context.note(
        `${formatCount(result.n_params)} parameters in ${result.n_tensors} tensors, ${formatBytes(result.file_bytes)}, ${formatDuration(result.elapsed_ms)}`,
      );
      context.out(result.path);
    });
}

function shapeOf(flags: SynthFlags): SynthShape {
  const shape = presetShape(flags.preset);
  for (const [flag, key] of Object.entries(sizeFlags)) {
    const value = flags[flag as keyof typeof sizeFlags];
    if (value !== undefined) shape[key] = value;
  }
  const count = flags.experts ?? shape.experts?.count ?? 0;
  shape.experts =
    count === 0
      ? undefined
      : { count, used_per_token: flags.expertsUsed ?? shape.experts?.used_per_token ?? 0, n_ff: shape.n_ff };
  if (flags.architecture !== undefined) shape.architecture = flags.architecture;
  if (flags.name !== undefined) shape.name = flags.name;
  if (flags.tied !== undefined) shape.tied_embeddings = flags.tied;
  if (flags.ropeBase !== undefined) shape.rope_freq_base = flags.ropeBase;
  return shape;
}

function wholeNumber(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isSafeInteger(value) || value < 0) {
    throw new InvalidArgumentError('a whole number is needed');
  }
  return value;
}

function positiveReal(text: string): number {
  const value = Number(text);
  if (!Number.isFinite(value) || value <= 0) throw new InvalidArgumentError('a positive number is needed');
  return value;
}
