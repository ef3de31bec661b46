/** What a pipeline does where frames are damaged, late or repeated, stages fail, and sequences lose their places. */
import { expect, test } from 'vitest';
import type { KvMemory } from '../../../agent/engine/kv-memory.ts';
import { kv_block_tokens } from '../../../agent/engine/kv-storage.ts';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { decodeBatchMeta, encodeBatchMeta } from '../../../agent/pipeline/batch-meta.ts';
import {
  allocateFrame,
  decodeFrame,
  encodeFrame,
  encodeJsonFrame,
  type FrameBytes,
  frame_floats_max,
} from '../../../agent/pipeline/frame.ts';
import { PipelineOpening } from '../../../agent/pipeline/open-pipeline.ts';
import type { StageFacts } from '../../../agent/pipeline/stage-facts.ts';
import { checkStages } from '../../../agent/pipeline/stage-facts.ts';
import type { EngineOptions, SequenceOutput } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { engineOptions, GreedyRecorder, generate, model, prompt } from '../engine/support.ts';
import { testBackend } from '../engine/test-backend.ts';
import { closePipeline, openStages, openTestPipeline, toldFacts } from './support.ts';

const answer_tokens = 24;

async function tinyOptions(more: Partial<EngineOptions> = {}): Promise<EngineOptions> {
  return engineOptions(await model('tiny-llama', 'Q8_0'), {
    batch_invariant: true,
    kv_tokens: 1024,
    ...more,
  });
}

function add(engine: NativeEngine, id: number, max_new_tokens = answer_tokens): void {
  const prompt_tokens = prompt(30 + id, engine.info.n_vocab, id + 1);
  engine.add({ id, prompt_tokens, sampler: new GreedyRecorder(), max_new_tokens, stop_tokens: new Set() });
}

/** Tokens of the ids, until all have ended; `each` is called after every step. */
function drain(
  engine: NativeEngine,
  ids: number[],
  each: (step: number) => void = () => undefined,
): number[][] {
  const answers: number[][] = ids.map(() => []);
  for (let step = 0; engine.busy; step++) {
    for (const { id, token } of engine.step().outputs) if (token) answers[id]?.push(token.token);
    each(step);
    if (step > 2000) throw new Error('the engine does not come to an end');
  }
  engine.verify();
  return answers;
}

function expected(options: EngineOptions, ids: number[]): number[][] {
  const engine = new NativeEngine(options, testBackend());
  for (const id of ids) add(engine, id);
  const answers = drain(engine, ids);
  engine.close();
  return answers;
}

test('a batch that the first stage cannot compute has no number, and the next one is taken', async () => {
  const pipeline = openTestPipeline(await tinyOptions(), [2, 4]);
  const { engine, executor } = pipeline;
  add(engine, 0);
  const { stage } = executor;
  const [run, submit] = [stage.run, executor.submit];
  const batches: Parameters<typeof submit>[0][] = [];
  stage.run = () => {
    throw new HpcserveError('E_ENGINE_NUMBERS', { what: 'no numbers' });
  };
  executor.submit = (batch) => {
    batches.push(batch);
    submit.call(executor, batch);
  };
  expect(() => engine.step()).toThrow('no numbers');
  Object.assign(stage, { run });
  submit.call(executor, batches[0]!);
  expect(executor.collect().segments).toHaveLength(batches[0]!.length);
  closePipeline(pipeline);
});

test('where the first stage has no memory for its results, the longest sequence of the batch ends', async () => {
  const options = await tinyOptions();
  const pipeline = openTestPipeline(options, [2, 4]);
  const { engine, executor } = pipeline;
  const { stage } = executor;
  const run = stage.run.bind(stage);
  stage.run = (batch) => {
    if (batch.tokens!.length > 70)
      throw new HpcserveError('E_NATIVE_MEMORY', { what: 'no memory to compute' });
    return run(batch);
  };
  for (const id of [0, 1]) add(engine, id);
  const answers: number[][] = [[], []];
  const ended: SequenceOutput[] = [];
  for (let step = 0; engine.busy; step++) {
    if (step === 4) add(engine, 60);
    for (const output of engine.step().outputs) {
      const { id, token } = output;
      if (id === 60) ended.push(output);
      else if (token) answers[id]!.push(token.token);
    }
  }
  expect(ended).toMatchObject([{ id: 60, finish: 'error', short_of_memory: true }]);
  expect(answers).toEqual(expected(options, [0, 1]));
  engine.verify();
  closePipeline(pipeline);
});

