/** Layouts of a pipeline that change while sequences are computed, with real stages: the tokens stay the same. */
import { afterEach, expect, test } from 'vitest';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { decodeFrame, type FrameBytes, kindOf } from '../../../agent/pipeline/frame.ts';
import type { RefactoringReport } from '../../../agent/pipeline/live-refactoring.ts';
import type { PipelineLayout } from '../../../solver/refactoring/layout.ts';
import type { EngineOptions } from '../../../spec/engine-contract.ts';
import { engineOptions, GreedyRecorder, model, prompt, stepAlone } from '../engine/support.ts';
import { testBackend } from '../engine/test-backend.ts';
import { TestPipelines } from './refactoring-support.ts';

const open: TestPipelines[] = [];
afterEach(() => {
  for (const pipelines of open.splice(0)) pipelines.close();
});

async function tinyOptions(more: Partial<EngineOptions> = {}): Promise<EngineOptions> {
  return engineOptions(await model('tiny-llama', 'Q8_0'), {
    batch_invariant: true,
    kv_tokens: 2048,
    prefill_chunk_tokens: 48,
    ...more,
  });
}

/** Cuts before these operators, on these devices; the tiny model has 6 operators. */
function layoutOf(devices: string, ...cuts: number[]): PipelineLayout {
  const bounds = [0, ...cuts, 6];
  return [...devices].map((device, index) => ({ device, begin: bounds[index]!, end: bounds[index + 1]! }));
}

const one = layoutOf('a');
const two = layoutOf('ab', 3);
/** Everything that attends leaves the first device, or stays where it is. */
const four = layoutOf('acbd', 1, 3, 4);
const sequences = 10;
const answer_tokens = 60;

function add(engine: NativeEngine, id: number): void {
  const common = prompt(35, engine.info.n_vocab, 99);
  const own = prompt(10 + 13 * id, engine.info.n_vocab, id + 1);
  engine.add({
    id,
    prompt_tokens: id % 3 === 0 ? Int32Array.from([...common, ...own]) : own,
    sampler: new GreedyRecorder(),
    max_new_tokens: answer_tokens + (id % 4),
    stop_tokens: new Set(),
  });
}

class Answers {
  readonly tokens = new Map<number, number[]>();
  readonly failed: string[] = [];
  #next = 0;

