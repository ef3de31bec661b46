/** What the simulator needs to know of a model: the sizes of its operators, and nothing of its weights. */
import type { Experts, HyperParameters } from '../../spec/hyper-parameters.ts';
import type { ModelFileSummary } from '../../spec/model-summary.ts';
import { gatedFeedForward, slidingLayers } from './families.ts';
import { type WeightPrecision, weightPrecision, weightPrecisionIfKnown } from './weight-precision.ts';

/** Context in training and architecture have no part in what a step takes. */
export interface ModelShape
  extends Omit<HyperParameters, 'architecture' | 'n_ctx_train' | 'experts' | 'sliding_window'> {
  /** Gate, up and down (SwiGLU) against up and down. `n_ff` is 0 where all layers have experts. */
  gated_ffn: boolean;
  experts?: ExpertShape;
  /** Layers that attend to the last `tokens` only. */
  sliding_window?: { tokens: number; n_layer: number };
  /**
   * Layers with linear attention (gated delta rule, arXiv:2412.06464) instead: products into so many columns
   * and from so many rows, and a state of fixed size per sequence where others keep keys and values.
   */
  linear?: { n_layer: number; columns: number; rows: number; state_elements: number };
  /** Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1): keys and values as one latent vector. */
  latent?: { kv_rank: number; q_rank: number; rope_dim: number; nope_dim: number; v_dim: number };
  /** Precision of the linear layers; embedding and output matrix stay at 16 bits unless it is a GGUF format. */
  weights: WeightPrecision;
}

export interface ExpertShape extends Experts {
  /** Width of the experts every token uses, summed; 0 where there are none. */
  shared_n_ff: number;
  /** Layers that have experts; the rest are dense. */
  n_layer: number;
  /** Precision of the experts alone, where it differs (gpt-oss: MXFP4 experts, bf16 elsewhere). */
  weights?: WeightPrecision;
}

/** Weights in the matrices of one layer's attention, where it is not linear. */
function attentionParams(shape: ModelShape): number {
  const { n_embd, n_head, n_head_kv, head_dim, latent } = shape;
  if (latent === undefined) return n_embd * head_dim * (2 * n_head + 2 * n_head_kv);
  const q =
    latent.q_rank > 0
      ? n_embd * latent.q_rank + latent.q_rank * n_head * (latent.nope_dim + latent.rope_dim)
      : n_embd * n_head * (latent.nope_dim + latent.rope_dim);
  return (
    q +
    n_embd * (latent.kv_rank + latent.rope_dim) +
    latent.kv_rank * n_head * (latent.nope_dim + latent.v_dim) +
    n_head * latent.v_dim * n_embd
  );
}

/** Layers that keep keys and values. */
export function attentionLayers({ n_layer, linear }: ModelShape): number {
  return n_layer - (linear?.n_layer ?? 0);
}

/** Layers of each kind of feed-forward part. */
export function ffnLayers({ n_layer, experts }: ModelShape): { dense: number; expert: number } {
  const expert = experts?.n_layer ?? 0;
  return { dense: n_layer - expert, expert };
}

/** All weights, by precision class: linear layers, experts, and the 16-bit embedding and output. */
export function parameterCount(shape: ModelShape): {
  linear: number;
  experts: number;
  vocabulary: number;
  total: number;
} {
  const matrices = shape.gated_ffn ? 3 : 2;
  const layers = ffnLayers(shape);
  const { experts } = shape;
  const linear =
    attentionLayers(shape) * attentionParams(shape) +
    (shape.linear === undefined
      ? 0
      : shape.linear.n_layer * shape.n_embd * (shape.linear.columns + shape.linear.rows)) +
    layers.dense * matrices * shape.n_embd * shape.n_ff +
    layers.expert *
      (shape.n_embd * (experts?.count ?? 0) + matrices * shape.n_embd * (experts?.shared_n_ff ?? 0));
  const expertParams = layers.expert * matrices * shape.n_embd * (experts?.n_ff ?? 0) * (experts?.count ?? 0);
  const vocabulary = shape.n_vocab * shape.n_embd * (shape.tied_embeddings ? 1 : 2);
  return { linear, experts: expertParams, vocabulary, total: linear + expertParams + vocabulary };
}

/** Weights that one token is multiplied with: of the experts those it is sent to, and the output matrix. */
export function activeParameters(shape: ModelShape): number {
  const { linear, experts } = parameterCount(shape);
  const used = shape.experts === undefined ? 0 : shape.experts.used_per_token / shape.experts.count;
  return linear + experts * used + shape.n_vocab * shape.n_embd;
}

