import { describe, expect, it } from 'vitest';
import { shapeOfConfig } from '../../../solver/catalog/hugging-face-config.ts';
import { findModel, knownModels } from '../../../solver/catalog/known-models.ts';
import {
  kvElementsPerLayer,
  type ModelShape,
  parameterCount,
  shapeOfSummary,
  storedWeights_bytes,
} from '../../../solver/catalog/model-shape.ts';
import { weightPrecision, weightPrecisionNames } from '../../../solver/catalog/weight-precision.ts';
import type { ModelFileSummary } from '../../../spec/model-summary.ts';

/** Billions of parameters as the models' cards give them. */
const published = {
  'llama-2-7b': 6.74,
  'llama-2-13b': 13.0,
  'codellama-34b': 33.7,
  'llama-3.1-8b': 8.03,
  'llama-3.3-70b': 70.6,
  'llama-3.1-405b': 405.9,
  'mixtral-8x7b': 46.7,
  'qwen2.5-7b': 7.62,
  'qwen3-32b': 32.8,
  'qwen3-30b-a3b': 30.5,
  'qwen3-235b-a22b': 235.1,
  'gpt-oss-20b': 20.9,
  'gpt-oss-120b': 116.8,
  'deepseek-v2-lite': 15.7,
  'deepseek-v3': 671,
  'gemma-2-9b': 9.24,
};

