/**
 * The native engine against libllama, teacher-forced: the engine chooses, and the reference is asked for the
 * logits of the same tokens. Every token must be the reference's own choice, unless the reference's two best
 * are closer than `epsilon`; how often that was so is reported. Bits may differ where the batch has another
 * shape (see the design of batch_invariant), so logits are held to a tolerance of the storage type.
 */
import { afterAll, describe, expect, test } from 'vitest';
import type { SynthQuantization } from '../../../native/synth/quantization.ts';
import {
  type Asked,
  argmax,
  engineOptions,
  type Generated,
  generate,
  model,
  prompt,
  reference,
  referenceRows,
  rootMeanSquare,
  topGap,
  withEngine,
} from './support.ts';
import { test_device } from './test-backend.ts';
import { deviceTolerances, ownTolerances, tolerances } from './tolerances.ts';

/** Two logits whose errors are of the tolerance's size may change places within this gap. */
const epsilons_of_tolerance = 4;
/**
 * Which experts a token takes is an argmax, too: a near tie there changes a whole row, in so many of all rows at most.
 */
const rerouted_share_max = 0.15;
/** Tokens chosen otherwise than by the reference, all of them near ties: with ggml's kernels, and with ours. */
const differing_share_max = { ggml: 0.05, own: 0.08 };
type Judged = keyof typeof differing_share_max;

const models: { preset: string; type: SynthQuantization }[] = [
  ...(['F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_K'] as const).flatMap((type) =>
    ['tiny-llama', 'tiny-qwen2', 'tiny-qwen3', 'tiny-qwen3moe'].map((preset) => ({ preset, type })),
  ),
  { preset: 'tiny-mixtral', type: 'F32' },
  { preset: 'tiny-mixtral', type: 'Q4_0' },
];
/** Those of CPUs: a device has its own, whatever is asked for. */
const kernelsHere = test_device === undefined ? (['own', 'ggml'] as const) : (['ggml'] as const);
const matrix = kernelsHere.flatMap((kernels) => models.map((each) => ({ ...each, kernels })));

/** libllama as it compares: with the flash attention of ggml where that serves here, too. */
const referenceOf = (path: string, kernels: Judged) =>
  reference(path, kernels === 'ggml' ? { flash_attention: 'auto' } : {});

let nearTies = 0;
const judged = { ggml: 0, own: 0 };
const differing = { ggml: 0, own: 0 };
let routed = 0;
let rerouted = 0;

function tolerancesOf(kernels: Judged): typeof tolerances {
  if (test_device !== undefined) return deviceTolerances;
  return kernels === 'ggml' ? tolerances : ownTolerances;
}

function judge(
  { preset, type, kernels = 'own' }: { preset: string; type: string; kernels?: Judged },
  asked: Asked,
  generated: Generated,
  rows: Float32Array[],
): void {
  const tolerance = tolerancesOf(kernels)[type]!;
  const epsilon = epsilons_of_tolerance * tolerance;
  rows.forEach((row, index) => {
    const token = generated.tokens[index]!;
    const gap = topGap(row);
    const where = `token ${index} after a prompt of ${asked.prompt.length}`;
    judged[kernels]++;
    if (gap < epsilon) nearTies++;
    if (preset.endsWith('moe') || preset === 'tiny-mixtral') {
      routed++;
      if (rootMeanSquare(row, generated.rows[index]!) > tolerance) {
        rerouted++;
        return;
      }
    }
    if (argmax(row) !== token) {
      differing[kernels]++;
      expect(gap, `${where}: ${token}, not ${argmax(row)}`).toBeLessThan(epsilon);
    }
    expect(rootMeanSquare(row, generated.rows[index]!), where).toBeLessThan(tolerance);
  });
}

describe.each(matrix)('$preset $type, kernels $kernels', ({ preset, type, kernels }) => {
  test('alone and in a mixed batch chooses what libllama chooses', async () => {
    const path = await model(preset, type);
    withEngine(engineOptions(path, { kernels }), (engine) => {
      const { n_vocab } = engine.info;
      const lengths = [1, 2, 17, 300];
      const make = (): Asked[] =>
        lengths.map((length, seed) => ({ prompt: prompt(length, n_vocab, seed + 1), max_new_tokens: 12 }));
      const context = referenceOf(path, kernels);
      const alone = make();
      for (const asked of alone) {
        const [generated] = generate(engine, [asked]);
        judge(
          { preset, type, kernels },
          asked,
          generated!,
          referenceRows(context, asked.prompt, generated!.tokens),
        );
      }
      const mixed = make();
      generate(engine, mixed, 2).forEach((generated, index) => {
        const asked = mixed[index]!;
        judge(
          { preset, type, kernels },
          asked,
          generated,
          referenceRows(context, asked.prompt, generated.tokens),
        );
      });
      context.close();
      expect(engine.stats().kv_tokens_used).toBe(0);
    });
  });
});

test.each(['F16', 'Q4_0'] as const)('a prompt of 2,000 tokens, %s', async (type) => {
  const path = await model('tiny-llama', type);
  withEngine(engineOptions(path, { prefill_chunk_tokens: 512 }), (engine) => {
    const context = reference(path);
    const asked: Asked = { prompt: prompt(2000, engine.info.n_vocab, 9), max_new_tokens: 24 };
    const [generated] = generate(engine, [asked]);
    judge(
      { preset: 'tiny-llama', type },
      asked,
      generated!,
      referenceRows(context, asked.prompt, generated!.tokens),
    );
    context.close();
  });
});

test.each([
  { kv_type: 'f32' as const, judged_as: 'F16' },
  { kv_type: 'q8_0' as const, judged_as: 'KV q8_0' },
])('KV cache of the type $kv_type', async ({ kv_type, judged_as }) => {
  const path = await model('tiny-qwen3', 'F16');
  withEngine(engineOptions(path, { kv_type }), (engine) => {
    // libllama rotates keys before it quantizes them, so the reference for q8_0 is the cache in f16.
    const context = reference(path, { kv_type: kv_type === 'f32' ? 0 : 1 });
    const asked: Asked = { prompt: prompt(90, engine.info.n_vocab, 4), max_new_tokens: 16 };
    const [generated] = generate(engine, [asked]);
    judge(
      { preset: 'tiny-qwen3', type: judged_as },
      asked,
      generated!,
      referenceRows(context, asked.prompt, generated!.tokens),
    );
    context.close();
  });
});

afterAll(() => {
  const all = judged.ggml + judged.own;
  const share = ((100 * nearTies) / all).toFixed(1);
  const otherwise = differing.ggml + differing.own;
  console.log(`${all} tokens judged, ${share} % near ties, ${otherwise} chosen otherwise within them`);
  console.log(`${rerouted} of ${routed} rows of mixtures took other experts`);
  expect(rerouted / routed).toBeLessThan(rerouted_share_max);
  for (const kernels of ['ggml', 'own'] as const)
    expect(differing[kernels] / judged[kernels], kernels).toBeLessThan(differing_share_max[kernels]);
});
