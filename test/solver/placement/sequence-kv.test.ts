/** What one sequence takes of an engine's KV, by sums of config.json's own numbers. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  kvOfSequence_tokens,
  longestSequence_tokens,
  type SequenceKv,
  sequenceKv,
} from '../../../solver/placement/sequence-kv.ts';
import { sizeUnit } from '../../../solver/placement/unit-memory.ts';
import { readHuggingFaceConfig } from '../../../spec/hugging-face-config.ts';
import { defaultPlacementSettings, type PlacementModel, type ResolvedEngine } from '../../../spec/plan.ts';
import { llama } from './support.ts';

const gptOss = {
  model_type: 'gpt_oss',
  num_hidden_layers: 36,
  hidden_size: 2880,
  intermediate_size: 2880,
  num_attention_heads: 64,
  num_key_value_heads: 8,
  head_dim: 64,
  vocab_size: 201_088,
  max_position_embeddings: 131_072,
  num_local_experts: 128,
  num_experts_per_tok: 4,
  sliding_window: 128,
  layer_types: Array.from({ length: 36 }, (_, at) => (at % 2 === 0 ? 'sliding_attention' : 'full_attention')),
};
const gemma3 = {
  model_type: 'gemma3',
  text_config: {
    model_type: 'gemma3_text',
    num_hidden_layers: 62,
    hidden_size: 5376,
    intermediate_size: 21_504,
    num_attention_heads: 32,
    num_key_value_heads: 16,
    head_dim: 128,
    vocab_size: 262_208,
    max_position_embeddings: 131_072,
    sliding_window: 1024,
    sliding_window_pattern: 6,
  },
};
const mistral = {
  model_type: 'mistral',
  num_hidden_layers: 32,
  hidden_size: 4096,
  intermediate_size: 14_336,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  vocab_size: 32_000,
  max_position_embeddings: 32_768,
  sliding_window: 4096,
};
const qwen3Next = {
  model_type: 'qwen3_next',
  num_hidden_layers: 48,
  hidden_size: 2048,
  intermediate_size: 5120,
  num_attention_heads: 16,
  num_key_value_heads: 2,
  head_dim: 256,
  vocab_size: 151_936,
  max_position_embeddings: 262_144,
  full_attention_interval: 4,
  linear_num_key_heads: 16,
  linear_num_value_heads: 32,
  linear_key_head_dim: 128,
  linear_value_head_dim: 128,
};

function modelOf(config: object, asked: Record<string, unknown> = {}, weight_bytes = 0): PlacementModel {
  const read = readHuggingFaceConfig(config, 'm');
  if ('wrong' in read) throw new Error(read.wrong);
  const { sizes } = read;
  const known = llama('m', '8b', asked);
  const kv_bytes_per_token = 4 * sizes.n_head_kv * sizes.head_dim * sizes.n_layer;
  return {
    ...known,
    config,
    architecture: sizes.architecture,
    weight_bytes,
    kv_bytes_per_token,
    trained_context_tokens: sizes.n_ctx_train,
    summary: { ...known.summary!, ...sizes, tied_embeddings: false, kv_bytes_per_token },
  };
}

function kept(model: PlacementModel, engine: ResolvedEngine = 'vllm', onGpu = true): SequenceKv {
  return sequenceKv(model, engine, 'bf16', onGpu, { batched_tokens: 8192 });
}

/** Bytes of a sequence at 16 bits. */
function bytes(config: object, tokens: number, asked?: Record<string, unknown>): number {
  const model = modelOf(config, asked);
  return Math.round(kvOfSequence_tokens(kept(model), tokens) * model.kv_bytes_per_token);
}

