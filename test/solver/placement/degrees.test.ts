/** Degrees that an engine starts with: of heads, and of feed-forward widths with their blocks. */
import { expect, it } from 'vitest';
import { tensorDegrees } from '../../../solver/placement/degrees.ts';
import { place } from '../../../solver/placement/placement.ts';
import type { PlacementModel } from '../../../spec/plan.ts';
import { ask, gpus, llama } from './support.ts';

const fp8 = { quantization_config: { quant_method: 'fp8', weight_block_size: [128, 128] } };
const qwen3_235b = {
  model_type: 'qwen3_moe',
  num_hidden_layers: 94,
  hidden_size: 4096,
  num_attention_heads: 64,
  num_key_value_heads: 4,
  vocab_size: 151_936,
  intermediate_size: 12_288,
  num_experts: 128,
  num_experts_per_tok: 8,
  moe_intermediate_size: 1536,
  decoder_sparse_step: 1,
  mlp_only_layers: [],
};
const qwen3_coder_480b = {
  ...qwen3_235b,
  num_hidden_layers: 62,
  hidden_size: 6144,
  num_attention_heads: 96,
  num_key_value_heads: 8,
  intermediate_size: 8192,
  num_experts: 160,
  moe_intermediate_size: 2560,
};
const llama_13b = {
  model_type: 'llama',
  num_hidden_layers: 40,
  hidden_size: 5120,
  num_attention_heads: 40,
  vocab_size: 32_000,
  intermediate_size: 13_824,
};

function modelOf(
  config: typeof llama_13b & { num_key_value_heads?: number },
  asked: Record<string, unknown> = {},
): PlacementModel {
  const model = llama('m', '13b', asked);
  const n_head = config.num_attention_heads;
  const summary = { ...model.summary!, n_head, n_head_kv: config.num_key_value_heads ?? n_head };
  return { ...model, config, summary };
}
const node = gpus('H200', 141, 1, { count: 8 });
const degreesOf = (model: PlacementModel): readonly number[] => tensorDegrees(model, node, 'vllm');

it('an expert whose weights have scales by block is split into whole blocks', () => {
  // 1536 / 8 and 2560 / 8 are one and a half and two and a half blocks of 128.
  expect(degreesOf(modelOf({ ...qwen3_235b, ...fp8 }))).toEqual([1, 2, 4]);
  expect(degreesOf(modelOf({ ...qwen3_coder_480b, ...fp8 }))).toEqual([1, 2, 4]);
  expect(degreesOf(modelOf(qwen3_235b))).toEqual([1, 2, 4, 8]);
});

it.each([['--enable-expert-parallel'], ['--ep-size=8']])(
  'an expert that %s leaves whole is not split',
  (word) => {
    const model = modelOf({ ...qwen3_235b, ...fp8 }, { engine: 'vllm', engine_args: [word] });
    expect(degreesOf(model)).toEqual([1, 2, 4, 8]);
  },
);

it('a dense layer is split into parts of whole width, and whole blocks', () => {
  // 40 heads divide by 5, and 13824 does not; 13824 / 8 is thirteen and a half blocks.
  expect(degreesOf(modelOf(llama_13b))).toEqual([1, 2, 4, 8]);
  expect(degreesOf(modelOf({ ...llama_13b, ...fp8 }))).toEqual([1, 2, 4]);
  // By the headers of its files alone.
  expect(degreesOf(llama('m', '13b'))).toEqual([1, 2, 4, 8]);
});

it('where no width is known, any degree of the heads is left', () => {
  const model = llama('m', '13b');
  model.summary = { ...model.summary!, n_ff: 0 };
  expect(degreesOf(model)).toEqual([1, 2, 4, 5, 8]);
});

it('a degree that is asked for and splits a block is refused with both numbers', () => {
  const model = modelOf({ ...qwen3_235b, ...fp8 }, { parallel: { tensor: 8 } });
  const { rejected } = place(ask([model], [node]));
  expect(rejected[0]).toMatchObject({
    constraint: 'tensor_divides_widths',
    needed: 1024,
    available: 1536,
  });
  expect(rejected[0]!.because).toMatch(/tensor 8 .* width 1536 of an expert .* blocks of 128/);
});
