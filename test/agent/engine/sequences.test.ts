/** Life of sequences: queueing, cancelling, preemption, shared prefixes, scattered KV, damaged KV, embeddings. */
import { describe, expect, test } from 'vitest';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import type { EngineOptions, SequenceOutput } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import {
  type Asked,
  argmax,
  engineOptions,
  GreedyRecorder,
  generate,
  model,
  prompt,
  Replayer,
  reference,
  rootMeanSquare,
  stepAlone,
  withEngine,
} from './support.ts';
import { testBackend } from './test-backend.ts';

const path = await model('tiny-llama', 'F16');
const invariant: Partial<EngineOptions> = { batch_invariant: true };

function start(engine: NativeEngine, id: number, length: number, max_new_tokens: number): void {
  engine.add({
    id,
    prompt_tokens: prompt(length, engine.info.n_vocab, id + 1),
    sampler: new GreedyRecorder(),
    max_new_tokens,
    stop_tokens: new Set(),
  });
}

function codeOf(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    if (error instanceof HpcserveError) return error.code;
    throw error;
  }
  return 'nothing was thrown';
}

describe('ends', () => {
  test('a stop token is reported and ends the sequence', () => {
    withEngine(engineOptions(path), (engine) => {
      const asked: Asked = { prompt: prompt(9, engine.info.n_vocab, 3), max_new_tokens: 6 };
      const [free] = generate(engine, [asked]);
      expect(free!.finish).toBe('length');
      expect(free!.tokens).toHaveLength(6);
      const stop = free!.tokens[2]!;
      engine.add({
        id: 5,
        prompt_tokens: asked.prompt,
        sampler: new GreedyRecorder(),
        max_new_tokens: 6,
        stop_tokens: new Set([stop]),
      });
      const outputs: SequenceOutput[] = [];
      while (engine.busy) outputs.push(...engine.step().outputs);
      expect(outputs.at(-1)).toMatchObject({ token: { token: stop }, finish: 'stop' });
      expect(outputs).toHaveLength(free!.tokens.indexOf(stop) + 1);
    });
  });

  test('the context ends an answer that max_new_tokens would let go on', () => {
    withEngine(engineOptions(path, { context_tokens: 40 }), (engine) => {
      const [result] = generate(engine, [{ prompt: prompt(30, 100, 1), max_new_tokens: 500 }]);
      expect(result).toMatchObject({ finish: 'length' });
      expect(result!.tokens).toHaveLength(10);
    });
  });

  test('a sampler that throws ends its own sequence only', () => {
    withEngine(engineOptions(path), (engine) => {
      start(engine, 1, 10, 5);
      engine.add({
        id: 2,
        prompt_tokens: prompt(10, 100, 2),
        sampler: {
          sample() {
            throw new Error('no such grammar');
          },
        },
        max_new_tokens: 5,
        stop_tokens: new Set(),
      });
      const finished = new Map<number, SequenceOutput>();
      while (engine.busy)
        for (const output of engine.step().outputs) if (output.finish) finished.set(output.id, output);
      expect(finished.get(1)).toMatchObject({ finish: 'length' });
      expect(finished.get(2)).toMatchObject({ finish: 'error', error: 'no such grammar' });
    });
  });

  test('what can never fit is refused', () => {
    withEngine(engineOptions(path, { context_tokens: 64, kv_tokens: 4096 }), (engine) => {
      expect(codeOf(() => start(engine, 1, 64, 1))).toBe('E_ENGINE_SEQUENCE');
      expect(codeOf(() => start(engine, 1, 0, 1))).toBe('E_ENGINE_SEQUENCE');
      start(engine, 1, 63, 1);
      expect(codeOf(() => start(engine, 1, 3, 1))).toBe('E_ENGINE_SEQUENCE');
    });
    expect(codeOf(() => new NativeEngine(engineOptions(path, { threads: 0 })))).toBe('E_ENGINE_OPTIONS');
    const stage = { begin: 0, end: 3 };
    expect(codeOf(() => new NativeEngine(engineOptions(path, { stage })))).toBe('E_ENGINE_OPTIONS');
  });
});

