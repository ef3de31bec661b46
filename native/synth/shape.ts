/** The shape of a synthetic model and the tensors that follow from it, as llama.cpp's converter names them. */
import { HpcserveError } from '../../spec/errors/error.ts';
import {
  type HyperParameters,
  type NativeArchitecture,
  nativeArchitectures,
} from '../../spec/hyper-parameters.ts';

export const synthArchitectures = nativeArchitectures;
export type SynthArchitecture = NativeArchitecture;

export interface SynthShape extends Omit<HyperParameters, 'sliding_window'> {
  architecture: SynthArchitecture;
  rope_freq_base: number;
  rms_epsilon: number;
  /** Llama 3.1's frequency scaling; its factors are stored as the tensor `rope_freqs.weight`. */
  rope_scaling?: RopeScaling;
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
    plans.push({ name, role, shape: dimensions, layer });
  };
  const queries = shape.n_head * shape.head_dim;
  const keys = shape.n_head_kv * shape.head_dim;
  const { n_embd, n_ff, n_vocab, experts } = shape;
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
    if (experts !== undefined) {
      block('ffn_gate_inp.weight', 'router', n_embd, experts.count);
      block('ffn_gate_exps.weight', 'gate', n_embd, experts.n_ff, experts.count);
      block('ffn_up_exps.weight', 'up', n_embd, experts.n_ff, experts.count);
      block('ffn_down_exps.weight', 'down', experts.n_ff, n_embd, experts.count);
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
  const { experts } = shape;
  const expertsAllowed = shape.architecture === 'llama' || shape.architecture === 'qwen3moe';
  rule(
    experts === undefined || expertsAllowed,
    `${shape.architecture} has no experts; llama (Mixtral) and qwen3moe have`,
  );
  rule(
    experts !== undefined || shape.architecture !== 'qwen3moe',
    'qwen3moe needs experts: experts.count of at least 1',
  );
  if (experts !== undefined) {
    const { count, used_per_token, n_ff } = experts;
    rule(Number.isSafeInteger(n_ff) && n_ff >= 1, `experts.n_ff must be a positive integer, not ${n_ff}`);
    rule(
      used_per_token >= 1 && used_per_token <= count,
      `experts.used_per_token must be between 1 and experts.count (${count}), not ${used_per_token}`,
    );
  }
  if (broken.length > 0) {
    throw new HpcserveError('E_MODEL_SYNTH', { what: 'these sizes do not make a model', because: broken });
  }
}
