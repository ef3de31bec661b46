/**
 * The products of one iteration of a model, as streaming sees them: which weights are always read, which by routing.
 */
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { attentionLayers, ffnLayers, type ModelShape } from '../catalog/model-shape.ts';
import { type Gemm, layerOperators, outputGemm } from '../simulator/operators.ts';

export interface ModelProduct {
  columns: number;
  inner: number;
  bytes_per_weight: number;
  /** How many of it an iteration computes (layers; of experts, layers with experts). */
  count: number;
  /** Absent: all rows go through it. */
  experts?: { count: number; used_per_token: number };
  /** Only rows that sample a token go through it: the output matrix. */
  sampled_rows: boolean;
}

export interface StreamedModel {
  name: string;
  shape: ModelShape;
  products: readonly ModelProduct[];
  /** Weights that every iteration reads, those of experts, and the largest that are needed at once. */
  dense_bytes: number;
  expert_bytes: number;
  layer_bytes_max: number;
}

/** Of a model on one device of a kind. The embedding is left out: of it an iteration reads a row a token. */
export function streamedModel(shape: ModelShape, device: DeviceSpec): StreamedModel {
  const operators = layerOperators(shape, device, 1);
  const layers = ffnLayers(shape);
  const plain =
    (count: number, sampled_rows = false) =>
    ({ columns, inner, bits_per_weight }: Gemm): ModelProduct => ({
      columns,
      inner,
      bytes_per_weight: bits_per_weight / 8,
      count,
      sampled_rows,
    });
  const { experts } = shape;
  const products = [
    ...operators.attention.map(plain(attentionLayers(shape))),
    ...operators.linear.map(plain(shape.linear?.n_layer ?? 0)),
    ...operators.dense.map(plain(layers.dense)),
    ...operators.expert_side.map(plain(layers.expert)),
    ...operators.expert.map((gemm) => ({
      ...plain(layers.expert)(gemm),
      experts: { count: experts!.count, used_per_token: experts!.used_per_token },
    })),
    plain(1, true)(outputGemm(shape, device, 1)),
  ].filter(({ count }) => count > 0);
  const bytesOf = (of: readonly ModelProduct[], perLayer = false): number =>
    of.reduce(
      (sum, product) =>
        sum + weightsOf_bytes(product) * (product.experts?.count ?? 1) * (perLayer ? 1 : product.count),
      0,
    );
  const dense = products.filter((product) => product.experts === undefined);
  const routed = products.filter((product) => product.experts !== undefined);
  const output = products.filter(({ sampled_rows }) => sampled_rows);
  return {
    name: shape.name,
    shape,
    products,
    dense_bytes: bytesOf(dense),
    expert_bytes: bytesOf(routed),
    layer_bytes_max: Math.max(
      bytesOf(output, true),
      bytesOf(
        products.filter(({ sampled_rows }) => !sampled_rows),
        true,
      ),
    ),
  };
}

function weightsOf_bytes({ columns, inner, bytes_per_weight }: ModelProduct): number {
  return columns * inner * bytes_per_weight;
}
