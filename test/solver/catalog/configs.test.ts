import { describe, expect, it } from 'vitest';
import { shapeOfConfig } from '../../../solver/catalog/hugging-face-config.ts';
import { findModel } from '../../../solver/catalog/known-models.ts';
import { activeParameters, attentionLayers, parameterCount } from '../../../solver/catalog/model-shape.ts';

const decoder = (
  model_type: string,
  [num_hidden_layers, hidden_size, num_attention_heads, num_key_value_heads]: readonly number[],
  intermediate_size: number,
  vocab_size: number,
  more: object = {},
): Record<string, unknown> => ({
  model_type,
  num_hidden_layers,
  hidden_size,
  num_attention_heads,
  num_key_value_heads,
  intermediate_size,
  vocab_size,
  torch_dtype: 'bfloat16',
  tie_word_embeddings: false,
  ...more,
});
const mla = {
  kv_lora_rank: 512,
  q_lora_rank: 1536,
  qk_rope_head_dim: 64,
  qk_nope_head_dim: 128,
  v_head_dim: 128,
};
const everySixth = (count: number): string[] =>
  Array.from({ length: count }, (_, i) => ((i + 1) % 6 === 0 ? 'full_attention' : 'sliding_attention'));

/**
 * Keys as the models' config.json have them, with the parameters their cards give (billions); the text model
 * alone, without towers for images and layers for multi-token prediction; what the tensors hold where a card
 * rounds to one digit or counts those too (Llama 4 Scout, Kimi K2, GLM 4.5).
 */