/** Bytes of all weights as they lie in device memory. */
export function storedWeights_bytes(shape: ModelShape): number {
  const count = parameterCount(shape);
  const experts = shape.experts?.weights ?? shape.weights;
  return (
    (count.linear * shape.weights.bits_per_weight +
      count.experts * experts.bits_per_weight +
      count.vocabulary * vocabularyBits(shape)) /
    8
  );
}

/** Embedding and output are left at 16 bits by vLLM, TensorRT-LLM and their checkpoints; GGUF packs them too. */
export function vocabularyBits({ weights }: ModelShape): number {
  return /^i?q\d/.test(weights.name)
    ? weights.bits_per_weight
    : Math.min(32, Math.max(16, weights.bits_per_weight));
}

/** Elements of keys and values that one token keeps in one layer. */
export function kvElementsPerLayer({ latent, n_head_kv, head_dim }: ModelShape): number {
  return latent === undefined ? 2 * n_head_kv * head_dim : latent.kv_rank + latent.rope_dim;
}

/**
 * A shape from the headers of model files. Headers name the experts' number and width, and not which layers have
 * them or what all tokens share; the counts of parameters tell these. A GGUF's own mixture of types sets the bits
 * per weight.
 */
export function shapeOfSummary(summary: ModelFileSummary): ModelShape {
  const { architecture, n_layer, sliding_window } = summary;
  const named = weightPrecisionIfKnown(summary.quantization);
  const dense: ModelShape = {
    name: summary.name,
    n_layer,
    n_embd: summary.n_embd,
    n_head: summary.n_head,
    n_head_kv: summary.n_head_kv,
    head_dim: summary.head_dim,
    n_ff: summary.n_ff,
    gated_ffn: gatedFeedForward(architecture),
    n_vocab: summary.n_vocab,
    tied_embeddings: summary.tied_embeddings,
    latent: latentOf(summary),
    weights: named ?? weightPrecision('bf16'),
  };
  if (sliding_window !== undefined)
    dense.sliding_window = { tokens: sliding_window, n_layer: slidingLayers(architecture, n_layer) };
  const shape = withExperts(dense, summary);
  if (summary.format !== 'gguf' || summary.n_params === 0) return shape;
  return {
    ...shape,
    weights: {
      name: named?.name ?? 'q4_0',
      bits_per_weight: (summary.weight_bytes * 8) / summary.n_params,
      compute: named?.compute ?? 'bf16',
    },
  };
}

/**
 * With X parameters in E experts of which U are used, n_params − n_params_active = X (1 − U/E); X over one
 * layer's experts is the number of layers that have them. What then is left beside attention, vocabulary and
 * the dense layers belongs to experts that all tokens share.
 */
function withExperts(shape: ModelShape, summary: ModelFileSummary): ModelShape {
  const { experts, n_layer, n_params, n_params_active } = summary;
  if (experts === undefined) return shape;
  const { count, used_per_token, n_ff } = experts;
  const matrices = shape.gated_ffn ? 3 : 2;
  const width = matrices * shape.n_embd;
  const inExperts = used_per_token < count ? (n_params - n_params_active) / (1 - used_per_token / count) : 0;
  const layers =
    inExperts > 0 ? Math.max(1, Math.min(n_layer, Math.round(inExperts / (count * width * n_ff)))) : n_layer;
  const denseLayers = n_layer - layers;
  const vocabulary = shape.n_vocab * shape.n_embd * (shape.tied_embeddings ? 1 : 2);
  const left =
    n_params -
    inExperts -
    vocabulary -
    n_layer * attentionParams(shape) -
    denseLayers * width * shape.n_ff -
    layers * shape.n_embd * count;
  // Shared experts are whole ones; less than half of one is norms and biases.
  const shared = inExperts > 0 ? Math.max(0, Math.round(left / (layers * width * n_ff))) : 0;
  return {
    ...shape,
    n_ff: denseLayers === 0 ? 0 : shape.n_ff,
    experts: { count, used_per_token, n_ff, shared_n_ff: shared * n_ff, n_layer: layers },
  };
}

/** Latent attention keeps far less per token than its heads would: one vector of rank + 64 rotated elements. */
function latentOf(summary: ModelFileSummary): ModelShape['latent'] {
  const elements = summary.kv_bytes_per_token / 2 / summary.n_layer;
  if (!/^deepseek[23]|^deepseek_v[23]|^kimi/.test(summary.architecture)) return undefined;
  if (elements >= 2 * summary.n_head_kv * summary.head_dim && summary.n_head_kv > 1) return undefined;
  const rope_dim = 64;
  return {
    kv_rank: elements - rope_dim,
    q_rank: summary.n_embd >= 4096 ? 1536 : 0,
    rope_dim,
    nope_dim: 128,
    v_dim: 128,
  };
}
