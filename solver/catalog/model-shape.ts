/** What the simulator needs to know of a model: the sizes of its operators, and nothing of its weights. */
import type { ModelFileSummary } from '../../spec/model-summary.ts';
import { type WeightPrecision, weightPrecision, weightPrecisionIfKnown } from './weight-precision.ts';

export interface ModelShape {
  name: string;
  n_layer: number;
  n_embd: number;
  n_head: number;
  n_head_kv: number;
  head_dim: number;
  /** Feed-forward width of layers without experts; 0 where all layers have them. */
  n_ff: number;
  /** Gate, up and down (SwiGLU) against up and down. */
  gated_ffn: boolean;
  n_vocab: number;
  tied_embeddings: boolean;
  experts?: ExpertShape;
  /** Layers that attend to the last `tokens` only. */
  sliding_window?: { tokens: number; n_layer: number };
  /** Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1): keys and values as one latent vector. */
  latent?: { kv_rank: number; q_rank: number; rope_dim: number; nope_dim: number; v_dim: number };
  /** Precision of the linear layers; embedding and output matrix stay at 16 bits unless it is a GGUF format. */
  weights: WeightPrecision;
}

export interface ExpertShape {
  count: number;
  used_per_token: number;
  n_ff: number;
  /** Width of the experts every token uses, summed; 0 where there are none. */
  shared_n_ff: number;
  /** Layers that have experts; the rest are dense. */
  n_layer: number;
  /** Precision of the experts alone, where it differs (gpt-oss: MXFP4 experts, bf16 elsewhere). */
  weights?: WeightPrecision;
}

/** Weights in the matrices of one layer's attention. */
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
    shape.n_layer * attentionParams(shape) +
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
export function weightBytes(shape: ModelShape): number {
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

/** A shape from the headers of model files; a GGUF's own mixture of types sets the bits per weight. */
export function shapeOfSummary(summary: ModelFileSummary): ModelShape {
  const named = weightPrecisionIfKnown(summary.quantization);
  const shape: ModelShape = {
    name: summary.name,
    n_layer: summary.n_layer,
    n_embd: summary.n_embd,
    n_head: summary.n_head,
    n_head_kv: summary.n_head_kv,
    head_dim: summary.head_dim,
    n_ff: summary.experts === undefined ? summary.n_ff : 0,
    gated_ffn: true,
    n_vocab: summary.n_vocab,
    tied_embeddings: summary.tied_embeddings,
    ...(summary.experts === undefined
      ? {}
      : {
          experts: {
            count: summary.experts.count,
            used_per_token: summary.experts.used_per_token,
            n_ff: summary.experts.n_ff,
            shared_n_ff: 0,
            n_layer: summary.n_layer,
          },
        }),
    ...(summary.sliding_window === undefined
      ? {}
      : { sliding_window: { tokens: summary.sliding_window, n_layer: summary.n_layer } }),
    weights: named ?? weightPrecision('bf16'),
  };
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
