/**
 * One architecture in three types on a Vulkan device against libllama on the same one, in every run of the tests: what
 * else an engine does there is in `device-engine.test.ts`.
 */
import { afterAll, describe, test } from 'vitest';
import { NativeEngine } from '../../../../agent/engine/native-engine.ts';
import { engineOptions, generate, model, prompt, referenceRows } from '../../engine/support.ts';
import { judge, reference, tellJudged } from './judge.ts';
import { isThere, lacking, vulkan } from './support.ts';

const types = ['F32', 'Q8_0', 'Q4_0'] as const;
/** Every kernel is compiled at its first use, on the cores that compute, too. */
const timeout = 240_000;

describe.skipIf(!isThere)(
  `an engine on a Vulkan device, one type after another${lacking}`,
  { timeout },
  () => {
    test.each(types)('chooses what libllama chooses there, %s', async (type) => {
      const path = await model('tiny-llama', type);
      const { backend } = vulkan();
      const engine = new NativeEngine(engineOptions(path, { kv_tokens: 1024 }), backend);
      const context = reference(path);
      const asked = [3, 40].map((length, seed) => ({
        prompt: prompt(length, engine.info.n_vocab, seed + 1),
        max_new_tokens: 6,
      }));
      generate(engine, asked).forEach((generated, index) => {
        judge(type, generated, referenceRows(context, asked[index]!.prompt, generated.tokens));
      });
      context.close();
      engine.close();
    });

    afterAll(tellJudged);
  },
);
