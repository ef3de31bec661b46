/**
 * Pipelines with stages on a Vulkan device that change while they compute: keys and values come from its memory and
 * go there, beside the rings and by them, whatever the other devices are. Kernels there run on the CPU, and slowly:
 * models, prompts and answers are small.
 */
import { afterEach, describe, expect, test } from 'vitest';
import { cpuBackend } from '../../../../agent/backend/cpu/cpu-backend.ts';
import { NativeEngine } from '../../../../agent/engine/native-engine.ts';
import type { RefactoringReport } from '../../../../agent/pipeline/live-refactoring.ts';
import type { PipelineLayout } from '../../../../solver/refactoring/layout.ts';
import type { EngineOptions } from '../../../../spec/engine-contract.ts';
import {
  argmax,
  engineOptions,
  GreedyRecorder,
  generate,
  model,
  prompt,
  Replayer,
  rootMeanSquare,
  stepAlone,
  topGap,
} from '../../engine/support.ts';
import { tolerances } from '../../engine/tolerances.ts';
import { DelayedTransfers } from '../../pipeline/delayed-transfers.ts';
import { TestPipelines } from '../../pipeline/refactoring-support.ts';
import { isThere, lacking, vulkan } from './support.ts';

const open: TestPipelines[] = [];
afterEach(() => {
  for (const pipelines of open.splice(0)) pipelines.close();
});

/** The tiny model has 6 operators. */
function layoutOf(devices: string, ...cuts: number[]): PipelineLayout {
  const bounds = [0, ...cuts, 6];
  return [...devices].map((device, index) => ({ device, begin: bounds[index]!, end: bounds[index + 1]! }));
}

const lengths = [20, 37, 50];
const answer_tokens = 24;

async function tinyOptions(): Promise<EngineOptions> {
  const path = await model('tiny-llama', 'Q8_0');
  return engineOptions(path, { batch_invariant: true, kv_tokens: 512, prefill_chunk_tokens: 32 });
}

interface Ran {
  reports: RefactoringReport[];
  answers: { tokens: number[]; rows: Float32Array[] }[];
}

/** Changes the layout to each in turn while all sequences decode. */
async function run(beside: DelayedTransfers, layouts: readonly PipelineLayout[]): Promise<Ran> {
  const pipelines = new TestPipelines(await tinyOptions(), layouts[0]!, {}, beside);
  open.push(pipelines);
  const { engine } = pipelines;
  const samplers = lengths.map(() => new GreedyRecorder());
  lengths.forEach((length, id) => {
    const prompt_tokens = prompt(length, engine.info.n_vocab, id + 1);
    const stop_tokens = new Set<number>();
    engine.add({ id, prompt_tokens, sampler: samplers[id]!, max_new_tokens: answer_tokens, stop_tokens });
  });
  const answers = samplers.map(({ rows }) => ({ tokens: [] as number[], rows }));
  const reports: RefactoringReport[] = [];
  for (let ended = 0, step = 0; ended < lengths.length; step++) {
    const next = layouts[reports.length + 1];
    if (!pipelines.change && next && step > 3) pipelines.refactor(next);
    const report = pipelines.advance();
    if (report) reports.push(report);
    for (const { id, token, finish, error } of stepAlone(engine).outputs) {
      if (token) answers[id]!.tokens.push(token.token);
      if (finish === 'error') throw new Error(error);
      if (finish) ended++;
    }
  }
  engine.verify();
  for (const pool of beside.pools.values()) pool.verify();
  return { reports, answers };
}

function waysOf(reports: readonly RefactoringReport[]): string[] {
  return [...new Set(reports.flatMap(({ bytes_by_way }) => Object.keys(bytes_by_way)))].sort();
}

/** Every kernel is compiled at its first use, on the cores that compute, too. */
const timeout = 240_000;

describe.skipIf(!isThere)(`pipelines on a Vulkan device that change${lacking}`, { timeout }, () => {
  test('stages are divided, moved and joined: the tokens are those of an undisturbed run', async () => {
    const { backend } = vulkan();
    const beside = new DelayedTransfers(1, 2);
    beside.backendOf = () => backend;
    const layouts = [layoutOf('a'), layoutOf('ab', 3), layoutOf('ac', 2), layoutOf('a')];
    const { reports, answers } = await run(beside, layouts);
    expect(reports.map(({ outcome }) => outcome.kind)).toEqual(['refactored', 'refactored', 'refactored']);
    expect(beside.arrived).toBeGreaterThan(0);
    expect(waysOf(reports)).toEqual(['ring', 'sendfile']);
    const undisturbed = await run(new DelayedTransfersOn(backend), [layoutOf('a')]);
    expect(answers.map(({ tokens }) => tokens)).toEqual(undisturbed.answers.map(({ tokens }) => tokens));
  });

  test('CPUs and the device in one pipeline: every token is the one that a CPU chooses after those before', async () => {
    const { ggml, backend } = vulkan();
    const cpu = cpuBackend(ggml);
    const beside = new DelayedTransfers(2, 2);
    beside.backendOf = (device) => (device === 'v' ? backend : cpu);
    const layouts = [layoutOf('a'), layoutOf('av', 2), layoutOf('abv', 2, 4), layoutOf('ab', 2)];
    const { reports, answers } = await run(beside, layouts);
    expect(reports.map(({ outcome }) => outcome.kind)).toEqual(['refactored', 'refactored', 'refactored']);
    expect(beside.arrived).toBeGreaterThan(0);
    const options = await tinyOptions();
    const engine = new NativeEngine(options, cpu);
    const tolerance = tolerances.Q8_0!;
    answers.forEach(({ tokens, rows }, id) => {
      const sampler = new Replayer(tokens);
      const asked = {
        prompt: prompt(lengths[id]!, engine.info.n_vocab, id + 1),
        max_new_tokens: tokens.length,
      };
      generate(engine, [{ ...asked, sampler }]);
      sampler.rows.forEach((row, index) => {
        expect(rootMeanSquare(row, rows[index]!), `row ${index}`).toBeLessThan(tolerance);
        if (argmax(row) !== tokens[index]) expect(topGap(row)).toBeLessThan(4 * tolerance);
      });
    });
    engine.close();
  });
});

/** All devices are one's. */
class DelayedTransfersOn extends DelayedTransfers {
  constructor(backend: ReturnType<typeof vulkan>['backend']) {
    super(1, 0);
    this.backendOf = () => backend;
  }
}
