/** In which precisions a model may run on a device, and what that does to its weights. */

import type { PlacementModel, ResolvedEngine } from '../../spec/plan.ts';
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { type ModelShape, storedWeights_bytes } from '../catalog/model-shape.ts';
import {
  type WeightPrecision,
  weightPrecision,
  weightPrecisionIfKnown,
} from '../catalog/weight-precision.ts';

export interface PrecisionChoice {
  /** As the engine is asked for it; `auto`: as the files are. */
  precision: string;
  /** Bytes of weights, all devices together. */
  weight_bytes: number;
  /** Steps down in `precision_choices`. */
  steps_down: number;
  /** Where the plan chose what was not asked for. */
  reason?: string;
}

/**
 * Least compute capability at which vLLM and SGLang multiply with such weights, weight-only kernels included
 * (vLLM documentation, "Quantization: supported hardware"; bf16: CUDA C++ programming guide, compute capabilities).
 */
const capability_min: Readonly<Record<string, number>> = {
  bf16: 8,
  fp8: 8,
  int8: 7.5,
  int4: 7.5,
  nvfp4: 10,
  mxfp4: 8,
};
/** Least compute capability an engine's builds run on. */
const engine_capability_min: Partial<Record<ResolvedEngine, number>> = {
  vllm: 7,
  sglang: 7.5,
  lmdeploy: 7,
  'tensorrt-llm': 8,
  tgi: 7.5,
};

/** Choices in order of preference, or why there is none. */
export function precisionsOf(
  model: PlacementModel,
  engine: ResolvedEngine,
  device: DeviceSpec,
  shape: ModelShape | undefined,
): PrecisionChoice[] | { because: string; needed?: number; available?: number } {
  const own = { precision: model.spec.precision, weight_bytes: model.weight_bytes, steps_down: 0 };
  if (model.format === 'gguf' || engine === 'native' || device.kind === 'cpu')
    return [{ ...own, ...(engine === 'native' ? { precision: 'auto' } : {}) }];
  const capability = device.compute_capability === undefined ? undefined : Number(device.compute_capability);
  const least = engine_capability_min[engine];
  if (capability !== undefined && least !== undefined && capability < least)
    return {
      because: `${engine} needs compute capability ${least}; ${device.name} has ${device.compute_capability}`,
      needed: least,
      available: capability,
    };
  const choices: PrecisionChoice[] = [];
  const obstacles: { because: string; needed: number; available: number }[] = [];
  for (const [steps_down, precision] of [model.spec.precision, ...model.spec.precision_choices].entries()) {
    const stored = precision === 'auto' ? storedPrecision(model) : weightPrecisionIfKnown(precision);
    const needed = stored && capability_min[stored.name];
    if (capability !== undefined && needed !== undefined && capability < needed) {
      if (precision === 'auto' && stored?.name === 'bf16') {
        choices.push({
          ...own,
          precision: 'fp16',
          steps_down,
          reason: `precision fp16: ${device.name} (compute capability ${device.compute_capability}) has no bf16`,
        });
        continue;
      }
      obstacles.push({
        because: `${stored!.name} needs compute capability ${needed.toFixed(1)}; ${device.name} has ${device.compute_capability}`,
        needed,
        available: capability,
      });
      continue;
    }
    choices.push({
      precision,
      weight_bytes: precision === 'auto' ? model.weight_bytes : convertedWeights_bytes(model, shape, stored),
      steps_down,
      ...(steps_down > 0 ? { reason: `precision ${precision}: chosen from precision_choices` } : {}),
    });
  }
  return choices.length > 0
    ? choices
    : { ...obstacles[0]!, because: obstacles.map(({ because }) => because).join('; ') };
}

function storedPrecision(model: PlacementModel): WeightPrecision | undefined {
  return model.summary && weightPrecisionIfKnown(model.summary.quantization);
}

/** Weights whose precision the engine changes as it loads them; other names mean the files as they are. */
function convertedWeights_bytes(
  model: PlacementModel,
  shape: ModelShape | undefined,
  to: WeightPrecision | undefined,
): number {
  if (shape === undefined || to === undefined || to.name === shape.weights.name) return model.weight_bytes;
  // Files that are quantized already keep their form: asking for awq names what they hold.
  if (shape.weights.bits_per_weight < 16) return model.weight_bytes;
  const ratio =
    storedWeights_bytes({ ...shape, weights: weightPrecision(to.name) }) / storedWeights_bytes(shape);
  return Math.ceil(model.weight_bytes * Math.min(2, ratio));
}
