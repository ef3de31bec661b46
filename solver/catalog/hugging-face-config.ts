/** A model's shape from its Hugging Face `config.json`: what a simulation asks beyond the hyper-parameters. */
import { HpcserveError } from '../../spec/errors/error.ts';
import {
  type ConfigKeys,
  configNumber,
  configPart,
  type HuggingFaceConfig,
  readHuggingFaceConfig,
  type UnreadableConfig,
} from '../../spec/hugging-face-config.ts';
import type { Experts } from '../../spec/hyper-parameters.ts';
import { gatedFeedForward, slidingLayers, tiedByDefault } from './families.ts';
import type { ExpertShape, ModelShape } from './model-shape.ts';
import { type WeightPrecision, weightPrecision, weightPrecisionIfKnown } from './weight-precision.ts';

type ConfigSizes = HuggingFaceConfig['sizes'];

/** @throws E_MODEL_SHAPE naming the keys that are missing, or the sizes that no model has. */
export function shapeOfConfig(config: unknown, name = 'model'): ModelShape {
  const read = readHuggingFaceConfig(config, name);
  if ('wrong' in read) throw unreadable(read, name);
  const { keys, sizes } = read;
  const { architecture, n_ctx_train, ...shared } = sizes;
  const shape: ModelShape = {
    ...shared,
    gated_ffn: gatedFeedForward(architecture),
    tied_embeddings: sizes.tied_embeddings ?? tiedByDefault(architecture),
    experts: sizes.experts && expertsOf(keys, sizes, sizes.experts),
    linear: linearOf(keys, sizes.n_layer),
    sliding_window: windowOf(keys, sizes),
    latent: latentOf(keys),
    weights: precisionOf(keys),
  };
  checkShape(shape);
  return shape;
}