const published: readonly (readonly [name: string, billions: number, config: Record<string, unknown>])[] = [
  ['llama-2-7b', 6.74, decoder('llama', [32, 4096, 32, 32], 11008, 32000)],
  ['llama-3.1-8b', 8.03, decoder('llama', [32, 4096, 32, 8], 14336, 128256)],
  [
    'llama-3.2-1b',
    1.24,
    decoder('llama', [16, 2048, 32, 8], 8192, 128256, { head_dim: 64, tie_word_embeddings: true }),
  ],
  ['llama-3.2-3b', 3.21, decoder('llama', [28, 3072, 24, 8], 8192, 128256, { tie_word_embeddings: true })],
  ['llama-3.3-70b', 70.6, decoder('llama', [80, 8192, 64, 8], 28672, 128256)],
  ['llama-3.1-405b', 405.9, decoder('llama', [126, 16384, 128, 8], 53248, 128256)],
  [
    'llama-4-scout',
    107.8,
    {
      model_type: 'llama4',
      text_config: decoder('llama4_text', [48, 5120, 40, 8], 8192, 202048, {
        head_dim: 128,
        intermediate_size_mlp: 16384,
        num_local_experts: 16,
        num_experts_per_tok: 1,
        interleave_moe_layer_step: 1,
        attention_chunk_size: 8192,
      }),
    },
  ],
  [
    'llama-4-maverick',
    400,
    {
      model_type: 'llama4',
      text_config: decoder('llama4_text', [48, 5120, 40, 8], 8192, 202048, {
        head_dim: 128,
        intermediate_size_mlp: 16384,
        num_local_experts: 128,
        num_experts_per_tok: 1,
        interleave_moe_layer_step: 2,
        attention_chunk_size: 8192,
      }),
    },
  ],
  [
    'qwen2-7b',
    7.62,
    decoder('qwen2', [28, 3584, 28, 4], 18944, 152064, {
      use_sliding_window: false,
      sliding_window: 131072,
      max_window_layers: 28,
    }),
  ],
  ['qwen2.5-14b', 14.8, decoder('qwen2', [48, 5120, 40, 8], 13824, 152064)],
  ['qwen2.5-72b', 72.7, decoder('qwen2', [80, 8192, 64, 8], 29568, 152064)],
  [
    'qwen3-4b',
    4.02,
    decoder('qwen3', [36, 2560, 32, 8], 9728, 151936, { head_dim: 128, tie_word_embeddings: true }),
  ],
  ['qwen3-32b', 32.8, decoder('qwen3', [64, 5120, 64, 8], 25600, 151936, { head_dim: 128 })],
  [
    'qwen3-30b-a3b',
    30.5,
    decoder('qwen3_moe', [48, 2048, 32, 4], 6144, 151936, {
      head_dim: 128,
      num_experts: 128,
      num_experts_per_tok: 8,
      moe_intermediate_size: 768,
      decoder_sparse_step: 1,
      mlp_only_layers: [],
    }),
  ],
  [
    'qwen3-235b-a22b',
    235.1,
    decoder('qwen3_moe', [94, 4096, 64, 4], 12288, 151936, {
      head_dim: 128,
      num_experts: 128,
      num_experts_per_tok: 8,
      moe_intermediate_size: 1536,
      decoder_sparse_step: 1,
    }),
  ],
  [
    'qwen3-next-80b-a3b',
    79.7,
    decoder('qwen3_next', [48, 2048, 16, 2], 5120, 151936, {
      head_dim: 256,
      num_experts: 512,
      num_experts_per_tok: 10,
      moe_intermediate_size: 512,
      shared_expert_intermediate_size: 512,
      decoder_sparse_step: 1,
      full_attention_interval: 4,
      linear_num_key_heads: 16,
      linear_num_value_heads: 32,
      linear_key_head_dim: 128,
      linear_value_head_dim: 128,
    }),
  ],
  ['mistral-7b', 7.25, decoder('mistral', [32, 4096, 32, 8], 14336, 32768, { sliding_window: null })],
  ['mistral-small-24b', 23.6, decoder('mistral', [40, 5120, 32, 8], 32768, 131072, { head_dim: 128 })],
  ['mistral-large-123b', 122.6, decoder('mistral', [88, 12288, 96, 8], 28672, 32768)],
  [
    'mixtral-8x7b',
    46.7,
    decoder('mixtral', [32, 4096, 32, 8], 14336, 32000, { num_local_experts: 8, num_experts_per_tok: 2 }),
  ],
  [
    'mixtral-8x22b',
    140.6,
    decoder('mixtral', [56, 6144, 48, 8], 16384, 32768, { num_local_experts: 8, num_experts_per_tok: 2 }),
  ],
  [
    'deepseek-v2',
    235.7,
    decoder('deepseek_v2', [60, 5120, 128, 128], 12288, 102400, {
      ...mla,
      n_routed_experts: 160,
      n_shared_experts: 2,
      num_experts_per_tok: 6,
      moe_intermediate_size: 1536,
      first_k_dense_replace: 1,
      moe_layer_freq: 1,
    }),
  ],
  [
    'deepseek-v2-lite',
    15.7,
    decoder('deepseek_v2', [27, 2048, 16, 16], 10944, 102400, {
      ...mla,
      q_lora_rank: null,
      n_routed_experts: 64,
      n_shared_experts: 2,
      num_experts_per_tok: 6,
      moe_intermediate_size: 1408,
      first_k_dense_replace: 1,
      moe_layer_freq: 1,
    }),
  ],
  [
    'deepseek-v3',
    671,
    decoder('deepseek_v3', [61, 7168, 128, 128], 18432, 129280, {
      ...mla,
      n_routed_experts: 256,
      n_shared_experts: 1,
      num_experts_per_tok: 8,
      moe_intermediate_size: 2048,
      first_k_dense_replace: 3,
      moe_layer_freq: 1,
      quantization_config: { quant_method: 'fp8' },
    }),
  ],
  [
    'kimi-k2',
    1026,
    decoder('kimi_k2', [61, 7168, 64, 64], 18432, 163840, {
      ...mla,
      n_routed_experts: 384,
      n_shared_experts: 1,
      num_experts_per_tok: 8,
      moe_intermediate_size: 2048,
      first_k_dense_replace: 1,
      moe_layer_freq: 1,
      quantization_config: { quant_method: 'fp8' },
    }),
  ],
  [
    'gemma-2-2b',
    2.61,
    decoder('gemma2', [26, 2304, 8, 4], 9216, 256000, {
      head_dim: 256,
      sliding_window: 4096,
      tie_word_embeddings: undefined,
    }),
  ],
  [
    'gemma-2-9b',
    9.24,
    decoder('gemma2', [42, 3584, 16, 8], 14336, 256000, {
      head_dim: 256,
      sliding_window: 4096,
      tie_word_embeddings: undefined,
    }),
  ],
  [
    'gemma-2-27b',
    27.2,
    decoder('gemma2', [46, 4608, 32, 16], 36864, 256000, {
      head_dim: 128,
      sliding_window: 4096,
      tie_word_embeddings: undefined,
    }),
  ],
  [
    'gemma-3-12b',
    11.77,
    {
      model_type: 'gemma3',
      text_config: decoder('gemma3_text', [48, 3840, 16, 8], 15360, 262208, {
        head_dim: 256,
        sliding_window: 1024,
        sliding_window_pattern: 6,
        tie_word_embeddings: undefined,
      }),
    },
  ],
  [
    'gemma-3-27b',
    27.0,
    {
      model_type: 'gemma3',
      text_config: decoder('gemma3_text', [62, 5376, 32, 16], 21504, 262208, {
        head_dim: 128,
        sliding_window: 1024,
        layer_types: everySixth(62),
        tie_word_embeddings: undefined,
      }),
    },
  ],
  [
    'gpt-oss-20b',
    20.9,
    decoder('gpt_oss', [24, 2880, 64, 8], 2880, 201088, {
      head_dim: 64,
      num_local_experts: 32,
      num_experts_per_tok: 4,
      sliding_window: 128,
      quantization_config: { quant_method: 'mxfp4' },
    }),
  ],
  [
    'gpt-oss-120b',
    116.8,
    decoder('gpt_oss', [36, 2880, 64, 8], 2880, 201088, {
      head_dim: 64,
      num_local_experts: 128,
      num_experts_per_tok: 4,
      sliding_window: 128,
      quantization_config: { quant_method: 'mxfp4' },
    }),
  ],
  ['phi-3-mini', 3.82, decoder('phi3', [32, 3072, 32, 32], 8192, 32064)],
  ['phi-4', 14.7, decoder('phi3', [40, 5120, 40, 10], 17920, 100352)],
  [
    'falcon-7b',
    6.92,
    {
      model_type: 'falcon',
      num_hidden_layers: 32,
      hidden_size: 4544,
      num_attention_heads: 71,
      num_kv_heads: 71,
      multi_query: true,
      new_decoder_architecture: false,
      vocab_size: 65024,
    },
  ],
  [
    'falcon-40b',
    41.3,
    {
      model_type: 'falcon',
      num_hidden_layers: 60,
      hidden_size: 8192,
      num_attention_heads: 128,
      num_kv_heads: 8,
      multi_query: true,
      new_decoder_architecture: true,
      vocab_size: 65024,
    },
  ],
  ['glm-4-9b', 9.4, decoder('glm4', [40, 4096, 32, 2], 13696, 151552, { head_dim: 128 })],
  [
    'glm-4-9b',
    9.4,
    {
      model_type: 'chatglm',
      num_layers: 40,
      hidden_size: 4096,
      num_attention_heads: 32,
      multi_query_attention: true,
      multi_query_group_num: 2,
      ffn_hidden_size: 13696,
      kv_channels: 128,
      padded_vocab_size: 151552,
      tie_word_embeddings: false,
    },
  ],
  [
    'glm-4.5-air',
    106,
    decoder('glm4_moe', [46, 4096, 96, 8], 10944, 151552, {
      head_dim: 128,
      n_routed_experts: 128,
      n_shared_experts: 1,
      num_experts_per_tok: 8,
      moe_intermediate_size: 1408,
      first_k_dense_replace: 1,
    }),
  ],
  [
    'glm-4.6',
    355,
    decoder('glm4_moe', [92, 5120, 96, 8], 12288, 151552, {
      head_dim: 128,
      n_routed_experts: 160,
      n_shared_experts: 1,
      num_experts_per_tok: 8,
      moe_intermediate_size: 1536,
      first_k_dense_replace: 3,
    }),
  ],
  ['olmo-2-7b', 7.3, decoder('olmo2', [32, 4096, 32, 32], 11008, 100352)],
  ['olmo-2-13b', 13.7, decoder('olmo2', [40, 5120, 40, 40], 13824, 100352)],
  [
    'olmoe-1b-7b',
    6.92,
    decoder('olmoe', [16, 2048, 16, 16], 1024, 50304, { num_experts: 64, num_experts_per_tok: 8 }),
  ],
];

