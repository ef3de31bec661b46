/** A model's shape from its Hugging Face `config.json`, for the architectures in use. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { gatedFeedForward, slidingLayers, tiedByDefault } from './families.ts';
import type { ExpertShape, ModelShape } from './model-shape.ts';
import { type WeightPrecision, weightPrecision, weightPrecisionIfKnown } from './weight-precision.ts';

type Config = Readonly<Record<string, unknown>>;

/**
 * Keys as `transformers` names them, with the older spellings of GPT-2 and Falcon; the text part is used of
 * models that also see or hear.
 * @throws E_MODEL_SHAPE naming the keys that are missing.
 */
export function shapeOfConfig(config: unknown, name = 'model'): ModelShape {
  if (typeof config !== 'object' || config === null || Array.isArray(config))
    throw new HpcserveError('E_MODEL_SHAPE', { what: `the config.json of ${name} is not a JSON object` });
  const outer = config as Config;
  const keys: Config = { ...outer, ...part(outer, 'llm_config'), ...part(outer, 'text_config') };
  const missing: string[] = [];
  const need = (...names: string[]): number => {
    const value = numberOf(keys, ...names);
    if (value === undefined) missing.push(names[0]!);
    return value ?? 1;
  };
  const n_layer = need('num_hidden_layers', 'n_layer', 'num_layers', 'n_layers');
  const n_embd = need('hidden_size', 'n_embd', 'd_model');
  const n_head = need('num_attention_heads', 'n_head', 'num_heads', 'n_heads');
  const n_vocab = need('vocab_size', 'padded_vocab_size');
  if (missing.length > 0)
    throw new HpcserveError('E_MODEL_SHAPE', {
      what: `the config.json of ${name} does not tell the model's shape`,
      because: `it has no positive whole number for ${missing.join(', ')}`,
      details: { missing },
    });
  const type = String(keys.model_type ?? '');
  const head_dim = numberOf(keys, 'head_dim', 'kv_channels') ?? Math.floor(n_embd / n_head);
  const experts = expertsOf(keys, type, n_layer);
  const linear = linearOf(keys, n_layer);
  const window = windowOf(keys, n_layer, type);
  const kvRank = numberOf(keys, 'kv_lora_rank');
  const shape: ModelShape = {
    name,
    n_layer,
    n_embd,
    n_head,
    n_head_kv: keyValueHeads(keys, n_head),
    head_dim,
    n_ff:
      numberOf(keys, 'intermediate_size_mlp', 'intermediate_size', 'n_inner', 'ffn_dim', 'ffn_hidden_size') ??
      (numberOf(keys, 'expansion_ratio') ?? 4) * n_embd,
    gated_ffn: gatedFeedForward(type),
    n_vocab,
    tied_embeddings:
      typeof keys.tie_word_embeddings === 'boolean' ? keys.tie_word_embeddings : tiedByDefault(type),
    ...(experts && { experts: mxfp4(keys) ? { ...experts, weights: weightPrecision('mxfp4') } : experts }),
    ...(linear && { linear }),
    ...(window && { sliding_window: window }),
    ...(kvRank !== undefined && {
      latent: {
        kv_rank: kvRank,
        q_rank: numberOf(keys, 'q_lora_rank') ?? 0,
        rope_dim: numberOf(keys, 'qk_rope_head_dim') ?? 64,
        nope_dim: numberOf(keys, 'qk_nope_head_dim') ?? 128,
        v_dim: numberOf(keys, 'v_head_dim') ?? 128,
      },
    }),
    weights: precisionOf(keys),
  };
  checkShape(shape);
  return shape;
}

