/** Rows that go beside the rings while layouts change: late, in halves, or not at all; the tokens stay the same. */
import { afterEach, expect, test } from 'vitest';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { decodeFrame, kindOf, metaOf } from '../../../agent/pipeline/frame.ts';
import { copiedMetaSchema } from '../../../agent/pipeline/layout-messages.ts';
import type { RefactoringReport } from '../../../agent/pipeline/live-refactoring.ts';
import type { PipelineLayout } from '../../../solver/refactoring/layout.ts';
import type { EngineOptions } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { engineOptions, GreedyRecorder, model, prompt, stepAlone } from '../engine/support.ts';
import { testBackend } from '../engine/test-backend.ts';
import { DelayedTransfers, type Fate } from './delayed-transfers.ts';
import { TestPipelines } from './refactoring-support.ts';

const open: TestPipelines[] = [];
afterEach(() => {
  for (const pipelines of open.splice(0)) pipelines.close();
});

/** The tiny model has 6 operators. */
function layoutOf(devices: string, ...cuts: number[]): PipelineLayout {
  const bounds = [0, ...cuts, 6];
  return [...devices].map((device, index) => ({ device, begin: bounds[index]!, end: bounds[index + 1]! }));
}
const one = layoutOf('a');
const two = layoutOf('ab', 3);
const four = layoutOf('acbd', 1, 3, 4);
const sequences = 6;

async function tinyOptions(): Promise<EngineOptions> {
  const path = await model('tiny-llama', 'Q8_0');
  // Little room: blocks go from one sequence to the next while they are copied.
  return engineOptions(path, { batch_invariant: true, kv_tokens: 1024, prefill_chunk_tokens: 32 });
}

function add(engine: NativeEngine, id: number, prompt_tokens = 40 + 11 * (id % 5)): void {
  engine.add({
    id,
    prompt_tokens: prompt(prompt_tokens, engine.info.n_vocab, id + 1),
    sampler: new GreedyRecorder(),
    max_new_tokens: 30 + 5 * (id % 4),
    stop_tokens: new Set(),
  });
}

/** Until all sequences are answered; one comes as soon as another has ended. */
function answers(
  engine: NativeEngine,
  total: number,
  between: () => void = () => undefined,
  prompt_tokens?: number,
): number[][] {
  const tokens = Array.from({ length: total }, (): number[] => []);
  let begun = 0;
  let ended = 0;
  for (let step = 0; ended < total; step++) {
    if (step > 20_000) throw new Error('the engine does not come to an end');
    if (begun < total && begun - ended < sequences) add(engine, begun++, prompt_tokens);
    between();
    for (const { id, token, finish, error } of stepAlone(engine).outputs) {
      if (token) tokens[id]!.push(token.token);
      if (finish === 'error') throw new Error(error);
      if (finish) ended++;
    }
  }
  return tokens;
}

let known: number[][] | undefined;
async function undisturbed(total: number): Promise<number[][]> {
  if (known?.length === total) return known;
  const engine = new NativeEngine(await tinyOptions(), testBackend());
  known = answers(engine, total);
  engine.close();
  return known;
}

/** Changes the layout again and again, in this order, as often as the answers take. */
async function run(
  beside: DelayedTransfers,
  layouts: readonly PipelineLayout[],
  total: number,
): Promise<{ reports: RefactoringReport[]; tokens: number[][]; busy: number }> {
  const pipelines = new TestPipelines(await tinyOptions(), layouts[0]!, {}, beside);
  open.push(pipelines);
  const reports: RefactoringReport[] = [];
  let busy = 0;
  let next = 1;
  const tokens = answers(pipelines.engine, total, () => {
    if (!pipelines.change)
      try {
        pipelines.refactor(layouts[next % layouts.length]!);
      } catch (error) {
        // Rows of the change before are still being written.
        if (!(error instanceof HpcserveError) || error.code !== 'E_REFACTOR_BUSY') throw error;
        busy++;
      }
    const report = pipelines.advance();
    if (!report) return;
    reports.push(report);
    if (report.outcome.kind !== 'refactored') return;
    pipelines.layout = layouts[next % layouts.length]!;
    next++;
  });
  pipelines.engine.verify();
  return { reports, tokens, busy };
}

const ways = (reports: readonly RefactoringReport[]): Record<string, number> => {
  const sum: Record<string, number> = {};
  for (const { bytes_by_way } of reports)
    for (const [way, bytes] of Object.entries(bytes_by_way)) sum[way] = (sum[way] ?? 0) + bytes;
  return sum;
};
const ends = (reports: readonly RefactoringReport[]): string[] => [
  ...new Set(reports.map(({ outcome }) => ('because' in outcome ? outcome.because : outcome.kind))),
];

test.each([1, 2, 3, 4, 5, 6])('rows come late and in halves, seed %i', async (seed) => {
  const beside = new DelayedTransfers(seed, 6);
  const { reports, tokens } = await run(beside, [two, four, layoutOf('adc', 2, 5), one], 30);
  expect(ends(reports)).toEqual(['refactored']);
  expect(reports.length).toBeGreaterThan(2);
  expect(tokens).toEqual(await undisturbed(30));
  const { sendfile = 0, ring = 0 } = ways(reports);
  // What is left once nothing is computed goes by the rings: at most a block of each sequence.
  expect(sendfile).toBeGreaterThan(ring);
  expect(beside.failed).toBe(0);
});