describe('published models', () => {
  it.each(published)('%s has %d billion parameters', (name, billions, config) => {
    const shape = shapeOfConfig(config, name);
    expect(parameterCount(shape).total / 1e9 / billions).toBeGreaterThan(0.99);
    expect(parameterCount(shape).total / 1e9 / billions).toBeLessThan(1.01);
    const known = findModel(name);
    // The width of dense layers says nothing where there are none.
    const dense = shape.experts?.n_layer === shape.n_layer ? { n_ff: 0 } : {};
    const head = shape.latent === undefined ? {} : { head_dim: known.head_dim };
    expect({ ...shape, ...dense, ...head }).toEqual(known);
  });

  it.each([
    ['llama-3.1-8b', 7.5],
    ['qwen3-30b-a3b', 3.0],
    ['qwen3-235b-a22b', 21.6],
    ['mixtral-8x7b', 12.7],
    ['deepseek-v3', 36.6],
    ['kimi-k2', 31.6],
    ['gpt-oss-120b', 5.13],
    ['llama-4-maverick', 16.1],
  ])('%s multiplies a token with %d billion of them', (name, billions) => {
    expect(activeParameters(findModel(name)) / 1e9 / billions).toBeGreaterThan(0.97);
    expect(activeParameters(findModel(name)) / 1e9 / billions).toBeLessThan(1.03);
  });

  it('keep keys and values in the layers that attend', () => {
    expect(attentionLayers(findModel('qwen3-next-80b-a3b'))).toBe(12);
    expect(attentionLayers(findModel('llama-3.1-8b'))).toBe(32);
  });
});

