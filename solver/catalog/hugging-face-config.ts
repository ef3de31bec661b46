/** A model's shape from its Hugging Face `config.json`, for the architectures in use. */
import { HpcserveError } from '../../spec/errors/error.ts';
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
  const inner = (outer.text_config ?? outer.llm_config) as Config | undefined;
  const keys: Config = inner === undefined ? outer : { ...outer, ...inner };
  const missing: string[] = [];
  const need = (...names: string[]): number => {
    const value = numberOf(keys, ...names);
    if (value === undefined) missing.push(names[0]!);
    return value ?? 1;
  };
  const n_layer = need('num_hidden_layers', 'n_layer', 'num_layers');
  const n_embd = need('hidden_size', 'n_embd', 'd_model');
  const n_head = need('num_attention_heads', 'n_head', 'num_heads');
  const n_vocab = need('vocab_size');
  if (missing.length > 0)
    throw new HpcserveError('E_MODEL_SHAPE', {
      what: `the config.json of ${name} does not tell the model's shape`,
      because: `it has no positive whole number for ${missing.join(', ')}`,
      details: { missing },
    });
  const head_dim = numberOf(keys, 'head_dim') ?? Math.floor(n_embd / n_head);
  const n_head_kv =
    keys.multi_query === true
      ? 1
      : (numberOf(keys, 'num_key_value_heads', 'num_kv_heads', 'n_head_kv') ?? n_head);
  const type = String(keys.model_type ?? '');
  const experts = expertsOf(keys, n_layer);
  const window = windowOf(keys, n_layer, type);
  const kvRank = numberOf(keys, 'kv_lora_rank');
  const weights = precisionOf(keys);
  return {
    name,
    n_layer,
    n_embd,
    n_head,
    n_head_kv,
    head_dim,
    n_ff: numberOf(keys, 'intermediate_size', 'n_inner', 'ffn_dim', 'ffn_hidden_size') ?? 4 * n_embd,
    gated_ffn: !/^(gpt2|gpt_neox|gpt_bigcode|opt|falcon|bloom|phi|starcoder2)$/.test(type),
    n_vocab,
    tied_embeddings: keys.tie_word_embeddings === true || /^gemma|^gpt2$/.test(type),
    ...(experts && { experts: mxfp4(keys) ? { ...experts, weights: weightPrecision('mxfp4') } : experts }),
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
    weights,
  };
}

function expertsOf(keys: Config, n_layer: number): ExpertShape | undefined {
  const count = numberOf(keys, 'num_experts', 'num_local_experts', 'n_routed_experts', 'moe_num_experts');
  if (count === undefined || count < 2) return undefined;
  const width = numberOf(keys, 'moe_intermediate_size', 'intermediate_size') ?? 0;
  const denseFirst = numberOf(keys, 'first_k_dense_replace') ?? 0;
  const denseOnly = Array.isArray(keys.mlp_only_layers) ? keys.mlp_only_layers.length : 0;
  const step = numberOf(keys, 'decoder_sparse_step', 'moe_layer_freq', 'interleave_moe_layer_step') ?? 1;
  return {
    count,
    used_per_token: numberOf(keys, 'num_experts_per_tok', 'experts_per_token', 'moe_topk') ?? 1,
    n_ff: width,
    shared_n_ff:
      numberOf(keys, 'shared_expert_intermediate_size') ?? (numberOf(keys, 'n_shared_experts') ?? 0) * width,
    n_layer: Math.max(0, Math.floor((n_layer - denseFirst - denseOnly) / step)),
  };
}

/** Which layers slide: all (Mistral), those that `layer_types` lists, or every so many (Gemma 2 and 3). */
function windowOf(keys: Config, n_layer: number, type: string): ModelShape['sliding_window'] {
  const tokens = numberOf(keys, 'sliding_window');
  if (tokens === undefined || keys.use_sliding_window === false) return undefined;
  if (Array.isArray(keys.layer_types)) {
    const sliding = keys.layer_types.filter((kind) => kind === 'sliding_attention').length;
    return sliding === 0 ? undefined : { tokens, n_layer: sliding };
  }
  if (/^qwen2/.test(type)) {
    const full = numberOf(keys, 'max_window_layers') ?? n_layer;
    return full >= n_layer ? undefined : { tokens, n_layer: n_layer - full };
  }
  const pattern =
    numberOf(keys, 'sliding_window_pattern', '_sliding_window_pattern') ??
    (type === 'gemma2' || type === 'gpt_oss' ? 2 : type.startsWith('gemma3') ? 6 : undefined);
  return { tokens, n_layer: pattern === undefined ? n_layer : n_layer - Math.floor(n_layer / pattern) };
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
