/**
 * A pipeline of two stages with one thread each beside one process with two threads: decoding of 16 sequences with
 * Llama-3.2-1B's true shape, alternating. Arguments: `--pairs N` (default 10), `--quantization Q4_0|Q8_0|BF16`,
 * `--steps N` of decoding in a turn (default 16), `--sequences N` (default 16).
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { openModelFile } from '../../agent/engine/model-file.ts';
import { modelFile } from '../engine/model-files.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import type { BatchTask, PipelineSetup } from './worker.ts';

const bar = 0.9;
const stages = 2;
const spin_ms = 500;

async function start(setup: PipelineSetup): Promise<ChildProcess> {
  const child = fork(fileURLToPath(new URL('./worker.js', import.meta.url)), [], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  child.send(setup);
  await once(child, 'message');
  return child;
}

async function rateOf(child: ChildProcess, task: BatchTask): Promise<number> {
  child.send(task);
  const [answer] = (await once(child, 'message')) as [{ rate: number }];
  // Threads of ggml spin for a while, and would disturb the other's turn.
  await delay(spin_ms);
  return answer.rate;
}

/** Operators [begin, end): so many layers in the first, whose share of the head is none. */
function cutOf(n_layer: number): number {
  // The head of this shape weighs as much as four layers.
  return 1 + 2 * Math.round((n_layer + 4) / stages);
}

const median = (values: readonly number[]): number => {
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1]! + sorted[sorted.length >> 1]!) / 2;
};

async function run({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      pairs: { type: 'string', default: '10' },
      steps: { type: 'string', default: '16' },
      sequences: { type: 'string', default: '16' },
      quantization: { type: 'string', default: 'Q4_0' },
    },
  });
  const model_path = await modelFile(values.quantization as 'Q4_0', log);
  const { n_layer } = openModelFile(model_path).model;
  const sequences = Number(values.sequences);
  const folder = mkdtempSync(join(tmpdir(), 'hpcb-'));
  const socket = (stage: number): string => join(folder, `${stage % stages}.sock`);
  const end = 2 * n_layer + 2;
  const bounds = [0, cutOf(n_layer), end];
  const children: ChildProcess[] = [];
  try {
    const whole = await start({ model_path, threads: 2, sequences });
    children.push(whole);
    for (const stage of [1, 0]) {
      const place = {
        stage,
        stages,
        begin: bounds[stage]!,
        end: bounds[stage + 1]!,
        listen: socket(stage),
        next: socket(stage + 1),
      };
      children.push(await start({ model_path, threads: 1, sequences, place }));
    }
    const coordinator = children.at(-1)!;
    const rates = { ours: [] as number[], theirs: [] as number[] };
    const pairs = Number(values.pairs);
    for (let round = 0; round <= pairs; round++) {
      const task = { steps: Number(values.steps), round };
      const ours = await rateOf(coordinator, task);
      const theirs = await rateOf(whole, task);
      log(`round ${round}: ${ours.toFixed(1)} / ${theirs.toFixed(1)} tokens/s`);
      if (round === 0) continue;
      rates.ours.push(ours);
      rates.theirs.push(theirs);
    }
    const ratio = median(rates.ours.map((rate, index) => rate / rates.theirs[index]!));
    return [
      {
        what: `${values.quantization}: decode, ${sequences} sequences, ${stages} stages of one thread each`,
        unit: 'tokens/s',
        ours: median(rates.ours),
        peer: 'one process of two threads',
        theirs: median(rates.theirs),
        ratio,
        bar: `ratio ≥ ${bar}`,
        holds: ratio >= bar,
      },
    ];
  } finally {
    for (const child of children) child.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  }
}

export const pipelineBench: Bench = {
  name: 'pipeline',
  describe: 'a pipeline of two stages of one thread each beside one process of two threads',
  run,
};
