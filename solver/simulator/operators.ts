/**
 * The operators of one decoder layer and of the output, as counts of arithmetic and bytes on one device of a
 * tensor-parallel group (column- then row-parallel, Megatron-LM, arXiv:1909.08053 §3).
 */
import type { ComputePrecision, DeviceSpec } from '../catalog/device-spec.ts';
import type { ModelShape } from '../catalog/model-shape.ts';
import { vocabularyBits } from '../catalog/model-shape.ts';
import type { WeightPrecision } from '../catalog/weight-precision.ts';

/** A product of [rows × inner] with [inner × columns], for one device. */
export interface Gemm {
  name: string;
  columns: number;
  inner: number;
  bits_per_weight: number;
  compute: ComputePrecision;
}

/** What one layer computes. `ffn` is absent of layers that have experts only. */
export interface LayerOperators {
  attention: readonly Gemm[];
  /** Instead of it, in layers with linear attention. */
  linear: readonly Gemm[];
  dense: readonly Gemm[];
  /** Shared experts and the router, in layers with experts. */
  expert_side: readonly Gemm[];
  /** One expert's products. */
  expert: readonly Gemm[];
}

const activation_bytes = 2;

/** The precision at which a device multiplies weights of this format. */
export function computeOn(device: DeviceSpec, wanted: ComputePrecision): ComputePrecision {
  const has = (precision: ComputePrecision): boolean => (device.peak_flops_per_s[precision] ?? 0) > 0;
  if (wanted === 'fp8' || wanted === 'int8' || wanted === 'fp4' || wanted === 'fp32')
    if (has(wanted)) return wanted;
  if (wanted === 'fp16' && has('fp16')) return 'fp16';
  if (has('bf16')) return 'bf16';
  return has('fp16') ? 'fp16' : 'fp32';
}

export function layerOperators(shape: ModelShape, device: DeviceSpec, tp: number): LayerOperators {
  const of =
    (weights: WeightPrecision) =>
    (name: string, inner: number, columns: number): Gemm => ({
      name,
      inner,
      columns,
      bits_per_weight: weights.bits_per_weight,
      compute: computeOn(device, weights.compute),
    });
  const gemm = of(shape.weights);
  const { n_embd, experts } = shape;
  const ffn = (make: typeof gemm, label: string, width: number): Gemm[] =>
    width === 0
      ? []
      : [
          make(`${label}.up`, n_embd, ((shape.gated_ffn ? 2 : 1) * width) / tp),
          make(`${label}.down`, width / tp, n_embd),
        ];
  return {
    attention: attentionGemms(shape, tp, gemm),
    linear:
      shape.linear === undefined
        ? []
        : [
            gemm('linear.in', n_embd, shape.linear.columns / tp),
            gemm('linear.out', shape.linear.rows / tp, n_embd),
          ],
    dense: ffn(gemm, 'ffn', shape.n_ff),
    expert_side:
      experts === undefined
        ? []
        : [
            {
              ...gemm('router', n_embd, experts.count),
              bits_per_weight: 16,
              compute: computeOn(device, 'bf16'),
            },
            ...ffn(gemm, 'shared', experts.shared_n_ff),
          ],
    expert: experts === undefined ? [] : ffn(of(experts.weights ?? shape.weights), 'expert', experts.n_ff),
  };
}

function attentionGemms(
  shape: ModelShape,
  tp: number,
  gemm: (name: string, inner: number, columns: number) => Gemm,
): Gemm[] {
  const { n_embd, n_head, head_dim, latent } = shape;
  if (latent === undefined)
    return [
      gemm('qkv', n_embd, (n_head / tp + 2 * kvHeadsPerDevice(shape, tp)) * head_dim),
      gemm('out', (n_head * head_dim) / tp, n_embd),
    ];
  const heads = n_head / tp;
  const queryDim = latent.nope_dim + latent.rope_dim;
  return [
    gemm('latent.down', n_embd, latent.q_rank + latent.kv_rank + latent.rope_dim),
    gemm('latent.query', latent.q_rank > 0 ? latent.q_rank : n_embd, heads * queryDim),
    // Absorbed into query and output (DeepSeek-V2 §2.1.3): the up-projections act on the queries' side.
    gemm('latent.up', latent.kv_rank, heads * (latent.nope_dim + latent.v_dim)),
    gemm('out', heads * latent.v_dim, n_embd),
  ];
}

/** KV heads on one device; each has at least one, so heads are repeated where tp exceeds them. */
export function kvHeadsPerDevice({ n_head_kv }: ModelShape, tp: number): number {
  return Math.max(1, n_head_kv / tp);
}

export function outputGemm(shape: ModelShape, device: DeviceSpec, tp: number): Gemm {
  return {
    name: 'output',
    inner: shape.n_embd,
    columns: shape.n_vocab / tp,
    bits_per_weight: vocabularyBits(shape),
    compute: computeOn(device, vocabularyBits(shape) >= 32 ? 'fp32' : 'bf16'),
  };
}

/** Bytes that norms, residuals, rotations and the activation read and write in one layer, per token. */
export function elementwiseBytesPerToken(shape: ModelShape, tp: number, withExperts: boolean): number {
  const { n_embd, n_head, head_dim, experts } = shape;
  const width = withExperts
    ? (experts?.n_ff ?? 0) * (experts?.used_per_token ?? 0) + (experts?.shared_n_ff ?? 0)
    : shape.n_ff;
  const norms = 2 * 4 * n_embd;
  const rotations = 2 * (n_head / tp + kvHeadsPerDevice(shape, tp)) * head_dim;
  const gate = (shape.gated_ffn ? 3 : 2) * (width / tp);
  // Experts' inputs are gathered and their outputs are summed.
  const routing = withExperts ? 3 * n_embd * (experts?.used_per_token ?? 0) : 0;
  return (norms + rotations + gate + routing) * activation_bytes;
}

/** Attention's cost per (query token, key token) pair and per key token read, in one layer on one device. */
export function attentionCosts(
  shape: ModelShape,
  tp: number,
  kvBits: number,
): { flops_per_pair: number; bytes_per_key: number } {
  const heads = shape.n_head / tp;
  const { latent } = shape;
  if (latent !== undefined)
    // Every device holds the whole latent, and all heads read the same.
    return {
      flops_per_pair: 2 * heads * (2 * latent.kv_rank + latent.rope_dim),
      bytes_per_key: ((latent.kv_rank + latent.rope_dim) * kvBits) / 8,
    };
  return {
    flops_per_pair: 4 * heads * shape.head_dim,
    bytes_per_key: (2 * kvHeadsPerDevice(shape, tp) * shape.head_dim * kvBits) / 8,
  };
}