/** Sizes no model has are mistakes: they would pass as very slow or very fast ones. */
function checkShape({
  name,
  n_layer,
  n_embd,
  n_head,
  n_head_kv,
  n_vocab,
  experts,
  linear,
}: ModelShape): void {
  const wrong: string[] = [];
  if (n_layer > 10_000) wrong.push(`${n_layer} layers`);
  if (n_embd > 1e6) wrong.push(`a hidden size of ${n_embd}`);
  if (n_vocab > 1e8) wrong.push(`a vocabulary of ${n_vocab}`);
  if (n_head > n_embd) wrong.push(`${n_head} heads in a hidden size of ${n_embd}`);
  if (n_head % n_head_kv !== 0) wrong.push(`${n_head} heads that do not divide into ${n_head_kv} KV heads`);
  if (linear !== undefined && linear.n_layer > n_layer) wrong.push(`${linear.n_layer} of ${n_layer} layers`);
  if (experts !== undefined) {
    if (experts.used_per_token > experts.count)
      wrong.push(`${experts.used_per_token} of ${experts.count} experts for each token`);
    if (experts.n_ff === 0) wrong.push('experts without a width');
  }
  if (wrong.length > 0)
    throw new HpcserveError('E_MODEL_SHAPE', {
      what: `the config.json of ${name} describes a model that cannot be`,
      because: `it says ${wrong.join(', ')}`,
    });
}

/** One for multi-query attention (Falcon 7B, StarCoder); Falcon's later architecture has groups. */
function keyValueHeads(keys: Config, n_head: number): number {
  if (keys.multi_query === true && keys.new_decoder_architecture !== true) return 1;
  const inner = part(keys, 'attn_config');
  return (
    numberOf(keys, 'multi_query_group_num', 'num_key_value_heads', 'num_kv_heads', 'n_head_kv') ??
    numberOf(inner, 'kv_n_heads') ??
    n_head
  );
}

function expertsOf(keys: Config, type: string, n_layer: number): ExpertShape | undefined {
  const nested = part(keys, 'ffn_config');
  const count =
    numberOf(keys, 'num_experts', 'num_local_experts', 'n_routed_experts', 'moe_num_experts') ??
    numberOf(nested, 'moe_num_experts');
  if (count === undefined || count < 2) return undefined;
  const width =
    numberOf(keys, 'moe_intermediate_size', 'intermediate_size') ?? numberOf(nested, 'ffn_hidden_size') ?? 0;
  const shared =
    numberOf(keys, 'n_shared_experts', 'num_shared_experts', 'moe_num_shared_experts') ??
    // Llama 4 has one, which its config does not mention.
    (type.startsWith('llama4') ? 1 : 0);
  return {
    count,
    used_per_token:
      numberOf(
        keys,
        'num_experts_per_tok',
        'num_experts_per_token',
        'experts_per_token',
        'moe_topk',
        'moe_k',
      ) ??
      numberOf(nested, 'moe_top_k') ??
      1,
    n_ff: width,
    shared_n_ff:
      numberOf(keys, 'shared_expert_intermediate_size', 'shared_intermediate_size') ?? shared * width,
    n_layer: expertLayers(keys, n_layer),
  };
}

/** Those after the first dense ones, or every so many, or those that are listed. */
function expertLayers(keys: Config, n_layer: number): number {
  if (Array.isArray(keys.moe_layers)) return keys.moe_layers.length;
  if (Array.isArray(keys.moe_layer_freq)) return keys.moe_layer_freq.filter((one) => one === 1).length;
  const denseFirst = numberOf(keys, 'first_k_dense_replace') ?? 0;
  const denseOnly = Array.isArray(keys.mlp_only_layers) ? keys.mlp_only_layers.length : 0;
  const step = numberOf(keys, 'decoder_sparse_step', 'moe_layer_freq', 'interleave_moe_layer_step') ?? 1;
  return Math.max(0, Math.floor((n_layer - denseFirst - denseOnly) / step));
}

