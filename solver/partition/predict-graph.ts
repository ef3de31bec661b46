/**
 * Costs of operators that have not run yet: from the shape of the model and the roofline of the serving simulator.
 */
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { kvElementsPerLayer, type ModelShape, vocabularyBits } from '../catalog/model-shape.ts';
import type { Calibration } from '../simulator/calibration.ts';
import { gemmTime_s } from '../simulator/gemm.ts';
import {
  attentionCosts,
  computeOn,
  elementwiseBytesPerToken,
  type Gemm,
  type LayerOperators,
  layerOperators,
  outputGemm,
} from '../simulator/operators.ts';
import type { OperatorCost, OperatorGraph } from './operator-graph.ts';

export interface GraphQuestion {
  shape: ModelShape;
  device: DeviceSpec;
  calibration: Calibration;
  /** Rows of a micro-batch: decoding sequences, or tokens of a prompt. */
  rows: number;
  /** Keys that each row attends to. */
  context_tokens: number;
  /** Bits of one element of the KV cache: 16, or 8. */
  kv_bits: number;
}

/** Hidden states cross a cut in f32. */
const hidden_bytes = 4;

/** What the parts of one question have in common. */
interface Costing extends GraphQuestion {
  layers: LayerOperators;
}

export function predictGraph(question: GraphQuestion): OperatorGraph {
  const { shape, device, rows } = question;
  const costing: Costing = { ...question, layers: layerOperators(shape, device, 1) };
  const operators: OperatorCost[] = [embedding(costing)];
  for (let layer = 0; layer < shape.n_layer; layer++)
    operators.push(attention(costing, layer), feedForward(costing, layer));
  operators.push(output(costing));
  return { name: shape.name, rows, operators };
}

function embedding({ shape, device, calibration, rows }: Costing): OperatorCost {
  const bits = vocabularyBits(shape);
  const moved_bytes = rows * shape.n_embd * (bits / 8 + hidden_bytes);
  return {
    kind: 'embedding',
    compute_s: moved_bytes / elementwiseBandwidth(device, calibration),
    weight_bytes: (shape.n_vocab * shape.n_embd * bits) / 8,
    activation_bytes: rows * shape.n_embd * hidden_bytes,
    kv_bytes_per_token: 0,
  };
}

/** Of the layers, the linear ones and those with a window lie evenly among the others. */
function isSpread(layer: number, count: number, n_layer: number): boolean {
  return Math.floor(((layer + 1) * count) / n_layer) > Math.floor((layer * count) / n_layer);
}

function attention(costing: Costing, layer: number): OperatorCost {
  const { shape, device, calibration, rows, context_tokens, kv_bits, layers } = costing;
  const isLinear = isSpread(layer, shape.linear?.n_layer ?? 0, shape.n_layer);
  const gemms = isLinear ? layers.linear : layers.attention;
  const bandwidth = device.memory_bandwidth_bytes_per_s * calibration.device.attention_memory;
  let reading_s = 0;
  if (isLinear) {
    const state_bytes = (shape.linear?.state_elements ?? 0) * 2 * 4;
    reading_s = (rows * state_bytes) / elementwiseBandwidth(device, calibration);
  } else {
    const windowed = isSpread(layer, shape.sliding_window?.n_layer ?? 0, shape.n_layer);
    const keys = windowed
      ? Math.min(context_tokens, shape.sliding_window?.tokens ?? context_tokens)
      : context_tokens;
    const { flops_per_pair, bytes_per_key } = attentionCosts(shape, 1, kv_bits);
    const peak = device.peak_flops_per_s[computeOn(device, 'bf16')] ?? 1;
    const pair_s = flops_per_pair / (peak * calibration.device.attention_compute);
    const key_s = bytes_per_key / (bandwidth * calibration.engine.attention_memory);
    reading_s = rows * keys * Math.max(pair_s, key_s);
  }
  return {
    kind: 'attention',
    layer,
    compute_s: productTime_s(costing, gemms) + reading_s + layerRest_s(costing, layer),
    weight_bytes: weights_bytes(gemms),
    activation_bytes: rows * shape.n_embd * hidden_bytes,
    kv_bytes_per_token: isLinear ? 0 : (kvElementsPerLayer(shape) * kv_bits) / 8,
  };
}

/** The last layers are those with experts: models that have both kinds begin with the dense ones. */
function hasExperts({ n_layer, experts }: ModelShape, layer: number): boolean {
  return experts !== undefined && layer >= n_layer - experts.n_layer;
}

function feedForward(costing: Costing, layer: number): OperatorCost {
  const { shape, device, calibration, rows, layers } = costing;
  const { experts } = shape;
  let compute_s: number;
  let weight_bytes: number;
  if (experts !== undefined && hasExperts(shape, layer)) {
    const grouping = {
      groups: experts.count * (1 - (1 - experts.used_per_token / experts.count) ** rows),
      compute_share: calibration.engine.expert_compute,
      memory_share: calibration.engine.expert_memory,
    };
    const routed = rows * experts.used_per_token;
    const grouped_s = layers.expert.reduce(
      (seconds, gemm) => seconds + gemmTime_s(gemm, routed, device, calibration.device, grouping),
      0,
    );
    compute_s = productTime_s(costing, layers.expert_side) + grouped_s;
    weight_bytes = weights_bytes(layers.expert_side) + experts.count * weights_bytes(layers.expert);
  } else {
    compute_s = productTime_s(costing, layers.dense);
    weight_bytes = weights_bytes(layers.dense);
  }
  return {
    kind: 'feed_forward',
    layer,
    compute_s: compute_s + layerRest_s(costing, layer),
    weight_bytes,
    activation_bytes: rows * shape.n_embd * hidden_bytes,
    kv_bytes_per_token: 0,
  };
}

function output(costing: Costing): OperatorCost {
  const { shape, device, rows } = costing;
  const gemm = outputGemm(shape, device, 1);
  return {
    kind: 'output',
    compute_s: productTime_s(costing, [gemm]),
    // A stage of its own needs the matrix even where the model ties it to the embedding.
    weight_bytes: weights_bytes([gemm]),
    activation_bytes: rows * shape.n_vocab * hidden_bytes,
    kv_bytes_per_token: 0,
  };
}

/** Norms, residuals and launches of a layer, of which each of its two operators has half. */
function layerRest_s({ shape, device, calibration, rows }: Costing, layer: number): number {
  const moved_bytes = rows * elementwiseBytesPerToken(shape, 1, hasExperts(shape, layer));
  return (moved_bytes / elementwiseBandwidth(device, calibration) + calibration.engine.layer_s) / 2;
}

function productTime_s({ device, calibration, rows }: Costing, gemms: readonly Gemm[]): number {
  return gemms.reduce((seconds, gemm) => seconds + gemmTime_s(gemm, rows, device, calibration.device), 0);
}

function weights_bytes(gemms: readonly Gemm[]): number {
  return gemms.reduce((bytes, gemm) => bytes + (gemm.columns * gemm.inner * gemm.bits_per_weight) / 8, 0);
}

function elementwiseBandwidth(device: DeviceSpec, calibration: Calibration): number {
  return device.memory_bandwidth_bytes_per_s * calibration.device.elementwise_memory;
}