test('a chunk of a prompt has as many rows as fit into a frame beside the running sequences, and no more', async () => {
  const options = await tinyOptions({ max_sequences: 4, prefill_chunk_tokens: 512 });
  const { n_embd, n_vocab } = openModelFile(options.model_path).model;
  // Of four sequences a row of logits each, and so many hidden rows.
  const floats_max = 4 * n_vocab + n_embd;
  const rows_max = Math.floor(floats_max / n_embd);
  const pipeline = openTestPipeline(options, [2, 4], floats_max);
  const rows: number[] = [];
  pipeline.ring.tamper = (bytes, stage) => {
    const { kind, meta, payload } = decodeFrame(bytes);
    if (kind === 'batch' && stage === 1)
      for (const { segment } of decodeBatchMeta(meta).segments) rows.push(segment.rows);
    if (kind === 'batch' || kind === 'result') expect(payload.length).toBeLessThanOrEqual(floats_max);
    return bytes;
  };
  const ids = [0, 1, 2, 3, 4, 5];
  const long = 3 * rows_max;
  const ask = (engine: NativeEngine): number[][] => {
    for (const id of ids) add(engine, id, 4);
    engine.add({
      id: 6,
      prompt_tokens: prompt(long, n_vocab, 7),
      sampler: new GreedyRecorder(),
      max_new_tokens: 4,
      stop_tokens: new Set(),
    });
    return drain(engine, [...ids, 6]);
  };
  const answers = ask(pipeline.engine);
  expect(Math.max(...rows)).toBe(rows_max - 4);
  closePipeline(pipeline);
  const whole = new NativeEngine(options, testBackend());
  expect(answers).toEqual(ask(whole));
  whole.close();
});

test('what no frame can hold is refused by who would send it, with what to lower', () => {
  const header = { kind: 'batch', epoch: 1, number: 1 } as const;
  const meta = new Uint8Array(8);
  expect(allocateFrame(header, meta, frame_floats_max).payload).toHaveLength(frame_floats_max);
  expect(() => allocateFrame(header, meta, 2 ** 26)).toThrow(
    expect.objectContaining({
      code: 'E_ENGINE_OPTIONS',
      try: [expect.stringContaining('prefill_chunk_tokens')],
    }),
  );
});

test('a stage refuses a batch that asks for the times of other operators than there are', async () => {
  const pipeline = openTestPipeline(await tinyOptions(), [3]);
  pipeline.ring.tamper = (bytes, to) => {
    const frame = decodeFrame(bytes);
    if (frame.kind !== 'batch' || to !== 1) return bytes;
    const meta = encodeBatchMeta({ ...decodeBatchMeta(frame.meta), operators_us: [0, 0] });
    return encodeFrame(frame, meta, frame.payload);
  };
  add(pipeline.engine, 0);
  expect(() => drain(pipeline.engine, [0])).toThrow(/cannot go on/);
  closePipeline(pipeline);
});

function spoil(kv: KvMemory, blocks: readonly number[]): void {
  const rows = new Uint8Array(kv_block_tokens * kv.row_bytes).fill(0xff);
  for (const block of blocks)
    for (let matrix = 0; matrix < kv.n_matrices; matrix++)
      kv.writeRows(matrix, kv.storage.block_rows[block]!, rows);
}

test('sequences that are parked and come back go on where they were; damaged ones are computed again', async () => {
  const options = await tinyOptions();
  const ids = [0, 1, 2, 3];
  const pipeline = openTestPipeline(options, [2, 4]);
  const { engine } = pipeline;
  for (const id of ids) add(engine, id);
  let parked_bytes = 0;
  // What a stage has of the second one in host memory is lost there: it says so, and the sequence begins anew.
  pipeline.ring.tamper = (bytes, stage) => {
    const frame = decodeFrame(bytes);
    if (frame.kind !== 'batch' || stage !== 1) return bytes;
    const meta = decodeBatchMeta(frame.meta);
    const back = meta.commands.find((command) => command.do === 'swap_in' && command.id === 2);
    if (back?.do !== 'swap_in') return bytes;
    // What lay in its blocks before is no numbers.
    for (const { stage: held } of pipeline.stages) spoil(held.kv, Array.from(back.blocks));
    meta.commands.unshift({ do: 'forget', id: 2 });
    return encodeFrame(frame, encodeBatchMeta(meta), frame.payload);
  };
  const answers = drain(engine, ids, (step) => {
    if (step === 6) parked_bytes = engine.parkSequence(1) ?? 0;
    if (step === 9) engine.parkSequence(2);
    if (step === 14) expect(engine.restoreSequence(1)).toBe(true);
    if (step === 16) expect(engine.restoreSequence(2)).toBe(true);
    if (step === 20) engine.recomputeSequence(3);
  });
  expect(parked_bytes).toBeGreaterThan(0);
  expect(answers).toEqual(expected(options, ids));
  closePipeline(pipeline);
});

