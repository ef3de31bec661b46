/**
 * Which storage type each tensor gets under a named quantization: llama.cpp's choices (`llama_tensor_get_type`),
 * as far as the types here go. Norms, biases and routers stay F32 always.
 */
import { ggmlTypeByName } from '../formats/ggml-types.ts';
import type { SynthTensorType } from './quantize.ts';
import type { SynthShape, TensorPlan } from './shape.ts';

export const synthQuantizations = ['F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_K', 'Q4_K_M'] as const;
export type SynthQuantization = (typeof synthQuantizations)[number];

/** `general.file_type` numbers (llama_ftype); Q4_K is marked as Q4_K_S. */
export const fileTypes: Readonly<Record<SynthQuantization, number>> = {
  F32: 0,
  F16: 1,
  Q4_0: 2,
  Q8_0: 7,
  Q4_K: 14,
  Q4_K_M: 15,
  BF16: 32,
};

/** Where a row is no whole number of blocks, Q8_0 or, failing that, F16 is taken instead. */
export function tensorType(
  plan: TensorPlan,
  quantization: SynthQuantization,
  shape: SynthShape,
): SynthTensorType {
  const wanted = wantedType(plan, quantization, shape);
  for (const type of [wanted, 'Q8_0', 'F16'] as const) {
    if (plan.shape[0]! % ggmlTypeByName(type).block_elements === 0) return type;
  }
  return 'F32';
}

function wantedType(plan: TensorPlan, quantization: SynthQuantization, shape: SynthShape): SynthTensorType {
  if (plan.shape.length === 1 || plan.role === 'router') return 'F32';
  if (quantization !== 'Q4_0' && quantization !== 'Q4_K' && quantization !== 'Q4_K_M') return quantization;
  // The matrix that makes the logits keeps six bits.
  const makesLogits = plan.role === 'output' || (plan.role === 'embedding' && shape.tied_embeddings);
  if (makesLogits) return 'Q6_K';
  if (quantization === 'Q4_0') return 'Q4_0';
  const sensitive = plan.role === 'value' || plan.role === 'down';
  return quantization === 'Q4_K_M' && sensitive && keepsMoreBits(plan.layer!, shape.n_layer)
    ? 'Q6_K'
    : 'Q4_K';
}

/** The first and last eighth of the layers, and every third between. */
function keepsMoreBits(layer: number, layers: number): boolean {
  const eighth = Math.floor(layers / 8);
  return layer < eighth || layer >= Math.floor((7 * layers) / 8) || (layer - eighth) % 3 === 2;
}
