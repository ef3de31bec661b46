/** Decode steps of a whole model with long contexts: our attention, ggml's in the same engine, and libllama. */
import { setTimeout as sleep } from 'node:timers/promises';
import { cpuBackend } from '../../agent/backend/cpu/cpu-backend.ts';
import { kv_block_tokens } from '../../agent/engine/kv-storage.ts';
import { openModelFile } from '../../agent/engine/model-file.ts';
import { Stage } from '../../agent/engine/stage.ts';
import { loadGgml } from '../../native/ggml.ts';
import { LlamaContext } from '../../native/llama-context.ts';
import type { KernelsOption } from '../../spec/engine-contract.ts';
import { modelFile } from '../engine/model-files.ts';
import type { BenchResult } from '../result.ts';

const sequences = 16;
const context_tokens = 4096;
const steps = 2;
const rounds = 5;
const bar = 1.5;
/** Tokens of a sequence at most, in whole blocks. */
const room_tokens = context_tokens + 16 * kv_block_tokens;
/** Threads of an engine that rests spin for a while, and would take cores from the next. */
const rest_ms = 700;

interface Contender {
  /** Computes the next token of every sequence. */
  step(position: number): void;
  close(): void;
}

/** KV is noise: what it says is not asked, and a prompt of so many tokens would take minutes. */
function engine(model_path: string, threads: number, kernels: KernelsOption): Contender {
  const stage = new Stage(cpuBackend(loadGgml()), openModelFile(model_path), {
    threads,
    kv_tokens: sequences * room_tokens,
    kv_type: 'f16',
    batch_invariant: false,
    kernels,
  });
  const noise = new Uint16Array((room_tokens * stage.kv.row_bytes) / 2);
  for (let at = 0; at < noise.length; at++) noise[at] = ((at & 1) << 15) | (0x2c00 + ((at * 7919) % 0xc00));
  const bytes = new Uint8Array(noise.buffer);
  for (let matrix = 0; matrix < stage.kv.n_matrices; matrix++)
    for (let sequence = 0; sequence < sequences; sequence++)
      stage.kv.writeRows(matrix, sequence * room_tokens, bytes);
  const blocks = room_tokens / kv_block_tokens;
  const tokens = Int32Array.from({ length: sequences }, (_, index) => 100 + index);
  return {
    step: (past_tokens) => {
      const segments = Array.from({ length: sequences }, (_, sequence) => ({
        past_tokens,
        rows: 1,
        blocks: Array.from({ length: blocks }, (_, block) => sequence * blocks + block),
        output: 'last' as const,
        logits: true,
      }));
      stage.run({ segments, tokens });
    },
    close: () => stage.free(),
  };
}

/** One prompt is computed; the other sequences get copies of its keys and values. */
function libllama(model_path: string, threads: number): Contender {
  const context = new LlamaContext({
    model_path,
    threads,
    n_ctx: sequences * room_tokens,
    n_seq_max: sequences,
  });
  const row = (token: number, position: number, sequence: number, output: boolean) => ({
    token,
    position,
    sequence,
    output,
  });
  for (let from = 0; from < context_tokens; from += 2048)
    context.decode(Array.from({ length: 2048 }, (_, index) => row(index, from + index, 0, index === 2047)));
  for (let sequence = 1; sequence < sequences; sequence++) context.copySequence(0, sequence);
  return {
    step: (position) => {
      context.decode(Array.from({ length: sequences }, (_, sequence) => row(100, position, sequence, true)));
      context.logits(sequences - 1);
    },
    close: () => context.close(),
  };
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1]!;
}

export async function measureWhole(threads: number, log: (line: string) => void): Promise<BenchResult[]> {
  const path = await modelFile('Q4_0', log);
  const names = ['our attention', 'ggml’s in the same engine', 'libllama'];
  const contenders = [engine(path, threads, 'own'), engine(path, threads, 'ggml'), libllama(path, threads)];
  const taken = contenders.map((): number[] => []);
  for (let round = 0; round <= rounds; round++)
    for (const [index, contender] of contenders.entries()) {
      await sleep(rest_ms);
      const started = performance.now();
      for (let step = 0; step < steps; step++) contender.step(context_tokens + round * steps + step);
      // The first round warms up.
      if (round > 0) taken[index]!.push((performance.now() - started) / steps);
    }
  for (const contender of contenders) contender.close();
  const rates = taken.map((ms) => (sequences * 1000) / median(ms));
  log(names.map((name, index) => `${name} ${rates[index]!.toFixed(1)}`).join(' · '));
  return [1, 2].map((index) => ({
    what: `Q4_0, decode of ${sequences} sequences of ${context_tokens} tokens`,
    unit: 'tokens/s',
    ours: rates[0]!,
    peer: names[index]!,
    theirs: rates[index]!,
    ratio: rates[0]! / rates[index]!,
    bar: `ratio ≥ ${bar}`,
    holds: rates[0]! / rates[index]! >= bar,
  }));
}
