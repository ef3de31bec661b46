/**
 * A pipeline of two stages with one thread each beside one process of two threads: decoding of 16 sequences with
 * Llama-3.2-1B's true shape, alternating. And one of four stages that are paced to a declared time of a batch, beside
 * what they could do at most: one batch of a quarter of the sequences in each such time. Arguments: `--pairs N`
 * (default 10), `--quantization Q4_0|Q8_0|BF16`, `--steps N` of decoding in a turn (default 16), `--sequences N`
 * (default 16), `--step-ms N` of a paced batch (default 20).
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
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { modelFile } from '../engine/model-files.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import type { BatchAnswer, BatchTask, PipelineSetup } from './worker.ts';

const bar = 0.9;
const stages = 2;
const paced_stages = 4;
/** Of the paced model, which two cores compute beside their pace. */
const paced_layers = 8;
const spin_ms = 500;
/** Of decoding before the stages are cut: as many as make the mean of what batches take forget the prompts. */
const cut_steps = 64;

async function start(setup: PipelineSetup): Promise<ChildProcess> {
  const child = fork(fileURLToPath(new URL('./worker.js', import.meta.url)), [], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  child.send(setup);
  await answerOf(child);
  return child;
}

/** What it says next. @throws Error where it ends instead */
async function answerOf(child: ChildProcess): Promise<unknown> {
  const over = new AbortController();
  try {
    const ended = once(child, 'exit', over).then(([code, signal]) => {
      throw new Error(`a process of the bench ended with ${code ?? signal}`);
    });
    const [answer] = (await Promise.race([once(child, 'message', over), ended])) as [unknown];
    return answer;
  } finally {
    over.abort();
  }
}

async function decode(child: ChildProcess, task: BatchTask): Promise<BatchAnswer> {
  child.send(task);
  const answer = (await answerOf(child)) as BatchAnswer;
  // Threads of ggml spin for a while, and would disturb the other's turn.
  await delay(spin_ms);
  return answer;
}

/** Of so many layers in the first stage, the head in the second, that whose slower stage is the faster one. */
function evenLayers(n_layer: number, layers: number, computed_us: readonly number[]): number {
  const [first_us = 0, second_us = 0] = computed_us;
  const layer_us = first_us / layers;
  const head_us = Math.max(0, second_us - (n_layer - layers) * layer_us);
  const slowest_us = (count: number): number =>
    Math.max(count * layer_us, (n_layer - count) * layer_us + head_us);
  let best = 1;
  for (let count = 2; count < n_layer; count++) if (slowest_us(count) < slowest_us(best)) best = count;
  return best;
}

const median = (values: readonly number[]): number => {
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1]! + sorted[sorted.length >> 1]!) / 2;
};

/** The processes of a pipeline, its coordinator last. */
async function startStages(
  bounds: readonly number[],
  folder: string,
  setup: Omit<PipelineSetup, 'place'>,
  children: ChildProcess[],
): Promise<ChildProcess> {
  const count = bounds.length - 1;
  const socket = (stage: number): string => join(folder, `${count}-${stage % count}.sock`);
  for (let stage = count - 1; stage >= 0; stage--) {
    const range = { begin: bounds[stage]!, end: bounds[stage + 1]! };
    const place = { stage, stages: count, ...range, listen: socket(stage), next: socket(stage + 1) };
    children.push(await start({ ...setup, place }));
  }
  return children.at(-1)!;
}

/**
 * Two stages, cut between the layers where what batches took at each says that they are the most even, as plans do
 * once a pipeline has run.
 */
