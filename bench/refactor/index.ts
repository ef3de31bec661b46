/**
 * A pipeline of real device workers that goes from 1 stage to 2, 4, 2 and 1 again under running sequences. Devices are
 * paced: every batch takes a declared time at each stage, so that two cores measure the protocol and not each other.
 * Arguments: `--rounds N` of the four changes (default 3), `--sequences N` (default 16), `--step-ms N` of a batch at a
 * stage (default 40).
 */
import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import type { RefactoringReport } from '../../agent/pipeline/live-refactoring.ts';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import type { PipelineLayout } from '../../solver/refactoring/layout.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { BenchWorkers } from './workers.ts';

const n_layer = 8;
const n_operators = 2 * n_layer + 2;
/** Beyond one iteration of decoding; the sequences wait for it in any case. */
const pause_beyond_ms_max = 5;
/** Between two changes, in iterations. */
const rest_iterations = 6;
const paper = 'FlexPipe: stall to recovery 88, 79, 9 ms at CV 1, 2, 4';

/** So many layers on each device. */
function layersOn(devices: string, layers: number): PipelineLayout {
  return [...devices].map((device, index) => ({
    device,
    begin: index === 0 ? 0 : 1 + 2 * layers * index,
    end: index === devices.length - 1 ? n_operators : 1 + 2 * layers * (index + 1),
  }));
}

const one = layersOn('a', 8);
const two = layersOn('ab', 4);
const four = layersOn('acbd', 2);

interface Change {
  from: number;
  to: number;
  report: RefactoringReport;
  /** One iteration of decoding in the layout that is left, as declared. */
  iteration_ms: number;
}

function promptOf(sequence: number): string {
  return `${sequence}: a pipeline that changes ${'while it is computed '.repeat(2 + (sequence % 5))}`;
}

async function askAll(
  workers: BenchWorkers,
  sequences: number,
  tokens: number,
): Promise<(string | undefined)[]> {
  return Promise.all(Array.from({ length: sequences }, (_, index) => workers.ask(promptOf(index), tokens)));
}

/** Through all layouts, as often as is asked, while requests run. */
async function changeAll(
  workers: BenchWorkers,
  rounds: number,
  step_ms: number,
  log: BenchOptions['log'],
): Promise<Change[]> {
  const changes: Change[] = [];
  let layout = one;
  for (const to of Array.from({ length: rounds }, () => [two, four, two, one]).flat()) {
    await delay(rest_iterations * layout.length * step_ms);
    const report = await workers.refactor(to);
    const { outcome, pause_ms, cut_ms, duration_ms, bytes_moved } = report;
    changes.push({ from: layout.length, to: to.length, report, iteration_ms: layout.length * step_ms });
    log(
      `${layout.length} → ${to.length}: ${outcome.kind}, paused ${pause_ms.toFixed(1)} ms, of which nothing was on its way for ${cut_ms.toFixed(1)}; ${(bytes_moved / 2 ** 20).toFixed(2)} MiB in ${duration_ms.toFixed(0)} ms`,
    );
    if (outcome.kind !== 'refactored') throw new Error(outcome.because);
    layout = to;
  }
  return changes;
}

const sorted = (values: readonly number[]): number[] => [...values].sort((a, b) => a - b);
const median = (values: readonly number[]): number => sorted(values)[values.length >> 1]!;

function figure(what: string, unit: string, ours: number, more: Partial<BenchResult> = {}): BenchResult {
  return { what, unit, ours, peer: '', theirs: null, ratio: null, bar: '', holds: null, ...more };
}

function results(
  changes: readonly Change[],
  failed: number,
  different: number,
  sequences: number,
): BenchResult[] {
  const cuts = changes.map(({ report }) => report.cut_ms);
  const beyond = changes.map(({ report, iteration_ms }) => report.pause_ms - iteration_ms);
  const worst = Math.max(...beyond);
  const bytes = changes.reduce((sum, { report }) => sum + report.bytes_moved, 0);
  const copying_ms = changes.reduce((sum, { report }) => sum + (report.phases_ms.copying ?? 0), 0);
  const total_ms = changes.reduce((sum, { report }) => sum + report.duration_ms, 0);
  const path = `${sequences} sequences, 1 → 2 → 4 → 2 → 1, ${changes.length} changes`;
  return [
    figure(`failed requests; ${path}`, 'requests', failed, { bar: '0', holds: failed === 0 }),
    figure('answers that differ from an undisturbed run', 'answers', different, {
      bar: '0',
      holds: different === 0,
    }),
    figure('pause beyond one iteration, max', 'ms', worst, {
      bar: `≤ ${pause_beyond_ms_max} ms`,
      holds: worst <= pause_beyond_ms_max,
      peer: paper,
    }),
    figure('pause, median', 'ms', median(changes.map(({ report }) => report.pause_ms))),
    figure('of it, when nothing was on its way any more: median', 'ms', median(cuts)),
    figure('the same, max', 'ms', Math.max(...cuts)),
    figure('time of a change, median', 'ms', median(changes.map(({ report }) => report.duration_ms))),
    figure('keys and values moved', 'MiB', bytes / 2 ** 20),
    figure('the same over the time of copying', 'MiB/s', bytes / 2 ** 20 / (copying_ms / 1000)),
    figure('all changes', 'ms', total_ms),
  ];
}

async function run({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '3' },
      sequences: { type: 'string', default: '16' },
      'step-ms': { type: 'string', default: '40' },
    },
  });
  const rounds = Number(values.rounds);
  const sequences = Number(values.sequences);
  const step_ms = Number(values['step-ms']);
  // So long that they run through all changes: stages of 1, 2, 4 and 2, each for its iterations, and loads between.
  const tokens = 40 + 40 * rounds;
  const workers = new BenchWorkers({
    name: 'm',
    aliases: [],
    model_path: '',
    context_tokens: 256 + tokens,
    max_sequences: sequences,
    prefill_chunk_tokens: 256,
    kv_tokens: sequences * (256 + tokens),
    kv_type: 'f16',
    batch_invariant: true,
    kernels: 'own',
  });
  try {
    const model_path = `${workers.folder}/model.gguf`;
    const shape = { ...synthPresets['tiny-llama']!, n_layer, n_ctx_train: 8192 };
    await synthesize({ path: model_path, shape, quantization: 'Q8_0', seed: 1 });
    workers.use(model_path);
    for (const device of 'abcd') await workers.start(device, step_ms);
    await workers.open(one);
    log('an undisturbed run first');
    const expected = await askAll(workers, sequences, tokens);
    const asked = askAll(workers, sequences, tokens);
    const changes = await changeAll(workers, rounds, step_ms, log);
    const answers = await asked;
    const failed = answers.filter((text) => text === undefined).length;
    const different = answers.filter((text, index) => text !== expected[index]).length;
    return results(changes, failed, different, sequences);
  } finally {
    await workers.stop();
  }
}

export const refactorBench: Bench = {
  name: 'refactor',
  describe:
    'a pipeline of real device workers that goes from 1 stage to 2, 4, 2 and 1 under running sequences',
  run,
};
