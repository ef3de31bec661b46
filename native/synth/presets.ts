/** Shapes to start from: toys, and those of published models. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { nearest } from '../../spec/nearest.ts';
import type { RopeScaling, SynthShape } from './shape.ts';

const llama3Scaling: RopeScaling = {
  factor: 32,
  low_freq_factor: 1,
  high_freq_factor: 4,
  original_context: 8192,
};

const tiny = {
  n_layer: 2,
  n_embd: 256,
  n_head: 4,
  n_head_kv: 2,
  head_dim: 64,
  n_ff: 512,
  n_vocab: 1024,
  n_ctx_train: 4096,
};
const llamaNumbers = { architecture: 'llama', rope_freq_base: 500_000, rms_epsilon: 1e-5 } as const;
const qwenNumbers = { rope_freq_base: 1_000_000, rms_epsilon: 1e-6 } as const;

/** Toys whose rows suit every quantization, and the true shapes of published models (their config.json). */
export const synthPresets: Readonly<Record<string, SynthShape>> = {
  'tiny-llama': { ...llamaNumbers, ...tiny, name: 'Tiny Llama', tied_embeddings: false },
  'tiny-mixtral': {
    ...llamaNumbers,
    ...tiny,
    name: 'Tiny Mixtral',
    rope_freq_base: 1_000_000,
    n_ff: 256,
    experts: { count: 4, used_per_token: 2, n_ff: 256 },
    tied_embeddings: false,
  },
  'tiny-qwen2': {
    ...qwenNumbers,
    ...tiny,
    architecture: 'qwen2',
    name: 'Tiny Qwen2',
    tied_embeddings: true,
  },
  'tiny-qwen3': {
    ...qwenNumbers,
    ...tiny,
    architecture: 'qwen3',
    name: 'Tiny Qwen3',
    head_dim: 128,
    tied_embeddings: true,
  },
  'tiny-qwen3moe': {
    ...qwenNumbers,
    ...tiny,
    architecture: 'qwen3moe',
    name: 'Tiny Qwen3 MoE',
    n_ff: 256,
    experts: { count: 8, used_per_token: 2, n_ff: 256 },
    tied_embeddings: false,
  },
  'small-llama': {
    ...llamaNumbers,
    name: 'Small Llama',
    n_layer: 8,
    n_embd: 512,
    n_head: 8,
    n_head_kv: 4,
    head_dim: 64,
    n_ff: 1536,
    n_vocab: 8192,
    n_ctx_train: 8192,
    tied_embeddings: true,
  },
  'llama-3.2-1b': {
    ...llamaNumbers,
    name: 'Llama 3.2 1B (synthetic)',
    n_layer: 16,
    n_embd: 2048,
    n_head: 32,
    n_head_kv: 8,
    head_dim: 64,
    n_ff: 8192,
    n_vocab: 128_256,
    n_ctx_train: 131_072,
    rope_scaling: llama3Scaling,
    tied_embeddings: true,
  },
  'llama-3.1-8b': {
    ...llamaNumbers,
    name: 'Llama 3.1 8B (synthetic)',
    n_layer: 32,
    n_embd: 4096,
    n_head: 32,
    n_head_kv: 8,
    head_dim: 128,
    n_ff: 14_336,
    n_vocab: 128_256,
    n_ctx_train: 131_072,
    rope_scaling: { ...llama3Scaling, factor: 8 },
    tied_embeddings: false,
  },
  'qwen2.5-0.5b': {
    ...qwenNumbers,
    architecture: 'qwen2',
    name: 'Qwen2.5 0.5B (synthetic)',
    n_layer: 24,
    n_embd: 896,
    n_head: 14,
    n_head_kv: 2,
    head_dim: 64,
    n_ff: 4864,
    n_vocab: 151_936,
    n_ctx_train: 32_768,
    tied_embeddings: true,
  },
  'qwen3-0.6b': {
    ...qwenNumbers,
    architecture: 'qwen3',
    name: 'Qwen3 0.6B (synthetic)',
    n_layer: 28,
    n_embd: 1024,
    n_head: 16,
    n_head_kv: 8,
    head_dim: 128,
    n_ff: 3072,
    n_vocab: 151_936,
    n_ctx_train: 40_960,
    tied_embeddings: true,
  },
  'qwen3-30b-a3b': {
    ...qwenNumbers,
    architecture: 'qwen3moe',
    name: 'Qwen3 30B A3B (synthetic)',
    n_layer: 48,
    n_embd: 2048,
    n_head: 32,
    n_head_kv: 4,
    head_dim: 128,
    n_ff: 768,
    n_vocab: 151_936,
    n_ctx_train: 40_960,
    experts: { count: 128, used_per_token: 8, n_ff: 768 },
    tied_embeddings: false,
  },
};

/** A copy of the preset's shape. Throws E_MODEL_SYNTH with the nearest name and the list. */
export function presetShape(name: string): SynthShape {
  const preset = synthPresets[name];
  if (preset !== undefined && Object.hasOwn(synthPresets, name)) return structuredClone(preset);
  const names = Object.keys(synthPresets);
  const near = nearest(name, names);
  throw new HpcserveError('E_MODEL_SYNTH', {
    what: `there is no preset "${name}"`,
    because: `presets are ${names.join(', ')}`,
    try: near && `did you mean ${near}?`,
  });
}
