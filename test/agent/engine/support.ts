/** Tiny seeded models, greedy generation that keeps its logits, and libllama as the reference beside it. */
import { existsSync, mkdirSync, renameSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { LlamaContext } from '../../../native/llama-context.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import type { SynthQuantization } from '../../../native/synth/quantization.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import type {
  EngineOptions,
  Sampler,
  SequenceOutput,
  SequenceRequest,
  StepReport,
} from '../../../spec/engine-contract.ts';
import { test_device, testBackend } from './test-backend.ts';

/** One: ggml's threads spin at barriers, so that test files side by side would take cores from one another. */
const threads = 1;
/** More than any model has. */
const all_layers = 999;

/**
 * A generated model, made once per machine and seed.
 * @returns path of the GGUF file.
 */
export async function model(preset: string, quantization: SynthQuantization, seed = 1): Promise<string> {
  const folder = join(tmpdir(), `hpcserve-test-models-${process.getuid?.() ?? 0}`);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const path = join(folder, `${preset}-${quantization}-${seed}-v2.gguf`);
  if (!existsSync(path)) {
    const partial = `${path}.${process.pid}`;
    await synthesize({ path: partial, shape: synthPresets[preset]!, quantization, seed });
    renameSync(partial, path);
  }
  return path;
}

export function engineOptions(model_path: string, more: Partial<EngineOptions> = {}): EngineOptions {
  return {
    model_path,
    threads,
    context_tokens: 4096,
    max_sequences: 16,
    prefill_chunk_tokens: 256,
    kv_tokens: 8192,
    kv_type: 'f16',
    batch_invariant: false,
    // Not what was faster when it was measured: what computes is the same in every run.
    kernels: 'own',
    ...more,
  };
}

/** Takes the likeliest token and keeps every row of logits that it saw. */
export class GreedyRecorder implements Sampler {
  readonly rows: Float32Array[] = [];

  sample(logits: Float32Array): { token: number } {
    this.rows.push(logits.slice());
    return { token: argmax(logits) };
  }
}

/** Plays given tokens whatever the logits say, and keeps the logits: teacher forcing. */
export class Replayer implements Sampler {
  readonly rows: Float32Array[] = [];
  readonly #tokens: readonly number[];

  constructor(tokens: readonly number[]) {
    this.#tokens = tokens;
  }

  sample(logits: Float32Array): { token: number } {
    this.rows.push(logits.slice());
    return { token: this.#tokens[this.rows.length - 1]! };
  }
}

export function argmax(row: Float32Array): number {
  let best = 0;
  for (let index = 1; index < row.length; index++) if (row[index]! > row[best]!) best = index;
  return best;
}

/** Difference between the two largest logits. */
export function topGap(row: Float32Array): number {
  let first = Number.NEGATIVE_INFINITY;
  let second = Number.NEGATIVE_INFINITY;
  for (const value of row) {
    if (value > first) {
      second = first;
      first = value;
    } else if (value > second) second = value;
  }
  return first - second;
}

/** Root mean square of the differences of two rows. */
export function rootMeanSquare(a: Float32Array, b: Float32Array): number {
  let sum = 0;
  for (let index = 0; index < a.length; index++) sum += (a[index]! - b[index]!) ** 2;
  return Math.sqrt(sum / a.length);
}

/** Seeded prompt of a given length over a vocabulary; the same everywhere. */
export function prompt(length: number, n_vocab: number, seed: number): Int32Array {
  let state = (seed * 2654435761) >>> 0 || 1;
  return Int32Array.from({ length }, () => {
    state ^= state << 13;
    state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    return state % n_vocab;
  });
}

export interface Generated {
  tokens: number[];
  rows: Float32Array[];
  finish: SequenceOutput['finish'];
}

export interface Asked {
  prompt: Int32Array;
  max_new_tokens: number;
  sampler?: GreedyRecorder | Replayer;
}

/**
 * An iteration of an engine that nobody schedules: where KV is exhausted, the sequence that was begun last gives way.
 */
export function stepAlone(engine: NativeEngine): StepReport {
  for (;;) {
    const report = engine.step();
    if (!report.kv_exhausted) return report;
    engine.recomputeSequence(report.kv_exhausted.youngest);
  }
}

/** Runs requests together until all have ended; the ids are their indices. */
export function generate(engine: NativeEngine, asked: readonly Asked[], startEvery = 0): Generated[] {
  const results: Generated[] = asked.map(({ sampler = new GreedyRecorder() }, index) => {
    const asking = asked[index]!;
    asking.sampler = sampler;
    return { tokens: [], rows: sampler.rows, finish: undefined };
  });
  const requests = asked.map(
    (one, id): SequenceRequest => ({
      id,
      prompt_tokens: one.prompt,
      sampler: one.sampler!,
      max_new_tokens: one.max_new_tokens,
      stop_tokens: new Set(),
    }),
  );
  let steps = 0;
  while (requests.length > 0 || engine.busy) {
    if (startEvery === 0 || steps % startEvery === 0)
      for (const request of requests.splice(0, startEvery === 0 ? requests.length : 1)) engine.add(request);
    for (const output of stepAlone(engine).outputs) {
      const result = results[output.id]!;
      if (output.token) result.tokens.push(output.token.token);
      if (output.error) throw new Error(output.error);
      result.finish = output.finish ?? result.finish;
    }
    steps++;
    if (steps > 20_000) throw new Error('the engine does not come to an end');
  }
  engine.verify();
  return results;
}

export function withEngine<T>(options: EngineOptions, use: (engine: NativeEngine) => T): T {
  const engine = new NativeEngine(options, testBackend());
  try {
    return use(engine);
  } finally {
    engine.close();
  }
}

/** The reference's logits for every token of `tokens` after the first `n_prompt`: rows that chose them. */
export function referenceRows(
  context: LlamaContext,
  promptTokens: Int32Array,
  answer: readonly number[],
): Float32Array[] {
  context.clear();
  const row = (token: number, position: number, output: boolean) => ({
    token,
    position,
    sequence: 0,
    output,
  });
  const last = promptTokens.length - 1;
  context.decode(Array.from(promptTokens, (token, position) => row(token, position, position === last)));
  const rows = [context.logits(last)];
  answer.slice(0, -1).forEach((token, index) => {
    context.decode([row(token, promptTokens.length + index, true)]);
    rows.push(context.logits(0));
  });
  return rows;
}

/**
 * libllama's flash attention on CPUs adds F16 values up in F16; ours has F32, as libllama has without it. On a device
 * it is left as it is: the engine has the same.
 */
export function reference(
  model_path: string,
  more: {
    kv_type?: number;
    embeddings?: boolean;
    flash_attention?: 'auto' | 'disabled';
    gpu_layers?: number;
  } = {},
): LlamaContext {
  const gpu_layers = test_device === undefined ? 0 : all_layers;
  return new LlamaContext({
    model_path,
    threads,
    n_ctx: 4096,
    n_seq_max: 1,
    n_batch: 4096,
    gpu_layers,
    flash_attention: test_device === undefined ? 'disabled' : 'auto',
    ...more,
  });
}
