/** An engine over a pipeline of stages gives the tokens of an engine that has the whole model. */
import { describe, expect, test } from 'vitest';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { allocateCandidates } from '../../../agent/text/sampling/candidates.ts';
import { TokenSampler } from '../../../agent/text/sampling/token-sampler.ts';
import type { EngineOptions, SampledToken, SequenceRequest } from '../../../spec/engine-contract.ts';
import { engineOptions, generate, model, prompt } from '../engine/support.ts';
import { testBackend } from '../engine/test-backend.ts';
import { closePipeline, openTestPipeline, type TestPipeline } from './support.ts';

function withPipeline<T>(
  options: EngineOptions,
  cuts: readonly number[],
  use: (pipeline: TestPipeline) => T,
): T {
  const pipeline = openTestPipeline(options, cuts);
  try {
    return use(pipeline);
  } finally {
    closePipeline(pipeline);
  }
}

function withWhole<T>(options: EngineOptions, use: (engine: NativeEngine) => T): T {
  const engine = new NativeEngine(options, testBackend());
  try {
    return use(engine);
  } finally {
    engine.close();
  }
}

/** Prompts of many lengths, some of which begin alike. */
function questions(n_vocab: number): { prompt: Int32Array; max_new_tokens: number }[] {
  return Array.from({ length: 12 }, (_, index) => {
    const own = prompt(5 + 23 * index, n_vocab, index + 1);
    const common = prompt(40, n_vocab, 99);
    const tokens = index % 3 === 0 ? Int32Array.from([...common, ...own]) : own;
    return { prompt: tokens, max_new_tokens: 6 + (index % 5) };
  });
}

const cases = [
  { quantization: 'BF16', cuts: [3] },
  { quantization: 'Q8_0', cuts: [2, 4] },
  { quantization: 'Q4_0', cuts: [1, 3, 5] },
] as const;

describe.each(cases)('$quantization, cut before operators $cuts', ({ quantization, cuts }) => {
  test('tokens and logits are those of the whole model, with sequences that come and go', async () => {
    const path = await model('tiny-llama', quantization);
    const options = engineOptions(path, { batch_invariant: true, prefill_chunk_tokens: 64 });
    const whole = withWhole(options, (engine) => generate(engine, questions(engine.info.n_vocab), 2));
    const piped = withPipeline(options, cuts, ({ engine, ring, executor }) => {
      const results = generate(engine, questions(engine.info.n_vocab), 2);
      // Of some batches, at every stage.
      for (const { begin, end, operators_us } of executor.stages) {
        expect(operators_us).toHaveLength(end - begin);
        expect(Math.max(...operators_us)).toBeGreaterThan(0);
      }
      // As many batches as stages, and never one more.
      expect(ring.frames_max).toBeGreaterThan(1);
      expect(ring.frames_max).toBeLessThanOrEqual(cuts.length + 1);
      return results;
    });
    expect(piped.map(({ tokens }) => tokens)).toEqual(whole.map(({ tokens }) => tokens));
    expect(piped.map(({ finish }) => finish)).toEqual(whole.map(({ finish }) => finish));
    for (const [index, { rows }] of piped.entries()) expect(rows).toEqual(whole[index]!.rows);
  });
});

const neutral = {
  temperature: 0,
  top_k: 0,
  top_p: 1,
  min_p: 0,
  typical_p: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
  repetition_penalty: 1,
  logit_bias: [],
  min_tokens: 0,
  seed: 7,
  choice: 0,
};

/** Sequences with every way to choose a token, those that need the answer so far among them. */
function sampled(engine: NativeEngine): SampledToken[][] {
  const { n_vocab } = engine.info;
  const scratch = allocateCandidates(n_vocab);
  const ways = [
    neutral,
    { ...neutral, logprobs: 3 },
    { ...neutral, temperature: 1, top_k: 50, top_p: 0.9, seed: 2 ** 40 + 5 },
    { ...neutral, temperature: 0.7, typical_p: 0.8, logprobs: 0 },
    { ...neutral, temperature: 0.7, repetition_penalty: 1.3, logprobs: 2 },
    { ...neutral, presence_penalty: 0.4, min_tokens: 4 },
  ];
  const answers: SampledToken[][] = ways.map(() => []);
  ways.forEach((parameters, id) => {
    const tokens = prompt(20, n_vocab, id + 1);
    const sampler = new TokenSampler(
      parameters,
      { prompt: tokens, continued: [], stop_tokens: [1] },
      scratch,
    );
    const request: SequenceRequest = {
      id,
      prompt_tokens: tokens,
      sampler,
      max_new_tokens: 8,
      stop_tokens: new Set(),
    };
    if (id === 1) request.prompt_logprobs = 2;
    engine.add(request);
  });
  while (engine.busy)
    for (const { id, token, prompt_logprobs } of engine.step().outputs) {
      if (prompt_logprobs) answers[id]!.push(...prompt_logprobs);
      if (token) answers[id]!.push(token);
    }
  return answers;
}

test('tokens that the last stage chooses are those that the sampler would have chosen', async () => {
  const options = engineOptions(await model('tiny-llama', 'Q8_0'), { batch_invariant: true });
  const whole = withWhole(options, sampled);
  const piped = withPipeline(options, [3], ({ engine }) => sampled(engine));
  expect(piped).toEqual(whole);
  expect(whole.map(({ length }) => length)).toEqual([8, 27, 8, 8, 8, 8]);
});

test('embeddings are those of the whole model', async () => {
  const options = engineOptions(await model('tiny-llama', 'BF16'), {
    batch_invariant: true,
    prefill_chunk_tokens: 16,
  });
  const embed = (engine: NativeEngine): Float32Array => {
    const tokens = prompt(50, engine.info.n_vocab, 3);
    engine.add({ id: 1, prompt_tokens: tokens, max_new_tokens: 0, stop_tokens: new Set() });
    let found: Float32Array | undefined;
    while (engine.busy) for (const { embedding } of engine.step().outputs) found = embedding ?? found;
    return found!;
  };
  expect(withPipeline(options, [2, 4], ({ engine }) => embed(engine))).toEqual(withWhole(options, embed));
});