describe('configurations of no model', () => {
  const llama = decoder('llama', [32, 4096, 32, 8], 14336, 128256);
  it.each([
    [{ num_key_value_heads: 5 }, /32 heads that do not divide into 5 KV heads/],
    [{ num_hidden_layers: 1e9 }, /1000000000 layers/],
    [{ num_attention_heads: 100_000 }, /heads in a hidden size/],
    [{ vocab_size: 1e12 }, /vocabulary/],
    [{ num_experts: 8, num_experts_per_tok: 9 }, /9 of 8 experts/],
    [{ num_experts: 8, intermediate_size: 0 }, /experts without a width/],
    [{ num_hidden_layers: '32' }, /no positive whole number for num_hidden_layers/],
    [{ hidden_size: 4096.5 }, /hidden_size/],
    [{ vocab_size: null }, /vocab_size/],
  ])('%j is refused', (change, because) => {
    expect(() => shapeOfConfig({ ...llama, ...change }, 'broken')).toThrow(
      expect.objectContaining({ code: 'E_MODEL_SHAPE' }),
    );
    expect(() => shapeOfConfig({ ...llama, ...change }, 'broken')).toThrow(
      expect.objectContaining({ because: [expect.stringMatching(because)] }),
    );
  });
  it.each([null, [], 'llama', 7, { text_config: [] }, { text_config: null, model_type: 'llama' }])(
    '%j is refused',
    (config) => {
      expect(() => shapeOfConfig(config)).toThrow(expect.objectContaining({ code: 'E_MODEL_SHAPE' }));
    },
  );
});