function unreadable(read: UnreadableConfig, name: string): HpcserveError {
  if (read.wrong === 'no object')
    return new HpcserveError('E_MODEL_SHAPE', { what: `the config.json of ${name} is not a JSON object` });
  return new HpcserveError('E_MODEL_SHAPE', {
    what: `the config.json of ${name} does not tell the model's shape`,
    because: `it has no positive whole number for ${read.missing.join(', ')}`,
    details: { missing: read.missing },
  });
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

/** Experts, with those that every token uses and the layers that have them. */
function expertsOf(keys: ConfigKeys, { architecture, n_layer }: ConfigSizes, experts: Experts): ExpertShape {
  const shared =
    configNumber(keys, 'n_shared_experts', 'num_shared_experts', 'moe_num_shared_experts') ??
    // Llama 4 has one, which its config does not mention.
    (architecture.startsWith('llama4') ? 1 : 0);
  const shape: ExpertShape = {
    ...experts,
    shared_n_ff:
      configNumber(keys, 'shared_expert_intermediate_size', 'shared_intermediate_size') ??
      shared * experts.n_ff,
    n_layer: expertLayers(keys, n_layer),
  };
  if (mxfp4(keys)) shape.weights = weightPrecision('mxfp4');
  return shape;
}

function latentOf(keys: ConfigKeys): ModelShape['latent'] {
  const kv_rank = configNumber(keys, 'kv_lora_rank');
  if (kv_rank === undefined) return undefined;
  return {
    kv_rank,
    q_rank: configNumber(keys, 'q_lora_rank') ?? 0,
    rope_dim: configNumber(keys, 'qk_rope_head_dim') ?? 64,
    nope_dim: configNumber(keys, 'qk_nope_head_dim') ?? 128,
    v_dim: configNumber(keys, 'v_head_dim') ?? 128,
  };
}

/** Those after the first dense ones, or every so many, or those that are listed. */
function expertLayers(keys: ConfigKeys, n_layer: number): number {
  if (Array.isArray(keys.moe_layers)) return keys.moe_layers.length;
  if (Array.isArray(keys.moe_layer_freq)) return keys.moe_layer_freq.filter((one) => one === 1).length;
  const denseFirst = configNumber(keys, 'first_k_dense_replace') ?? 0;
  const denseOnly = Array.isArray(keys.mlp_only_layers) ? keys.mlp_only_layers.length : 0;
  const step = configNumber(keys, 'decoder_sparse_step', 'moe_layer_freq', 'interleave_moe_layer_step') ?? 1;
  return Math.max(0, Math.floor((n_layer - denseFirst - denseOnly) / step));
}

/**
 * Gated delta rule of Qwen3-Next: queries, keys, values and a gate, with decay and step of each value head; or Kimi's.
 */
function linearOf(keys: ConfigKeys, n_layer: number): ModelShape['linear'] {
  const kimi = configPart(keys, 'linear_attn_config');
  if (Array.isArray(kimi.kda_layers)) {
    const width = (configNumber(kimi, 'num_heads') ?? 1) * (configNumber(kimi, 'head_dim') ?? 128);
    const state_elements = width * (configNumber(kimi, 'head_dim') ?? 128);
    return { n_layer: kimi.kda_layers.length, columns: 3 * width, rows: width, state_elements };
  }
  const keyHeads = configNumber(keys, 'linear_num_key_heads');
  const valueHeads = configNumber(keys, 'linear_num_value_heads');
  if (keyHeads === undefined || valueHeads === undefined) return undefined;
  const keyDim = configNumber(keys, 'linear_key_head_dim') ?? 128;
  const valueDim = configNumber(keys, 'linear_value_head_dim') ?? 128;
  const layers = Array.isArray(keys.layer_types)
    ? keys.layer_types.filter((kind) => kind === 'linear_attention').length
    : n_layer - Math.floor(n_layer / (configNumber(keys, 'full_attention_interval') ?? 4));
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
function windowOf(
  keys: ConfigKeys,
  { architecture, n_layer, sliding_window: tokens }: ConfigSizes,
): ModelShape['sliding_window'] {
  if (tokens === undefined) return undefined;
  if (Array.isArray(keys.layer_types)) {
    const sliding = keys.layer_types.filter(
      (kind) => kind === 'sliding_attention' || kind === 'chunked_attention',
    ).length;
    return sliding === 0 ? undefined : { tokens, n_layer: sliding };
  }
  if (/^qwen2/.test(architecture)) {
    const full = configNumber(keys, 'max_window_layers') ?? n_layer;
    return full >= n_layer ? undefined : { tokens, n_layer: n_layer - full };
  }
  const pattern = configNumber(keys, 'sliding_window_pattern', '_sliding_window_pattern');
  return { tokens, n_layer: slidingLayers(architecture, n_layer, pattern) };
}

function precisionOf(keys: ConfigKeys): WeightPrecision {
  const wide =
    weightPrecisionIfKnown(String(keys.torch_dtype ?? keys.dtype ?? 'bf16')) ?? weightPrecision('bf16');
  const quantized = keys.quantization_config as ConfigKeys | undefined;
  if (typeof quantized !== 'object' || quantized === null || mxfp4(keys)) return wide;
  const method = String(quantized.quant_method ?? quantized.quant_algo ?? '').toLowerCase();
  if (method.includes('fp8')) return weightPrecision('fp8');
  const text = JSON.stringify(quantized).toLowerCase();
  if (text.includes('nvfp4')) return weightPrecision('nvfp4');
  const bits = configNumber(quantized, 'bits', 'w_bit', 'weight_bits');
  if (method === 'compressed-tensors' || method === 'modelopt') {
    if (text.includes('"num_bits":4')) return weightPrecision('int4');
    return text.includes('"type":"int"') ? weightPrecision('int8') : weightPrecision('fp8');
  }
  if (quantized.load_in_8bit === true) return weightPrecision('int8');
  if (bits === 4 || quantized.load_in_4bit === true) return weightPrecision('int4');
  return bits === 8 ? weightPrecision('int8') : wide;
}

/** gpt-oss keeps everything but its experts at 16 bits. */
function mxfp4(keys: ConfigKeys): boolean {
  const quantized = keys.quantization_config as ConfigKeys | undefined;
  return quantized?.quant_method === 'mxfp4';
}