describe('KV blocks', () => {
  test('cancelling frees them before it returns', () => {
    withEngine(engineOptions(path), (engine) => {
      start(engine, 1, 100, 50);
      start(engine, 2, 300, 50);
      start(engine, 3, 20, 50);
      engine.step();
      engine.step();
      engine.cancel(2);
      engine.verify();
      expect(engine.stats().kv_tokens_used).toBe(112 + 32);
      engine.cancel(1);
      engine.cancel(3);
      engine.cancel(77);
      engine.verify();
      expect(engine.stats()).toMatchObject({ kv_tokens_used: 0, running: 0, waiting: 0 });
      const { outputs } = engine.step();
      expect(outputs.map(({ id, finish }) => [id, finish])).toEqual([
        [2, 'cancelled'],
        [1, 'cancelled'],
        [3, 'cancelled'],
      ]);
      expect(engine.busy).toBe(false);
    });
  });

  test('sequences wait for slots and blocks, and answers are the same', () => {
    const ask = (n_vocab: number): Asked[] =>
      Array.from({ length: 9 }, (_, seed) => ({
        prompt: prompt(20 + 13 * seed, n_vocab, seed + 70),
        max_new_tokens: 40,
      }));
    const roomy = withEngine(engineOptions(path, invariant), (engine) =>
      generate(engine, ask(engine.info.n_vocab)),
    );
    // 24 blocks: a few sequences at a time, which outgrow them, so that the youngest are preempted.
    const tight = { ...invariant, kv_tokens: 384, max_sequences: 4 };
    withEngine(engineOptions(path, tight), (engine) => {
      generate(engine, ask(engine.info.n_vocab)).forEach((result, index) => {
        expect(result.tokens, `sequence ${index}`).toEqual(roomy[index]!.tokens);
      });
      expect(engine.stats().kv_tokens_used).toBe(0);
    });
  });

  test('preemption happens, and loses nothing', () => {
    withEngine(engineOptions(path, { ...invariant, kv_tokens: 128 }), (engine) => {
      start(engine, 1, 40, 60);
      start(engine, 2, 40, 60);
      const tokens = new Map<number, number[]>([
        [1, []],
        [2, []],
      ]);
      let preempted = false;
      let before = 0;
      while (engine.busy) {
        for (const { id, token } of stepAlone(engine).outputs) if (token) tokens.get(id)!.push(token.token);
        const { running, waiting } = engine.stats();
        if (before === 2 && running === 1 && waiting === 1) preempted = true;
        before = running;
      }
      expect(preempted).toBe(true);
      expect([...tokens.values()].map((list) => list.length)).toEqual([60, 60]);
    });
  });

  test.each(['parked', 'computed again'] as const)(
    'a step that finds no KV says so and changes nothing; where one sequence is %s, all go on as alone',
    (how) => {
      const new_tokens = 60;
      const ids = [1, 2];
      const alone = withEngine(engineOptions(path, invariant), (engine) =>
        generate(
          engine,
          ids.map((id) => ({
            prompt: prompt(40, engine.info.n_vocab, id + 1),
            max_new_tokens: new_tokens,
          })),
        ),
      );
      // Eight blocks: both fill four, and neither finds a fifth.
      withEngine(engineOptions(path, { ...invariant, kv_tokens: 128 }), (engine) => {
        for (const id of ids) start(engine, id, 40, new_tokens);
        const tokens = new Map<number, number[]>(ids.map((id) => [id, []]));
        let exhausted = 0;
        let parked = false;
        while (engine.busy || parked) {
          const before = engine.progress();
          const report = engine.step();
          engine.verify();
          for (const { id, token } of report.outputs) if (token) tokens.get(id)!.push(token.token);
          if (report.kv_exhausted) {
            exhausted++;
            const bytes = engine.kvBytesOf(1) / 4;
            expect(report).toMatchObject({ outputs: [], prefill_tokens: 0, decode_tokens: 0 });
            expect(report.kv_exhausted).toEqual({ id: 1, bytes, youngest: 2 });
            expect(engine.progress()).toEqual(before);
            // It says so for as long as nobody makes room.
            expect(engine.step().kv_exhausted).toEqual(report.kv_exhausted);
            if (how === 'parked') parked = engine.parkSequence(2)! > 0;
            else engine.recomputeSequence(2);
          } else if (parked) parked = !engine.restoreSequence(2);
        }
        expect(exhausted).toBe(1);
        expect([...tokens.values()]).toEqual(alone.map((result) => result.tokens));
      });
    },
  );

  test('a prompt that begins like an earlier one reuses its blocks', () => {
    withEngine(engineOptions(path, invariant), (engine) => {
      const shared = prompt(100, engine.info.n_vocab, 11);
      const longer = Int32Array.from([...shared.slice(0, 90), ...prompt(30, engine.info.n_vocab, 12)]);
      const [cold] = withEngine(engineOptions(path, invariant), (other) =>
        generate(other, [{ prompt: longer, max_new_tokens: 12 }]),
      );
      generate(engine, [{ prompt: shared, max_new_tokens: 4 }]);
      engine.add({
        id: 9,
        prompt_tokens: longer,
        sampler: new GreedyRecorder(),
        max_new_tokens: 12,
        stop_tokens: new Set(),
      });
      const outputs: SequenceOutput[] = [];
      while (engine.busy) outputs.push(...engine.step().outputs);
      // 90 shared tokens are 5 full blocks, and 10 rows of the next that are copied.
      expect(outputs[0]!.cached_tokens).toBe(90);
      expect(outputs.flatMap(({ token }) => (token ? [token.token] : []))).toEqual(cold!.tokens);
      engine.verify();
    });
  });

  test.each(['f16', 'q8_0'] as const)(
    'what a living sequence has begun is copied by the next, and both go on as alone (%s)',
    (kv_type) => {
      const options = engineOptions(path, { ...invariant, kv_type });
      const first = prompt(42, 1000, 31);
      const second = Int32Array.from([...first.slice(0, 40), ...prompt(9, 1000, 32)]);
      const alone = [first, second].map(
        (tokens) =>
          withEngine(options, (engine) => generate(engine, [{ prompt: tokens, max_new_tokens: 20 }]))[0]!
            .tokens,
      );
      withEngine(options, (engine) => {
        const found: number[][] = [[], []];
        const add = (id: number, prompt_tokens: Int32Array): void =>
          engine.add({
            id,
            prompt_tokens,
            sampler: new GreedyRecorder(),
            max_new_tokens: 20,
            stop_tokens: new Set(),
          });
        const step = (): void => {
          for (const { id, token, cached_tokens } of engine.step().outputs) {
            if (token) found[id]!.push(token.token);
            // Two full blocks, and eight rows of the third.
            if (cached_tokens !== undefined) expect(cached_tokens).toBe(id === 0 ? 0 : 40);
          }
          engine.verify();
        };
        add(0, first);
        while (found[0]!.length < 4) step();
        add(1, second);
        while (engine.busy) step();
        expect(found).toEqual(alone);
      });
    },
  );

  test('keys and values in several extents are attended as in one', () => {
    withEngine(engineOptions(path, { ...invariant, kv_tokens: 1024, max_sequences: 32 }), (engine) => {
      const asked = (): Asked => ({ prompt: prompt(250, engine.info.n_vocab, 21), max_new_tokens: 20 });
      const [whole] = generate(engine, [asked()]);
      const scattered = new NativeEngine(
        engineOptions(path, { ...invariant, kv_tokens: 1024, max_sequences: 33 }),
        testBackend(),
      );
      for (let id = 100; id < 132; id++) start(scattered, id, 17, 40);
      scattered.step();
      for (let id = 100; id < 132; id += 1) if (id % 3 !== 0) scattered.cancel(id);
      scattered.step();
      scattered.add({
        id: 1,
        prompt_tokens: asked().prompt,
        sampler: new GreedyRecorder(),
        max_new_tokens: 20,
        stop_tokens: new Set(),
      });
      const tokens: number[] = [];
      let extents = 0;
      while (tokens.length < 20) {
        for (const { id, token } of scattered.step().outputs) if (id === 1 && token) tokens.push(token.token);
        const blocks = scattered.kvOf(1)?.blocks ?? [];
        extents = Math.max(
          extents,
          blocks.filter((block, at) => at > 0 && block !== blocks[at - 1]! + 1).length,
        );
      }
      scattered.close();
      expect(extents).toBeGreaterThan(1);
      expect(tokens).toEqual(whole!.tokens);
    });
  });

  test('a damaged block would have changed the tokens', () => {
    const run = (damage: boolean): number[] =>
      withEngine(engineOptions(path, invariant), (engine) => {
        start(engine, 1, 64, 40);
        const tokens: number[] = [];
        let done = false;
        while (engine.busy) {
          for (const { token } of engine.step().outputs) if (token) tokens.push(token.token);
          const kv = engine.kvOf(1);
          if (!damage || done || !kv || tokens.length < 4) continue;
          done = true;
          const cache = kv.stage.kv;
          const block = new Uint8Array(16 * cache.row_bytes);
          // Another sequence's keys would look like these: valid numbers, in the wrong place.
          cache.readRows(0, cache.rowOf(kv.blocks, 32), block);
          cache.writeRows(0, cache.rowOf(kv.blocks, 16), block);
        }
        return tokens;
      });
    const sound = run(false);
    expect(run(false)).toEqual(sound);
    expect(run(true)).not.toEqual(sound);
  });
});