/** Gated delta rule of Qwen3-Next: queries, keys, values and a gate, with decay and step of each value head; or Kimi's. */
function linearOf(keys: Config, n_layer: number): ModelShape['linear'] {
  const kimi = part(keys, 'linear_attn_config');
  if (Array.isArray(kimi.kda_layers)) {
    const width = (numberOf(kimi, 'num_heads') ?? 1) * (numberOf(kimi, 'head_dim') ?? 128);
    const state_elements = width * (numberOf(kimi, 'head_dim') ?? 128);
    return { n_layer: kimi.kda_layers.length, columns: 3 * width, rows: width, state_elements };
  }
  const keyHeads = numberOf(keys, 'linear_num_key_heads');
  const valueHeads = numberOf(keys, 'linear_num_value_heads');
  if (keyHeads === undefined || valueHeads === undefined) return undefined;
  const keyDim = numberOf(keys, 'linear_key_head_dim') ?? 128;
  const valueDim = numberOf(keys, 'linear_value_head_dim') ?? 128;
  const layers = Array.isArray(keys.layer_types)
    ? keys.layer_types.filter((kind) => kind === 'linear_attention').length
    : n_layer - Math.floor(n_layer / (numberOf(keys, 'full_attention_interval') ?? 4));
  return layers === 0
    ? undefined
    : {
        n_layer: layers,
        columns: 2 * keyHeads * keyDim + 2 * valueHeads * valueDim + 2 * valueHeads,
        rows: valueHeads * valueDim,
        state_elements: valueHeads * keyDim * valueDim,
      };
}

/** Which layers slide: all (Mistral), those that `layer_types` lists, or every so many (Gemma 2 and 3). */
function windowOf(keys: Config, n_layer: number, type: string): ModelShape['sliding_window'] {
  const tokens = numberOf(keys, 'sliding_window', 'attention_chunk_size');
  if (tokens === undefined || keys.use_sliding_window === false) return undefined;
  if (Array.isArray(keys.layer_types)) {
    const sliding = keys.layer_types.filter(
      (kind) => kind === 'sliding_attention' || kind === 'chunked_attention',
    ).length;
    return sliding === 0 ? undefined : { tokens, n_layer: sliding };
  }
  if (/^qwen2/.test(type)) {
    const full = numberOf(keys, 'max_window_layers') ?? n_layer;
    return full >= n_layer ? undefined : { tokens, n_layer: n_layer - full };
  }
  const pattern = numberOf(keys, 'sliding_window_pattern', '_sliding_window_pattern');
  return { tokens, n_layer: slidingLayers(type, n_layer, pattern) };
}

/** A mapping inside the config; empty where there is none. */
function part(keys: Config, name: string): Config {
  const value = keys[name];
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Config) : {};
}

function precisionOf(keys: Config): WeightPrecision {
  const wide =
    weightPrecisionIfKnown(String(keys.torch_dtype ?? keys.dtype ?? 'bf16')) ?? weightPrecision('bf16');
  const quantized = keys.quantization_config as Config | undefined;
  if (typeof quantized !== 'object' || quantized === null || mxfp4(keys)) return wide;
  const method = String(quantized.quant_method ?? quantized.quant_algo ?? '').toLowerCase();
  if (method.includes('fp8')) return weightPrecision('fp8');
  const text = JSON.stringify(quantized).toLowerCase();
  if (text.includes('nvfp4')) return weightPrecision('nvfp4');
  const bits = numberOf(quantized, 'bits', 'w_bit', 'weight_bits');
  if (method === 'compressed-tensors' || method === 'modelopt') {
    if (text.includes('"num_bits":4')) return weightPrecision('int4');
    return text.includes('"type":"int"') ? weightPrecision('int8') : weightPrecision('fp8');
  }
  if (quantized.load_in_8bit === true) return weightPrecision('int8');
  if (bits === 4 || quantized.load_in_4bit === true) return weightPrecision('int4');
  return bits === 8 ? weightPrecision('int8') : wide;
}

/** gpt-oss keeps everything but its experts at 16 bits. */
function mxfp4(keys: Config): boolean {
  const quantized = keys.quantization_config as Config | undefined;
  return quantized?.quant_method === 'mxfp4';
}

function numberOf(keys: Config, ...names: string[]): number | undefined {
  for (const name of names) {
    const value = keys[name];
    if (typeof value === 'number' && Number.isSafeInteger(value) && value > 0) return value;
  }
  return undefined;
}
