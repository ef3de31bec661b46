/** The shape of a synthetic model and the tensors that follow from it, as llama.cpp's converter names them. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { nearest } from '../../spec/nearest.ts';

export const synthArchitectures = ['llama', 'qwen2', 'qwen3', 'qwen3moe'] as const;
export type SynthArchitecture = (typeof synthArchitectures)[number];

export interface SynthShape {
  architecture: SynthArchitecture;
  name: string;
  n_layer: number;
  n_embd: number;
  n_head: number;
  n_head_kv: number;
  head_dim: number;
  /** Width of the feed-forward part; of one expert where there are experts. */
  n_ff: number;
  n_vocab: number;
  n_ctx_train: number;
  rope_freq_base: number;
  rms_epsilon: number;
  /** The embedding serves as output matrix too. */
  tied_embeddings: boolean;
  /** Llama 3.1's frequency scaling; its factors are stored as the tensor `rope_freqs.weight`. */
  rope_scaling?: RopeScaling;
  n_expert: number;
  n_expert_used: number;
}

export interface RopeScaling {
  factor: number;
  low_freq_factor: number;
  high_freq_factor: number;
  original_context: number;
}

/** What a tensor is for; scale and storage type follow from it. */
type TensorRole =
  | 'embedding'
  | 'output'
  | 'norm'
  | 'output_norm'
  | 'head_norm'
  | 'query'
  | 'key'
  | 'value'
  | 'attention_output'
  | 'bias'
  | 'router'
  | 'gate'
  | 'up'
  | 'down'
  | 'rope_factors';

export interface TensorPlan {
  name: string;
  role: TensorRole;
  shape: number[];
  /** Layer it belongs to; undefined for embedding, final norm and output. */
  layer?: number;
}

/** In the order of a converted file: embedding, layers, final norm, output. */
export function planTensors(shape: SynthShape): TensorPlan[] {
  const plans: TensorPlan[] = [];
  const add = (name: string, role: TensorRole, dimensions: number[], layer?: number): void => {
    plans.push({ name, role, shape: dimensions, ...(layer === undefined ? {} : { layer }) });
  };
  const queries = shape.n_head * shape.head_dim;
  const keys = shape.n_head_kv * shape.head_dim;
  const { n_embd, n_ff, n_vocab, n_expert } = shape;
  add('token_embd.weight', 'embedding', [n_embd, n_vocab]);
  if (shape.rope_scaling) add('rope_freqs.weight', 'rope_factors', [shape.head_dim / 2]);
  for (let layer = 0; layer < shape.n_layer; layer++) {
    const block = (name: string, role: TensorRole, ...dimensions: number[]): void =>
      add(`blk.${layer}.${name}`, role, dimensions, layer);
    block('attn_norm.weight', 'norm', n_embd);
    block('attn_q.weight', 'query', n_embd, queries);
    block('attn_k.weight', 'key', n_embd, keys);
    block('attn_v.weight', 'value', n_embd, keys);
    if (shape.architecture === 'qwen2') {
      block('attn_q.bias', 'bias', queries);
      block('attn_k.bias', 'bias', keys);
      block('attn_v.bias', 'bias', keys);
    }
    if (shape.architecture === 'qwen3' || shape.architecture === 'qwen3moe') {
      block('attn_q_norm.weight', 'head_norm', shape.head_dim);
      block('attn_k_norm.weight', 'head_norm', shape.head_dim);
    }
    block('attn_output.weight', 'attention_output', queries, n_embd);
    block('ffn_norm.weight', 'norm', n_embd);
    if (n_expert > 0) {
      block('ffn_gate_inp.weight', 'router', n_embd, n_expert);
      block('ffn_gate_exps.weight', 'gate', n_embd, n_ff, n_expert);
      block('ffn_up_exps.weight', 'up', n_embd, n_ff, n_expert);
      block('ffn_down_exps.weight', 'down', n_ff, n_embd, n_expert);
    } else {
      block('ffn_gate.weight', 'gate', n_embd, n_ff);
      block('ffn_up.weight', 'up', n_embd, n_ff);
      block('ffn_down.weight', 'down', n_ff, n_embd);
    }
  }
  add('output_norm.weight', 'output_norm', [n_embd]);
  if (!shape.tied_embeddings) add('output.weight', 'output', [n_embd, n_vocab]);
  return plans;
}