describe('other answers', () => {
  test('embeddings are those of libllama, alone and in a batch with answers', () => {
    const context = reference(path, { embeddings: true });
    withEngine(engineOptions(path, { prefill_chunk_tokens: 64 }), (engine) => {
      for (const [seed, length] of [1, 20, 150].entries()) {
        const prompt_tokens = prompt(length, engine.info.n_vocab, seed + 30);
        start(engine, 1, 12, 6);
        engine.add({ id: 2, prompt_tokens, max_new_tokens: 0, stop_tokens: new Set() });
        let embedding: Float32Array | undefined;
        while (engine.busy)
          for (const output of engine.step().outputs) embedding = output.embedding ?? embedding;
        context.clear();
        context.decode(
          Array.from(prompt_tokens, (token, position) => ({ token, position, sequence: 0, output: true })),
        );
        const theirs = context.embedding(0);
        const length2 = Math.sqrt(theirs.reduce((sum, value) => sum + value * value, 0));
        expect(
          rootMeanSquare(
            embedding!,
            theirs.map((value) => value / length2),
          ),
        ).toBeLessThan(1e-3);
      }
      expect(engine.stats().kv_tokens_used).toBe(0);
    });
    context.close();
  });

  test('log probabilities of the prompt are those of its own logits', () => {
    withEngine(engineOptions(path, invariant), (engine) => {
      const prompt_tokens = prompt(50, engine.info.n_vocab, 31);
      engine.add({
        id: 1,
        prompt_tokens,
        sampler: new GreedyRecorder(),
        max_new_tokens: 3,
        stop_tokens: new Set(),
        prompt_logprobs: 2,
      });
      const outputs: SequenceOutput[] = [];
      while (engine.busy) outputs.push(...engine.step().outputs);
      const told = outputs.find(({ prompt_logprobs }) => prompt_logprobs)!.prompt_logprobs!;
      expect(told.map(({ token }) => token)).toEqual([...prompt_tokens.slice(1)]);
      const [forced] = generate(engine, [
        {
          prompt: prompt_tokens.slice(0, 1),
          max_new_tokens: 49,
          sampler: new Replayer([...prompt_tokens.slice(1)]),
        },
      ]);
      forced!.rows.forEach((row, index) => {
        const most = row[argmax(row)]!;
        const normalizer = most + Math.log(row.reduce((sum, logit) => sum + Math.exp(logit - most), 0));
        const entry = told[index]!;
        expect(entry.logprob).toBeCloseTo(row[entry.token]! - normalizer, 6);
        expect(entry.top).toHaveLength(2);
        expect(entry.top![0]!.token).toBe(argmax(row));
      });
    });
  });

  test('max_new_tokens 0 computes the prompt and ends', () => {
    withEngine(engineOptions(path), (engine) => {
      start(engine, 1, 30, 0);
      const outputs: SequenceOutput[] = [];
      while (engine.busy) outputs.push(...engine.step().outputs);
      expect(outputs).toEqual([{ id: 1, cached_tokens: 0, finish: 'length' }]);
    });
  });
});