  /** One iteration; sequences come one after the other. */
  step(engine: NativeEngine): void {
    if (this.#next < sequences) add(engine, this.#next++);
    for (const { id, token, finish, error } of stepAlone(engine).outputs) {
      if (token) this.tokens.set(id, [...(this.tokens.get(id) ?? []), token.token]);
      if (finish === 'error') this.failed.push(error ?? 'failed');
    }
  }

  isOver(engine: NativeEngine): boolean {
    return this.#next === sequences && !engine.busy;
  }
}

function undisturbed(options: EngineOptions): Map<number, number[]> {
  const engine = new NativeEngine(options, testBackend());
  const answers = new Answers();
  while (!answers.isOver(engine)) answers.step(engine);
  engine.close();
  return answers.tokens;
}

function pipelinesOf(...args: ConstructorParameters<typeof TestPipelines>): TestPipelines {
  const pipelines = new TestPipelines(...args);
  open.push(pipelines);
  return pipelines;
}

/** Goes through layouts, one after the other, a few iterations apart. */
function run(
  pipelines: TestPipelines,
  layouts: readonly PipelineLayout[],
  each: (step: number) => void = () => undefined,
  pause_steps = 5,
): { answers: Answers; reports: RefactoringReport[] } {
  const answers = new Answers();
  const reports: RefactoringReport[] = [];
  const waiting = [...layouts];
  let next = 6;
  for (let step = 0; !answers.isOver(pipelines.engine); step++) {
    if (step > 5000) throw new Error('the engine does not come to an end');
    const to = step >= next && !pipelines.change ? waiting.shift() : undefined;
    if (to) pipelines.refactor(to);
    const report = pipelines.advance();
    if (report) {
      reports.push(report);
      if (report.outcome.kind === 'refactored')
        pipelines.layout = pipelines.executor.stages.map(({ device_identity: device, begin, end }) => ({
          device,
          begin,
          end,
        }));
      next = step + pause_steps;
    }
    answers.step(pipelines.engine);
    each(step);
  }
  pipelines.engine.verify();
  return { answers, reports };
}

const kinds = (reports: readonly RefactoringReport[]): string[] => reports.map(({ outcome }) => outcome.kind);

test('1, 2, 4, 2, 1 stages, and moves between devices, under running sequences', async () => {
  const options = await tinyOptions();
  const moved = layoutOf('ad', 1);
  const layouts = [two, four, two, moved, layoutOf('adc', 2, 5), one];
  const pipelines = pipelinesOf(options, one);
  const { answers, reports } = run(pipelines, layouts);
  expect(kinds(reports)).toEqual(layouts.map(() => 'refactored'));
  expect(answers.failed).toEqual([]);
  expect(answers.tokens).toEqual(undisturbed(options));
  expect(reports[0]!.bytes_moved).toBeGreaterThan(0);
  // Each began under a later epoch.
  const epochs = reports.map(({ outcome }) => (outcome.kind === 'refactored' ? outcome.epoch : 0));
  expect(epochs).toEqual([...epochs].sort((a, b) => a - b));
  expect(new Set(epochs).size).toBe(epochs.length);
  expect([...pipelines.held.keys()]).toEqual([]);
});

test('a change that begins before stages have heard of the end of the one before', async () => {
  const options = await tinyOptions();
  const layouts = [two, four, two, four, one];
  const { answers, reports } = run(pipelinesOf(options, one), layouts, undefined, 0);
  expect(kinds(reports)).toEqual(layouts.map(() => 'refactored'));
  expect(answers.tokens).toEqual(undisturbed(options));
});

test('a row of KV that is changed on its way changes answers: comparing them means something', async () => {
  const options = await tinyOptions();
  const pipelines = pipelinesOf(options, one);
  const { answers } = run(pipelines, [two], (step) => {
    if (step !== 20) return;
    const { stage } = pipelines.held.get('b')!;
    const { kv } = stage!.stage;
    const row = new Uint8Array(kv.row_bytes).fill(0x3c);
    for (let index = 0; index < 512; index++) kv.writeRows(1, index, row);
  });
  expect(answers.tokens).not.toEqual(undisturbed(options));
});

test('sequences whose KV was swapped out come back in the new layout', async () => {
  const options = await tinyOptions();
  const pipelines = pipelinesOf(options, two);
  const parked = new Set<number>();
  const { answers, reports } = run(pipelines, [four, one], (step) => {
    if (step === 5) for (const id of [1, 2]) if (pipelines.engine.parkSequence(id)) parked.add(id);
    if (step === 40) for (const id of parked) if (pipelines.engine.restoreSequence(id)) parked.delete(id);
    if (step > 40) for (const id of parked) if (pipelines.engine.restoreSequence(id)) parked.delete(id);
  });
  expect(kinds(reports)).toEqual(['refactored', 'refactored']);
  expect(answers.tokens).toEqual(undisturbed(options));
});

test('a frame of the epoch before the cut is refused by stages of both layouts', async () => {
  const options = await tinyOptions();
  const pipelines = pipelinesOf(options, two);
  let stale: FrameBytes | undefined;
  pipelines.tamper = (frame, _, to) => {
    if (to === 'b' && kindOf(frame) === 'batch' && !stale) stale = frame.slice();
    return frame;
  };
  const { answers } = run(pipelines, [four], (step) => {
    if (step !== 40) return;
    const stage = pipelines.held.get('b')!.stage!;
    const before = stage.refused;
    expect(decodeFrame(stale!).epoch).toBeLessThan(pipelines.executor.epoch);
    expect(stage.take(stale!)).toBeUndefined();
    expect(stage.refused).toBe(before + 1);
  });
  expect(answers.tokens).toEqual(undisturbed(options));
});

test.each([
  ['a device that the change brings', one, two, 'b'],
  ['the first device', two, one, 'a'],
])(
  'rows that come to %s once more are refused: what was written since then stays',
  async (_, from, to, device) => {
    // Memory is short: sequences give way while rows are copied, and their blocks hold something else by the end.
    const options = await tinyOptions({ kv_tokens: 768 });
    const pipelines = pipelinesOf(options, from, { piece_bytes_max: 1, pieces_max: 1 });
    const came: FrameBytes[] = [];
    let refused = 0;
    pipelines.tamper = (frame, _, at) => {
      if (at !== device || !pipelines.change) return frame;
      const kind = kindOf(frame);
      if (kind === 'kv') came.push(frame.slice());
      if (kind !== 'begin' && kind !== 'result') return frame;
      // The oldest last.
      return [...came.map((each) => each.slice()).reverse(), frame];
    };
    const { answers, reports } = run(pipelines, [to], () => {
      refused = Math.max(refused, pipelines.held.get(device)?.refused ?? 0);
    });
    expect(kinds(reports)).toEqual(['refactored']);
    expect(came.length).toBeGreaterThan(20);
    expect(refused).toBe(device === 'b' ? came.length : 0);
    expect(answers.tokens).toEqual(undisturbed(options));
  },
);

/** Failures that the pipeline survives, and what becomes of the change. */
const survived: Record<string, Survived> = {
  'a rows frame is damaged on its way': {
    from: two,
    to: four,
    ends: 'kept',
    fail: ({ pipelines }) => {
      pipelines.tamper = (frame) => {
        if (kindOf(frame) === 'kv') frame[frame.length - 1]! ^= 1;
        return frame;
      };
    },
  },
  'rows never arrive': {
    from: two,
    to: four,
    ends: 'kept',
    silence_ms: 50,
    fail: ({ pipelines }) => {
      pipelines.tamper = (frame) => (kindOf(frame) === 'kv' ? undefined : frame);
    },
  },
  'a device is lost that only the new layout has, while rows are copied': {
    from: two,
    to: layoutOf('acb', 2, 4),
    ends: 'kept',
    fail: ({ pipelines }) => {
      onFirst(pipelines, 'kv', () => pipelines.kill('c'));
    },
  },
  'a device is lost that only the new layout has, while it begins': {
    from: two,
    to: layoutOf('acb', 2, 4),
    ends: 'kept',
    fail: ({ pipelines }) => {
      onFirst(pipelines, 'begin', () => pipelines.kill('c'));
    },
  },
  'a device is lost that only the old layout has, while rows are copied': {
    from: two,
    to: layoutOf('ac', 2),
    ends: 'refactored',
    fail: ({ pipelines }) => {
      onFirst(pipelines, 'kv', () => pipelines.kill('b'));
    },
  },
  'a device is lost that only the old layout has, while the new one begins': {
    from: two,
    to: layoutOf('ac', 2),
    ends: 'refactored',
    fail: ({ pipelines }) => {
      onFirst(pipelines, 'begin', () => pipelines.kill('b'));
    },
  },
  'a device is lost that only the old layout has, and so is whoever asked for the change': {
    from: two,
    to: layoutOf('ac', 2),
    ends: 'refactored',
    fail: ({ pipelines }) => {
      onFirst(pipelines, 'kv', () => {
        pipelines.kill('b');
        onFirst(pipelines, 'begin', () => pipelines.change!.cancel('who asked for it is gone'));
      });
    },
  },
  'it is cancelled twice, the second time on its way back': {
    from: two,
    to: four,
    ends: 'kept',
    fail: ({ pipelines }) => {
      onFirst(pipelines, 'begin', () => {
        onFirst(pipelines, 'begin', () => pipelines.change!.cancel('asked for again'));
        pipelines.change!.cancel('asked for');
      });
    },
  },
  'the new epoch never comes back': {
    from: two,
    to: four,
    ends: 'kept',
    starting_ms: 100,
    fail: ({ pipelines }) => {
      const { epoch } = pipelines.executor;
      pipelines.tamper = (frame) =>
        kindOf(frame) === 'begin' && decodeFrame(frame).epoch === epoch + 1 ? undefined : frame;
    },
  },
  'it is cancelled': {
    from: two,
    to: four,
    ends: 'kept',
    fail: ({ pipelines }) => {
      onFirst(pipelines, 'kv', () => pipelines.change!.cancel('asked for'));
    },
  },
};
interface Survived {
  from: PipelineLayout;
  to: PipelineLayout;
  ends: string;
  /** Bounds that are to be reached; the others are so high that a busy machine does not reach them. */
  starting_ms?: number;
  silence_ms?: number;
  fail: Failure;
}
type Failure = (around: { pipelines: TestPipelines }) => void;

/** Once, when the first frame of a kind is on its way in the change. */
function onFirst(pipelines: TestPipelines, kind: ReturnType<typeof kindOf>, act: () => void): void {
  let done = false;
  pipelines.tamper = (frame) => {
    if (!done && pipelines.change && kindOf(frame) === kind) {
      done = true;
      act();
    }
    return frame;
  };
}

test.each(Object.entries(survived))('%s: the answers are the same', async (_, chosen) => {
  const { from, to, ends, fail } = chosen;
  const options = await tinyOptions();
  const pipelines = pipelinesOf(options, from, {
    copy_silence_ms_max: chosen.silence_ms ?? 10_000,
    phases_ms: {
      preparing: 10_000,
      copying: 10_000,
      pausing: 10_000,
      cutting: 10_000,
      starting: chosen.starting_ms ?? 10_000,
      returning: 10_000,
      done: Number.POSITIVE_INFINITY,
    },
  });
  let armed = false;
  const { answers, reports } = run(pipelines, [to], () => {
    if (!pipelines.change || armed) return;
    armed = true;
    fail({ pipelines });
  });
  expect(kinds(reports)).toEqual([ends]);
  expect(answers.failed).toEqual([]);
  expect(answers.tokens).toEqual(undisturbed(options));
});

/** A few blocks are on their way at once, so that rows are copied for as long as the answers take. */
const slowly = { piece_bytes_max: 1, pieces_max: 2 };

/** After some of these a sequence has just had the token for which it needs another block. */
test.each([9, 10, 17, 19, 20, 33])(
  'a device of the old layout is lost after iteration %i, and who changes the layout sees it first',
  async (at) => {
    const options = await tinyOptions();
    const pipelines = pipelinesOf(options, two, slowly);
    const { answers, reports } = run(pipelines, [layoutOf('ac', 2)], (step) => {
      if (step !== at) return;
      expect(pipelines.change!.phase).toBe('copying');
      pipelines.kill('b');
    });
    expect(reports.map(({ outcome }) => outcome)).toEqual([
      expect.objectContaining({ kind: 'refactored', incomplete: [0] }),
    ]);
    expect(answers.failed).toEqual([]);
    expect(answers.tokens).toEqual(undisturbed(options));
  },
);

/** In the last ones a sequence comes back into blocks of which the target has rows of others by then. */
test.each([10, 20, 52, 54])(
  'the same after iteration %i, while sequences are swapped out and some have come back just now',
  async (at) => {
    const options = await tinyOptions({ kv_tokens: 640 });
    const pipelines = pipelinesOf(options, two, slowly);
    const { engine } = pipelines;
    const parked = new Set<number>();
    const restore = (ids: Iterable<number>): void => {
      for (const id of ids) if (engine.restoreSequence(id)) parked.delete(id);
    };
    const { answers, reports } = run(pipelines, [layoutOf('ac', 2)], (step) => {
      if (step === at - 1) for (const id of [1, 2, 3]) if (engine.parkSequence(id)) parked.add(id);
      if (step === at) {
        expect([...parked]).toEqual([1, 2, 3]);
        expect(pipelines.change!.phase).toBe('copying');
        pipelines.kill('b');
        restore([3, 2]);
        expect(parked.size).toBe(2);
      }
      if (step > at + 10) restore([...parked]);
    });
    expect(kinds(reports)).toEqual(['refactored']);
    expect(answers.failed).toEqual([]);
    expect(answers.tokens).toEqual(undisturbed(options));
  },
);

test('a device without room for the keys and values of all sequences is refused', async () => {
  const options = await tinyOptions();
  const pipelines = pipelinesOf(options, two);
  pipelines.kv_tokens.set('c', 1024);
  const { answers, reports } = run(pipelines, [four]);
  expect(reports.map(({ outcome }) => outcome)).toEqual([
    expect.objectContaining({ kind: 'kept', because: expect.stringContaining('c: its memory holds') }),
  ]);
  expect(answers.tokens).toEqual(undisturbed(options));
});

test('keys and values do not go to a device of another build, nor from one; one whose layers stay is in nobody’s way', async () => {
  const options = await tinyOptions();
  const pipelines = pipelinesOf(options, two);
  pipelines.builds.set('d', 'other');
  const { answers, reports } = run(pipelines, [layoutOf('ad', 3)]);
  expect(reports.map(({ outcome }) => outcome)).toEqual([
    expect.objectContaining({
      kind: 'kept',
      because: expect.stringContaining('d: its build is other, and that of b is this'),
    }),
  ]);
  expect(answers.tokens).toEqual(undisturbed(options));

  const mixed = pipelinesOf(options, layoutOf('ad', 3), {}, undefined, new Map([['d', 'other']]));
  const { answers: others, reports: changes } = run(mixed, [layoutOf('acd', 1, 3), one]);
  expect(changes.map(({ outcome }) => outcome)).toEqual([
    expect.objectContaining({ kind: 'refactored' }),
    expect.objectContaining({
      kind: 'kept',
      because: expect.stringContaining('a: its build is this, and that of d is other'),
    }),
  ]);
  expect(others.tokens).toEqual(undisturbed(options));
});