export function countParameters(plans: readonly TensorPlan[]): number {
  return plans.reduce((sum, plan) => sum + plan.shape.reduce((product, extent) => product * extent, 1), 0);
}

/** Throws E_MODEL_SYNTH with every rule that the shape breaks. */
export function checkShape(shape: SynthShape): void {
  const broken: string[] = [];
  const rule = (holds: boolean, text: string): void => {
    if (!holds) broken.push(text);
  };
  const counts = [
    'n_layer',
    'n_embd',
    'n_head',
    'n_head_kv',
    'head_dim',
    'n_ff',
    'n_vocab',
    'n_ctx_train',
  ] as const;
  for (const key of counts) {
    rule(
      Number.isSafeInteger(shape[key]) && shape[key] >= 1,
      `${key} must be a positive integer, not ${shape[key]}`,
    );
  }
  rule(
    shape.n_head % shape.n_head_kv === 0,
    `n_head (${shape.n_head}) must be a multiple of n_head_kv (${shape.n_head_kv})`,
  );
  rule(shape.head_dim % 2 === 0, `head_dim (${shape.head_dim}) must be even: rotary embeddings turn pairs`);
  if (shape.architecture === 'qwen2') {
    rule(
      shape.n_head * shape.head_dim === shape.n_embd,
      `qwen2 has head_dim = n_embd / n_head, here ${shape.n_embd} / ${shape.n_head}, not ${shape.head_dim}`,
    );
  }
  const expertsAllowed = shape.architecture === 'llama' || shape.architecture === 'qwen3moe';
  rule(
    shape.n_expert === 0 || expertsAllowed,
    `${shape.architecture} has no experts; llama (Mixtral) and qwen3moe have`,
  );
  rule(
    shape.n_expert > 0 || shape.architecture !== 'qwen3moe',
    'qwen3moe needs experts: n_expert of at least 1',
  );
  rule(
    shape.n_expert === 0 || (shape.n_expert_used >= 1 && shape.n_expert_used <= shape.n_expert),
    `n_expert_used must be between 1 and n_expert (${shape.n_expert}), not ${shape.n_expert_used}`,
  );
  if (broken.length > 0) {
    throw new HpcserveError('E_MODEL_SYNTH', { what: 'these sizes do not make a model', because: broken });
  }
}

const llama3Scaling: RopeScaling = {
  factor: 32,
  low_freq_factor: 1,
  high_freq_factor: 4,
  original_context: 8192,
};

const dense = { n_expert: 0, n_expert_used: 0 };
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
  'tiny-llama': { ...llamaNumbers, ...tiny, ...dense, name: 'Tiny Llama', tied_embeddings: false },
  'tiny-mixtral': {
    ...llamaNumbers,
    ...tiny,
    name: 'Tiny Mixtral',
    rope_freq_base: 1_000_000,
    n_ff: 256,
    n_expert: 4,
    n_expert_used: 2,
    tied_embeddings: false,
  },
  'tiny-qwen2': {
    ...qwenNumbers,
    ...tiny,
    ...dense,
    architecture: 'qwen2',
    name: 'Tiny Qwen2',
    tied_embeddings: true,
  },
  'tiny-qwen3': {
    ...qwenNumbers,
    ...tiny,
    ...dense,
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
    n_expert: 8,
    n_expert_used: 2,
    tied_embeddings: false,
  },
  'small-llama': {
    ...llamaNumbers,
    ...dense,
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
    ...dense,
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
    ...dense,
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
    ...dense,
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
    ...dense,
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
    n_expert: 128,
    n_expert_used: 8,
    tied_embeddings: false,
  },
};

/** A copy of the preset's shape. Throws E_MODEL_SYNTH with the nearest name and the list. */
export function presetShape(name: string): SynthShape {
  const preset = synthPresets[name];
  if (preset !== undefined && Object.hasOwn(synthPresets, name)) return { ...preset };
  const names = Object.keys(synthPresets);
  const near = nearest(name, names);
  throw new HpcserveError('E_MODEL_SYNTH', {
    what: `there is no preset "${name}"`,
    because: `presets are ${names.join(', ')}`,
    ...(near ? { try: `did you mean ${near}?` } : {}),
  });
}