describe('a sequence in vLLM', () => {
  // 8 KV heads of 64, keys and values, 2 bytes: 2048 a layer.
  it('of gpt-oss-120b keeps 128 tokens and a step in half of its layers', () => {
    expect(bytes(gptOss, 131_072)).toBe(18 * 2048 * 131_072 + 18 * 2048 * (127 + 8192 + 32));
    expect(bytes(gptOss, 4096)).toBe(36 * 2048 * 4096);
    expect(bytes(gptOss, 131_072, { engine_args: ['--max-num-batched-tokens', '1024'] })).toBe(
      18 * 2048 * 131_072 + 18 * 2048 * (127 + 1024 + 32),
    );
    expect(bytes(gptOss, 131_072, { prefill_chunk_tokens: 2048 })).toBe(
      18 * 2048 * 131_072 + 18 * 2048 * (127 + 2048 + 32),
    );
  });

  // 16 KV heads of 128: 8192 a layer. 52 windowed layers are six groups of the ten that keep all.
  it('of gemma-3-27b keeps 1024 tokens and a step in 52 of 62 layers, and pads them to 60', () => {
    expect(bytes(gemma3, 131_072)).toBe(10 * 8192 * 131_072 + 60 * 8192 * (1023 + 8192 + 32));
  });

  // 8 KV heads of 128: 4096 a layer.
  it('of a Mistral whose layers all have a window keeps no more than that', () => {
    expect(bytes(mistral, 32_768)).toBe(32 * 4096 * (4095 + 8192 + 32));
    expect(longestSequence_tokens(kept(modelOf(mistral)), 13_000)).toBe(Number.POSITIVE_INFINITY);
  });

  // 2 KV heads of 256: 2048 a layer. States of 32 heads, 128 × 128 at 4 bytes.
  it('of Qwen3-Next keeps tokens in 12 of 48 layers, and a state in the others', () => {
    expect(bytes(qwen3Next, 262_144)).toBe(12 * 2048 * 262_144 + 36 * 32 * 128 * 128 * 4);
  });

  it.each<[string, PlacementModel, ResolvedEngine, boolean]>([
    ['by option', modelOf(gptOss, { engine_args: ['--disable-hybrid-kv-cache-manager'] }), 'vllm', true],
    [
      'with a connector that carries KV elsewhere',
      modelOf(gptOss, { engine_args: ['--kv-transfer-config={"kv_connector":"LMCacheConnectorV1"}'] }),
      'vllm',
      true,
    ],
    ['on CPUs', modelOf(gptOss), 'vllm', false],
    ['of another engine', modelOf(gptOss), 'sglang', true],
    ['of a model without windows', modelOf({ ...mistral, sliding_window: null }), 'vllm', true],
  ])('counts in full %s', (_, model, engine, onGpu) => {
    expect(kvOfSequence_tokens(kept(model, engine, onGpu), 131_072)).toBe(131_072);
  });

  it('is the longest for which there is room', () => {
    const models = [gptOss, gemma3, mistral, qwen3Next].map((config) => kept(modelOf(config)));
    fc.assert(
      fc.property(fc.constantFrom(...models), fc.integer({ min: 4000, max: 1_000_000 }), (kv, room) => {
        const tokens = longestSequence_tokens(kv, room);
        if (tokens === Number.POSITIVE_INFINITY) return kvOfSequence_tokens(kv, 1e9) <= room;
        return kvOfSequence_tokens(kv, tokens) <= room && kvOfSequence_tokens(kv, tokens + 1) > room;
      }),
      // Shares of layers, whose rounding counts a token too many.
      { examples: [[{ full: 5 / 31, windowed: 30 / 31, kept_tokens: 9247, state_tokens: 0 }, 89_635]] },
    );
  });
});

it('gives gpt-oss-120b on an H100 the context that its windows leave room for', () => {
  const weight_bytes = 65_248_815_744;
  const device = { kind: 'gpu', model: 'H100', count: 1, memory_bytes: 80e9 } as const;
  const split = { tensor: 1, pipeline: 1, weight_bytes, precision: 'auto', programs_bytes: 0 };
  const sized = (asked: Record<string, unknown>) =>
    sizeUnit(modelOf(gptOss, asked, weight_bytes), 'vllm', device, split, defaultPlacementSettings, {
      max_sequences: 1024,
      batched_tokens: 8192,
    });
  const full = sized({ engine_args: ['--disable-hybrid-kv-cache-manager'] });
  const windowed = sized({});
  if ('because' in full || 'because' in windowed) throw new Error('it does not fit');
  // What fits is the same; half the layers keep one sequence of twice the length, less what a step takes.
  expect(windowed.kv_tokens).toBe(full.kv_tokens);
  expect(windowed.context_tokens).toBe(Math.floor((2 * full.kv_tokens - 8351) / 256) * 256);
  expect(windowed.kv_bytes).toBeLessThanOrEqual(windowed.bytes_per_device - weight_bytes);
});