describe('shapes of models', () => {
  it.each(Object.entries(published))('%s has the parameters its card gives', (name, billions) => {
    const { total } = parameterCount(findModel(name));
    expect(total / 1e9 / billions).toBeGreaterThan(0.985);
    expect(total / 1e9 / billions).toBeLessThan(1.015);
  });

  it('finds models by the names people use', () => {
    expect(findModel('meta-llama/Llama-3.3-70B-Instruct').name).toBe('llama-3.3-70b');
    expect(findModel('meta-llama/Meta-Llama-3-8B').name).toBe('llama-3-8b');
    expect(findModel('Qwen/Qwen3-32B').name).toBe('qwen3-32b');
    expect(() => findModel('llama-3.1-8c')).toThrow(
      expect.objectContaining({
        code: 'E_MODEL_SHAPE',
        details: { name: 'llama-3.1-8c', nearest: 'llama-3.1-8b' },
      }),
    );
    for (const { shape, source } of knownModels) {
      expect(findModel(shape.name)).toBe(shape);
      expect(source).toMatch(/^https:\/\/huggingface.co\//);
    }
  });

  it('counts bytes by precision: 16-bit vocabulary beside 8-bit layers', () => {
    const shape = findModel('llama-3.1-8b');
    const { linear, vocabulary } = parameterCount(shape);
    expect(storedWeights_bytes(shape)).toBe(2 * (linear + vocabulary));
    expect(storedWeights_bytes({ ...shape, weights: weightPrecision('fp8') })).toBe(linear + 2 * vocabulary);
  });

  it('knows precisions by their spellings, and the nearest for a wrong one', () => {
    expect(weightPrecision('Q4_K_M').bits_per_weight).toBeCloseTo(4.89);
    expect(weightPrecision('bfloat16').name).toBe('bf16');
    expect(weightPrecision('AWQ-4bit').name).toBe('int4');
    for (const name of weightPrecisionNames) expect(weightPrecision(name).name).toBe(name);
    expect(() => weightPrecision('fp9')).toThrow(expect.objectContaining({ code: 'E_SIMULATION_INPUT' }));
  });
});

describe('config.json of Hugging Face', () => {
  const llama = {
    model_type: 'llama',
    num_hidden_layers: 32,
    hidden_size: 4096,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    intermediate_size: 14336,
    vocab_size: 128256,
    torch_dtype: 'bfloat16',
  };

  it('gives the catalog’s own shape of Llama 3.1 8B', () => {
    expect(shapeOfConfig(llama, 'llama-3.1-8b')).toEqual(findModel('llama-3.1-8b'));
  });

  it('reads experts, sliding windows and MXFP4 of gpt-oss', () => {
    const shape = shapeOfConfig(
      {
        model_type: 'gpt_oss',
        num_hidden_layers: 36,
        hidden_size: 2880,
        num_attention_heads: 64,
        num_key_value_heads: 8,
        head_dim: 64,
        intermediate_size: 2880,
        vocab_size: 201088,
        num_local_experts: 128,
        num_experts_per_tok: 4,
        sliding_window: 128,
        layer_types: Array.from({ length: 36 }, (_, i) =>
          i % 2 === 0 ? 'sliding_attention' : 'full_attention',
        ),
        quantization_config: { quant_method: 'mxfp4' },
      },
      'gpt-oss-120b',
    );
    expect({ ...shape, n_ff: 0 }).toEqual(findModel('gpt-oss-120b'));
  });

  it('reads DeepSeek’s latent attention and dense first layers', () => {
    const shape = shapeOfConfig({
      model_type: 'deepseek_v3',
      num_hidden_layers: 61,
      hidden_size: 7168,
      num_attention_heads: 128,
      num_key_value_heads: 128,
      intermediate_size: 18432,
      moe_intermediate_size: 2048,
      vocab_size: 129280,
      n_routed_experts: 256,
      n_shared_experts: 1,
      num_experts_per_tok: 8,
      first_k_dense_replace: 3,
      kv_lora_rank: 512,
      q_lora_rank: 1536,
      qk_rope_head_dim: 64,
      qk_nope_head_dim: 128,
      v_head_dim: 128,
      quantization_config: { quant_method: 'fp8' },
    });
    expect(shape.experts).toEqual(findModel('deepseek-v3').experts);
    expect(shape.latent).toEqual(findModel('deepseek-v3').latent);
    expect(shape.weights.name).toBe('fp8');
    expect(kvElementsPerLayer(shape)).toBe(576);
  });

  it.each([
    [{ quant_method: 'awq', bits: 4 }, 'int4'],
    [{ quant_method: 'gptq', bits: 8 }, 'int8'],
    [{ quant_method: 'fp8' }, 'fp8'],
    [{ quant_method: 'modelopt', quant_algo: 'NVFP4' }, 'nvfp4'],
    [
      { quant_method: 'compressed-tensors', config_groups: { g: { weights: { num_bits: 8, type: 'int' } } } },
      'int8',
    ],
  ])('reads the precision of %j', (quantization_config, name) => {
    expect(shapeOfConfig({ ...llama, quantization_config }).weights.name).toBe(name);
  });

  it('does not slide where Qwen says so, and slides everywhere in Mistral', () => {
    const window = { sliding_window: 4096 };
    expect(shapeOfConfig({ ...llama, ...window, use_sliding_window: false }).sliding_window).toBeUndefined();
    expect(shapeOfConfig({ ...llama, ...window, model_type: 'mistral' }).sliding_window).toEqual({
      tokens: 4096,
      n_layer: 32,
    });
    expect(shapeOfConfig({ ...llama, ...window, model_type: 'gemma2' }).sliding_window?.n_layer).toBe(16);
  });

  it('says which keys are missing', () => {
    expect(() => shapeOfConfig({ hidden_size: 5 })).toThrow(
      expect.objectContaining({
        code: 'E_MODEL_SHAPE',
        details: { missing: ['num_hidden_layers', 'num_attention_heads', 'vocab_size'] },
      }),
    );
    expect(() => shapeOfConfig([1])).toThrow(expect.objectContaining({ code: 'E_MODEL_SHAPE' }));
    expect(() => shapeOfConfig({ ...llama, hidden_size: -1 })).toThrow(/shape/);
  });
});

describe('shapes from the headers of files', () => {
  /** What a reader of GGUF files counts of a model of this shape; norms are the half percent on top. */
  const summaryOf = (shape: ModelShape, architecture: string): ModelFileSummary => {
    const { total, experts } = parameterCount(shape);
    const used = shape.experts === undefined ? 1 : shape.experts.used_per_token / shape.experts.count;
    const norms = 0.0005 * total;
    const kv = kvElementsPerLayer(shape);
    return {
      format: 'safetensors',
      architecture,
      name: shape.name,
      n_params: Math.round(total + norms),
      n_params_active: Math.round(total + norms - experts * (1 - used)),
      n_layer: shape.n_layer,
      n_embd: shape.n_embd,
      n_head: shape.n_head,
      n_head_kv: shape.n_head_kv,
      head_dim: shape.head_dim,
      n_ff: shape.n_ff,
      n_vocab: shape.n_vocab,
      n_ctx_train: 4096,
      ...(shape.experts && {
        experts: {
          count: shape.experts.count,
          used_per_token: shape.experts.used_per_token,
          n_ff: shape.experts.n_ff,
        },
      }),
      ...(shape.sliding_window && { sliding_window: shape.sliding_window.tokens }),
      tied_embeddings: shape.tied_embeddings,
      quantization: shape.weights.name,
      tensor_types: {},
      file_bytes: 0,
      weight_bytes: storedWeights_bytes(shape),
      weight_bytes_of: { embedding: 0, layers: [], output: 0 },
      kv_bytes_per_token: 2 * kv * shape.n_layer,
      has_chat_template: true,
      has_tokenizer: true,
      supported_by_native: true,
    };
  };

  it.each([
    ['llama-3.1-8b', 'llama'],
    ['qwen3-32b', 'qwen3'],
    ['mixtral-8x7b', 'llama'],
    ['qwen3-30b-a3b', 'qwen3moe'],
    ['gemma-2-9b', 'gemma2'],
    ['gemma-3-27b', 'gemma3'],
    ['deepseek-v2-lite', 'deepseek2'],
    ['deepseek-v3', 'deepseek2'],
    ['kimi-k2', 'deepseek2'],
    ['glm-4.5-air', 'glm4moe'],
    ['llama-4-maverick', 'llama4'],
    ['falcon-40b', 'falcon'],
  ])('tell the shape of %s, dense layers, shared experts and windows included', (name, architecture) => {
    const known = findModel(name);
    expect(shapeOfSummary(summaryOf(known, architecture))).toEqual(known);
  });
});

it('takes bits per weight from the bytes a GGUF holds', () => {
  const summary: ModelFileSummary = {
    format: 'gguf',
    architecture: 'llama',
    name: 'tiny',
    n_params: 1_000_000,
    n_params_active: 1_000_000,
    n_layer: 2,
    n_embd: 128,
    n_head: 4,
    n_head_kv: 2,
    head_dim: 32,
    n_ff: 256,
    n_vocab: 500,
    n_ctx_train: 512,
    tied_embeddings: true,
    quantization: 'Q4_K_M',
    tensor_types: {},
    file_bytes: 700_000,
    weight_bytes: 625_000,
    weight_bytes_of: { embedding: 0, layers: [], output: 0 },
    kv_bytes_per_token: 512,
    has_chat_template: false,
    has_tokenizer: true,
    supported_by_native: true,
  };
  expect(shapeOfSummary(summary).weights).toMatchObject({
    name: 'q4_k_m',
    bits_per_weight: 5,
    compute: 'bf16',
  });
});
