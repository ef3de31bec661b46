/** Iterations by plan: a scheduler says what is computed, and no plan changes a token. */
import { describe, expect, test } from 'vitest';
import type { IterationPlan } from '../../../spec/engine-contract.ts';
import { engineOptions, GreedyRecorder, generate, model, prompt, withEngine } from './support.ts';

const lengths = [5, 90, 300, 40];
const new_tokens = 12;

describe('iteration plans', () => {
  test('a step computes what its plan says: decode steps, or so many tokens of a prompt, the asked one first', async () => {
    const path = await model('tiny-llama', 'F16');
    withEngine(engineOptions(path), (engine) => {
      const add = (id: number, length: number): void =>
        engine.add({
          id,
          prompt_tokens: prompt(length, engine.info.n_vocab, id + 1),
          sampler: new GreedyRecorder(),
          max_new_tokens: 50,
          stop_tokens: new Set(),
        });
      add(0, 40);
      expect(engine.progress()).toEqual([
        { id: 0, waiting: true, tokens: 40, generated_tokens: 0, pending_tokens: 40 },
      ]);
      expect(engine.step({ decode: true, prefill_tokens: 0 })).toMatchObject({
        prefill_tokens: 0,
        decode_tokens: 0,
      });
      expect(engine.step({ decode: false, prefill_tokens: 64 })).toMatchObject({ prefill_tokens: 40 });
      add(1, 100);
      add(2, 60);
      const plan = { decode: false, prefill_tokens: 80, first: 2 };
      expect(engine.step(plan)).toMatchObject({ prefill_tokens: 80, decode_tokens: 0 });
      const progress = new Map(engine.progress().map((one) => [one.id, one]));
      expect(progress.get(0)).toMatchObject({ tokens: 41, generated_tokens: 1, pending_tokens: 1 });
      expect(progress.get(1)).toMatchObject({ generated_tokens: 0, pending_tokens: 80 });
      expect(progress.get(2)).toMatchObject({ generated_tokens: 1, pending_tokens: 1 });
      expect(engine.step({ decode: true, prefill_tokens: 0 })).toMatchObject({
        prefill_tokens: 0,
        decode_tokens: 2,
      });
    });
  });

  test('a sequence that has lost its rows before it had a block for its last token is computed again by any plan', async () => {
    const path = await model('tiny-llama', 'F16');
    withEngine(engineOptions(path, { batch_invariant: true }), (engine) => {
      // Its prompt fills two blocks, and the first token of its answer begins the third.
      const asked = () => ({ prompt: prompt(32, engine.info.n_vocab, 7), max_new_tokens: 5 });
      const [alone] = generate(engine, [asked()]);
      const { prompt: prompt_tokens, max_new_tokens } = asked();
      const sampler = new GreedyRecorder();
      engine.add({ id: 9, prompt_tokens, sampler, max_new_tokens, stop_tokens: new Set() });
      const tokens = engine.step().outputs.flatMap(({ token }) => token?.token ?? []);
      expect(tokens).toHaveLength(1);
      engine.keepRows(() => 0);
      const prefill = { decode: false, prefill_tokens: 100 };
      for (let plan: IterationPlan | undefined = prefill; engine.busy; plan = undefined)
        tokens.push(...engine.step(plan).outputs.flatMap(({ token }) => token?.token ?? []));
      expect(tokens).toEqual(alone!.tokens);
    });
  });

  test('batch_invariant: the same tokens by plans of any kind as alone', async () => {
    const path = await model('tiny-qwen3', 'Q4_0');
    withEngine(engineOptions(path, { batch_invariant: true }), (engine) => {
      const asked = () =>
        lengths.map((length, seed) => ({
          prompt: prompt(length, engine.info.n_vocab, seed + 70),
          max_new_tokens: new_tokens,
        }));
      const alone = asked().map((one) => generate(engine, [one])[0]!.tokens);
      const tokens: number[][] = lengths.map(() => []);
      asked().forEach(({ prompt: prompt_tokens, max_new_tokens }, id) => {
        engine.add({
          id,
          prompt_tokens,
          sampler: new GreedyRecorder(),
          max_new_tokens,
          stop_tokens: new Set(),
        });
      });
      const plans: IterationPlan[] = [
        { decode: false, prefill_tokens: 33, first: 2 },
        { decode: true, prefill_tokens: 0 },
        { decode: false, prefill_tokens: 100, first: 1 },
        { decode: true, prefill_tokens: 17 },
        { decode: false, prefill_tokens: 64 },
      ];
      for (let step = 0; engine.busy; step++) {
        for (const { id, token } of engine.step(plans[step % plans.length]).outputs)
          if (token) tokens[id]!.push(token.token);
        expect(step).toBeLessThan(1000);
      }
      engine.verify();
      expect(tokens).toEqual(alone);
    });
  });
});