const fates: Record<string, (nth: number) => Fate> = {
  'none of them arrives': () => 'refused',
  'all of them break half-way': () => 'breaks',
  'every third breaks, and the next is refused': (nth) =>
    (['arrives', 'breaks', 'refused'] as const)[nth % 3]!,
};
test.each(Object.entries(fates))('%s: they come by the rings', async (_, fate) => {
  const beside = new DelayedTransfers(7, 4, fate);
  const { reports, tokens } = await run(beside, [two, four, layoutOf('adc', 2, 5), one], 30);
  expect(ends(reports)).toEqual(['refactored']);
  expect(tokens).toEqual(await undisturbed(30));
  expect(beside.failed).toBeGreaterThan(0);
  expect(ways(reports)).toMatchObject({ ring: expect.any(Number) });
});

test('a change is cancelled while rows are written: they reach no later change', async () => {
  const beside = new DelayedTransfers(3, 60);
  const pipelines = new TestPipelines(await tinyOptions(), two, {}, beside);
  open.push(pipelines);
  const seen = { kept: 0, refactored: 0, busy: 0 };
  const tokens = answers(pipelines.engine, 30, () => {
    if (!pipelines.change)
      try {
        pipelines.refactor(pipelines.layout === two ? four : two);
      } catch (error) {
        if (!(error instanceof HpcserveError) || error.code !== 'E_REFACTOR_BUSY') throw error;
        seen.busy++;
      }
    const isDoomed = (seen.kept + seen.refactored) % 2 === 0;
    if (isDoomed && pipelines.change?.phase === 'copying' && beside.writing > 0)
      pipelines.change.cancel('asked for');
    const report = pipelines.advance();
    if (report?.outcome.kind === 'kept') seen.kept++;
    if (report?.outcome.kind !== 'refactored') return;
    seen.refactored++;
    pipelines.layout = pipelines.layout === two ? four : two;
  });
  expect(tokens).toEqual(await undisturbed(30));
  expect(seen.kept).toBeGreaterThan(0);
  expect(seen.refactored).toBeGreaterThan(0);
  expect(seen.busy).toBeGreaterThan(0);
});

test('rows that come by the ring wait for a transfer that still writes there', async () => {
  const beside = new DelayedTransfers(5, 30);
  const pipelines = new TestPipelines(await tinyOptions(), one, {}, beside);
  open.push(pipelines);
  let refused = 0;
  pipelines.tamper = (frame) => {
    if (kindOf(frame) !== 'copied') return frame;
    const { again = '' } = metaOf(decodeFrame(frame), copiedMetaSchema);
    if (again.includes('still writes')) refused++;
    return frame;
  };
  let changed = false;
  const tokens = answers(pipelines.engine, 12, () => {
    if (!pipelines.change && !changed) pipelines.refactor(two);
    // The source takes them for broken, and they go on writing for a while.
    if (pipelines.change?.phase === 'copying') beside.giveUpSource();
    if (pipelines.advance()?.outcome.kind === 'refactored') changed = true;
  });
  expect(changed).toBe(true);
  expect(refused).toBeGreaterThan(0);
  expect(tokens).toEqual((await undisturbed(30)).slice(0, 12));
});

test('a device is lost while another sends rows to the first one: they come before anything stops', async () => {
  const beside = new DelayedTransfers(8, 6);
  const pipelines = new TestPipelines(await tinyOptions(), layoutOf('abc', 1, 3), {}, beside);
  open.push(pipelines);
  const outcomes: RefactoringReport['outcome'][] = [];
  let isKilled = false;
  const tokens = answers(pipelines.engine, 12, () => {
    const { change, engine } = pipelines;
    if (engine.decodes && !change && outcomes.length === 0) pipelines.refactor(two);
    if (!isKilled && change?.phase === 'copying' && beside.isWritingTo('a')) {
      isKilled = true;
      pipelines.kill('c');
    }
    const report = pipelines.advance();
    if (report) outcomes.push(report.outcome);
  });
  expect(isKilled).toBe(true);
  expect(outcomes).toEqual([expect.objectContaining({ kind: 'refactored', incomplete: [1] })]);
  expect(tokens).toEqual((await undisturbed(30)).slice(0, 12));
});

test('rows come to the first device last, and nothing stops before: where they belong is told between iterations', async () => {
  const beside = new DelayedTransfers(9, 3);
  const pipelines = new TestPipelines(await tinyOptions(), layoutOf('acb', 1, 3), {}, beside);
  open.push(pipelines);
  const { answers: answersNow } = beside;
  beside.answers = (device) => answersNow(device) && (device !== 'a' || beside.arrived > 0);
  const reports: RefactoringReport[] = [];
  // All that is to be copied is a block of each sequence.
  const tokens = answers(
    pipelines.engine,
    sequences,
    () => {
      const { change, engine } = pipelines;
      const all = engine.with_kv === sequences;
      if (all && !change && reports.length === 0) pipelines.refactor(layoutOf('ad', 3));
      const report = pipelines.advance();
      if (report) reports.push(report);
    },
    3,
  );
  expect(reports.map(({ outcome }) => outcome)).toEqual([
    expect.objectContaining({ kind: 'refactored', incomplete: [] }),
  ]);
  expect(beside.arrived).toBe(2);
  const engine = new NativeEngine(await tinyOptions(), testBackend());
  const expected = answers(engine, sequences, undefined, 3);
  engine.close();
  expect(tokens).toEqual(expected);
});