async function startEvenStages(
  folder: string,
  n_layer: number,
  setup: Omit<PipelineSetup, 'place'>,
  task: BatchTask,
  children: ChildProcess[],
  log: BenchOptions['log'],
): Promise<ChildProcess> {
  const layers = n_layer / stages;
  const own: ChildProcess[] = [];
  const startCut = (first_layers: number): Promise<ChildProcess> => {
    const bounds = [0, 1 + 2 * first_layers, 2 * n_layer + 2];
    return startStages(bounds, folder, setup, own).finally(() => children.push(...own));
  };
  const coordinator = await startCut(layers);
  const { computed_us } = await decode(coordinator, task);
  const even = evenLayers(n_layer, layers, computed_us);
  const told = computed_us.map((us) => (us / 1000).toFixed(1)).join(' and ');
  log(
    `with ${layers} layers each a batch takes ${told} ms; ${even} and ${n_layer - even} are as even as can be`,
  );
  if (even === layers) return coordinator;
  for (const child of own.splice(0)) {
    children.splice(children.indexOf(child), 1);
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
  return startCut(even);
}

/** Four stages at a declared pace: what they do of what they could. */
async function runPaced(
  folder: string,
  {
    sequences,
    step_ms,
    rounds,
    steps,
  }: { sequences: number; step_ms: number; rounds: number; steps: number },
  children: ChildProcess[],
  log: BenchOptions['log'],
): Promise<BenchResult> {
  const model_path = join(folder, 'paced.gguf');
  const shape = { ...synthPresets['tiny-llama']!, n_layer: paced_layers };
  await synthesize({ path: model_path, shape, quantization: 'Q8_0', seed: 1 });
  const layers = paced_layers / paced_stages;
  const inner = Array.from({ length: paced_stages - 1 }, (_, at) => 1 + 2 * layers * (at + 1));
  const bounds = [0, ...inner, 2 * paced_layers + 2];
  const coordinator = await startStages(
    bounds,
    folder,
    { model_path, threads: 1, sequences, step_ms },
    children,
  );
  const ideal = sequences / paced_stages / (step_ms / 1000);
  const rates: number[] = [];
  for (let round = 0; round <= rounds; round++) {
    const { rate } = await decode(coordinator, { steps, round });
    log(`paced, round ${round}: ${rate.toFixed(1)} of ${ideal.toFixed(1)} tokens/s`);
    if (round > 0) rates.push(rate);
  }
  const ratio = median(rates) / ideal;
  return {
    what: `decode, ${sequences} sequences, ${paced_stages} stages paced to ${step_ms} ms a batch`,
    unit: 'tokens/s',
    ours: median(rates),
    peer: 'the ideal: every stage always computes',
    theirs: ideal,
    ratio,
    bar: `ratio ≥ ${bar}`,
    holds: ratio >= bar,
  };
}

async function run({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      pairs: { type: 'string', default: '10' },
      steps: { type: 'string', default: '16' },
      sequences: { type: 'string', default: '16' },
      quantization: { type: 'string', default: 'Q4_0' },
      'step-ms': { type: 'string', default: '20' },
    },
  });
  const model_path = await modelFile(values.quantization as 'Q4_0', log);
  const { n_layer } = openModelFile(model_path).model;
  const sequences = Number(values.sequences);
  const folder = mkdtempSync(join(tmpdir(), 'hpcb-'));
  const children: ChildProcess[] = [];
  try {
    const whole = await start({ model_path, threads: 2, sequences });
    children.push(whole);
    const own = { model_path, threads: 1, sequences };
    const pairs = Number(values.pairs);
    const first = { steps: cut_steps, round: pairs + 1 };
    const coordinator = await startEvenStages(folder, n_layer, own, first, children, log);
    const rates = { ours: [] as number[], theirs: [] as number[] };
    for (let round = 0; round <= pairs; round++) {
      const task = { steps: Number(values.steps), round };
      const { rate: ours } = await decode(coordinator, task);
      const { rate: theirs } = await decode(whole, task);
      log(`round ${round}: ${ours.toFixed(1)} / ${theirs.toFixed(1)} tokens/s`);
      if (round === 0) continue;
      rates.ours.push(ours);
      rates.theirs.push(theirs);
    }
    for (const child of children.splice(0)) child.kill('SIGKILL');
    const asked = {
      sequences,
      step_ms: Number(values['step-ms']),
      rounds: pairs,
      steps: Number(values.steps),
    };
    const paced = await runPaced(folder, asked, children, log);
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
      paced,
    ];
  } finally {
    for (const child of children) child.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  }
}

export const pipelineBench: Bench = {
  name: 'pipeline',
  describe: 'a pipeline of two stages beside one process of two threads, and one of four at a declared pace',
  run,
};