test('a cancelled sequence frees its blocks at once, also while a batch of it is on its way', async () => {
  const options = await tinyOptions({ kv_tokens: 512 });
  const pipeline = openTestPipeline(options, [3]);
  const { engine } = pipeline;
  for (const id of [0, 1, 2, 3]) add(engine, id);
  for (let step = 0; step < 5; step++) engine.step();
  expect(engine.stats().kv_tokens_used).toBeGreaterThan(100);
  for (const id of [0, 1, 2, 3]) engine.cancel(id);
  expect(engine.stats().kv_tokens_used).toBe(0);
  // Others write to these blocks before the batch has come back.
  for (const id of [4, 5, 6, 7]) add(engine, id);
  const answers = drain(engine, [0, 1, 2, 3, 4, 5, 6, 7]);
  expect(answers.slice(4)).toEqual(expected(options, [0, 1, 2, 3, 4, 5, 6, 7]).slice(4));
  closePipeline(pipeline);
});

test('where KV is exhausted sequences give way, and answers are the same', async () => {
  const options = await tinyOptions({ kv_tokens: 160 });
  const asked = [0, 1, 2, 3].map((id) => ({ prompt: prompt(20 + id, 256, id + 1), max_new_tokens: 40 }));
  const whole = new NativeEngine(options, testBackend());
  const alone = generate(
    whole,
    asked.map((one) => ({ ...one })),
  );
  whole.close();
  const pipeline = openTestPipeline(options, [3]);
  const piped = generate(
    pipeline.engine,
    asked.map((one) => ({ ...one })),
  );
  expect(piped.map(({ tokens }) => tokens)).toEqual(alone.map(({ tokens }) => tokens));
  closePipeline(pipeline);
});

function failing(options: EngineOptions, tamper: (frame: FrameBytes, stage: number) => FrameBytes): string {
  const pipeline = openTestPipeline(options, [2, 4]);
  pipeline.ring.tamper = tamper;
  add(pipeline.engine, 0);
  try {
    drain(pipeline.engine, [0]);
    return 'nothing';
  } catch (error) {
    return HpcserveError.from(error).code;
  } finally {
    closePipeline(pipeline);
  }
}

test('a bit that flips on the way is noticed by the stage that it comes to', async () => {
  const options = await tinyOptions();
  for (const place of [20, 40, -1])
    expect(
      failing(options, (frame, stage) => {
        if (stage === 2) frame[place < 0 ? frame.length + place : place]! ^= 4;
        return frame;
      }),
    ).toBe('E_STAGE_FRAME');
});

test('a frame that came as it was sent and says something else is no frame of the protocol', async () => {
  const options = await tinyOptions();
  const pipeline = openTestPipeline(options, [2, 4]);
  const [second] = pipeline.stages;
  const codeOf = (use: () => unknown): string => {
    try {
      use();
      return 'nothing';
    } catch (error) {
      return HpcserveError.from(error).code;
    }
  };
  const header = { epoch: 9, number: 0 };
  for (const meta of [{ epoch: 'later' }, {}, null])
    expect(codeOf(() => second!.take(encodeJsonFrame({ kind: 'begin', ...header }, meta)))).toBe(
      'E_STAGE_FRAME',
    );
  expect(codeOf(() => second!.take(encodeJsonFrame({ kind: 'open', ...header }, [])))).toBe('E_STAGE_FRAME');
  closePipeline(pipeline);
  const failed = (frame: FrameBytes, stage: number): FrameBytes =>
    stage === 3 && decodeFrame(frame).kind === 'result'
      ? encodeJsonFrame({ ...decodeFrame(frame), kind: 'failed' }, { stage: 1, error: 'a text' })
      : frame;
  expect(failing(options, failed)).toBe('E_STAGE_FRAME');
});

test('numbers that mean nothing end the pipeline, with the stage that saw them', async () => {
  const options = await tinyOptions();
  const code = failing(options, (bytes, stage) => {
    if (stage !== 2) return bytes;
    const frame = decodeFrame(bytes);
    return encodeFrame(frame, frame.meta, frame.payload.fill(Number.NaN));
  });
  expect(code).toBe('E_STAGE_LOST');
});

test('frames of another epoch, and frames that were there before, are refused and change nothing', async () => {
  const options = await tinyOptions();
  const pipeline = openTestPipeline(options, [2, 4]);
  let last: FrameBytes | undefined;
  pipeline.ring.tamper = (frame, stage) => {
    if (stage === 2) last = frame.slice();
    return frame;
  };
  add(pipeline.engine, 0);
  const answers = drain(pipeline.engine, [0], () => {
    const [, second] = pipeline.stages;
    const before = second!.refused;
    expect(second!.take(last!.slice())).toBeUndefined();
    const frame = decodeFrame(last!);
    const stale = encodeFrame(
      { ...frame, epoch: frame.epoch - 1, number: frame.number + 1 },
      frame.meta,
      frame.payload,
    );
    expect(second!.take(stale)).toBeUndefined();
    expect(second!.refused).toBe(before + 2);
  });
  expect(answers).toEqual(expected(options, [0]));
  closePipeline(pipeline);
});

test('an epoch that has begun does not begin again: what stages keep of it stays', async () => {
  const options = await tinyOptions();
  const pipeline = openTestPipeline(options, [2, 4]);
  const { epoch } = pipeline.executor;
  add(pipeline.engine, 0);
  const answers = drain(pipeline.engine, [0], () => {
    const [first] = pipeline.stages;
    const before = first!.refused;
    const again = encodeJsonFrame({ kind: 'begin', epoch, number: 0 }, { epoch });
    expect(first!.take(again)).toBeUndefined();
    expect(first!.refused).toBe(before + 1);
  });
  expect(answers).toEqual(expected(options, [0]));
  closePipeline(pipeline);
});

test('a result of an epoch that is over is nobody’s answer', async () => {
  const options = await tinyOptions();
  const pipeline = openTestPipeline(options, [2, 4]);
  const { ring } = pipeline;
  let late: FrameBytes | undefined;
  ring.tamper = (bytes, stage) => {
    if (stage !== ring.stages.length + 1 || late) return bytes;
    const frame = decodeFrame(bytes.slice());
    late = encodeFrame({ ...frame, epoch: frame.epoch - 1 }, frame.meta, frame.payload);
    ring.queues.at(-1)!.unshift(late);
    return bytes;
  };
  add(pipeline.engine, 0);
  expect(drain(pipeline.engine, [0])).toEqual(expected(options, [0]));
  expect(late).toBeDefined();
  closePipeline(pipeline);
});

test('a pipeline that is opened anew has an epoch that no stage has seen', async () => {
  const options = await tinyOptions();
  const first = openTestPipeline(options, [3]);
  const again = new PipelineOpening(first.executor.stage, first.ring, toldFacts(options, 0));
  const executor = again.advance() ?? again.advance() ?? again.advance();
  expect(executor!.epoch).toBeGreaterThan(first.executor.epoch);
  closePipeline(first);
});

test('the stage with the least KV decides', async () => {
  const options = await tinyOptions();
  const { first, ring } = openStages(options, [3], 500);
  const opening = new PipelineOpening(first, ring, toldFacts(options, 0));
  const executor = opening.advance() ?? opening.advance() ?? opening.advance();
  const engine = new NativeEngine(options, testBackend(), { executor: executor! });
  expect(engine.stats().kv_tokens_total).toBe(496);
  engine.close();
  for (const stage of ring.stages) stage.free();
});

test('stages that are no pipeline are told apart', () => {
  const facts = (stage: number, more: Partial<StageFacts> = {}): StageFacts => ({
    stage,
    begin: 3 * stage,
    end: 3 * stage + 3,
    model: 'a',
    kv_type: 'f16',
    batch_invariant: false,
    kv_tokens: 1024,
    weight_bytes: 1,
    kv_bytes: 1,
    device: `device ${stage}`,
    device_identity: `device ${stage}`,
    epoch: 0,
    ...more,
  });
  expect(() => checkStages([facts(0), facts(1)], 6)).not.toThrow();
  const wrong: [StageFacts[], RegExp][] = [
    [[facts(0), facts(1, { model: 'b' })], /has model b/],
    [[facts(0), facts(1, { begin: 4 })], /begins at operator 4/],
    [[facts(0), facts(1, { end: 5 })], /ends at operator 5 of 6/],
    [[facts(0), facts(1, { device_identity: 'device 0' })], /on one device/],
    [[facts(0), facts(1, { kv_type: 'q8_0' })], /kv_type/],
  ];
  for (const [stages, words] of wrong) {
    let because = '';
    try {
      checkStages(stages, 6);
    } catch (error) {
      because = HpcserveError.from(error).because.join('; ');
    }
    expect(because).toMatch(words);
  }
});
