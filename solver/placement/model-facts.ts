/** What placement counts with of a model: its load, and its shape as far as its files tell. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { configPart, readHuggingFaceConfig } from '../../spec/hugging-face-config.ts';
import {
  assumedWorkload,
  type EngineSeen,
  type PlacementModel,
  type PlannedWorkload,
} from '../../spec/plan.ts';
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { shapeOfConfig } from '../catalog/hugging-face-config.ts';
import { type ModelShape, shapeOfSummary } from '../catalog/model-shape.ts';
import { arenaFor_bytes, sparedStep_bytes, streamed_bytes } from '../streaming/arena-size.ts';
import { hostLink } from '../streaming/host-link.ts';
import { streamedModel } from '../streaming/model-products.ts';

export function workloadOf(model: PlacementModel): PlannedWorkload {
  return model.workload ?? assumedWorkload;
}

/** What a step of a model brings whose weights are streamed, and the arena that it comes through. */
export function streamingOf({ summary, weight_bytes }: PlacementModel): {
  step_bytes: number;
  arena_bytes: number;
} {
  // Of a model of which nothing is known, all of it.
  if (summary === undefined) return { step_bytes: weight_bytes, arena_bytes: weight_bytes };
  return { step_bytes: streamed_bytes(summary), arena_bytes: arenaFor_bytes(summary) };
}

/**
 * What a step of a replica brings over the link, and how fast that is. Of a mixture, only the experts come that its
 * rows are sent to; routing is taken as even, and experts that a step before it left there are not counted.
 */
export interface StreamedStep {
  /** Of a step of one token, which decoding ones are. */
  bytes: number;
  /** Of one that needs all weights. */
  whole_bytes: number;
  link: string;
  link_bytes_per_s: number;
  /** As its device said it, and not as its kind is assumed to be. */
  measured: boolean;
  /** Of a step of one token. */
  seconds: number;
  /** What every step brings, and what one brings that needs all experts: 0 where there are none. */
  dense_s: number;
  experts_s: number;
}

/**
 * @param resident_bytes of an arena, for layers that stay
 * @param link_share of the link's rate, what others leave; of a rate that was measured they have their part already
 */
export function streamedStep(
  model: PlacementModel,
  device: DeviceSpec,
  seen: EngineSeen | undefined,
  resident_bytes = 0,
  link_share = 1,
): StreamedStep {
  const assumed = hostLink(device);
  const link_bytes_per_s = seen?.link_bytes_per_s ?? link_share * assumed.bytes_per_s;
  const { step_bytes } = streamingOf(model);
  const spared_bytes = sparedStep_bytes(resident_bytes);
  const { share, used_share } = expertsOf(model, device);
  // What every step needs stays before experts do.
  const dense_bytes = Math.max(0, (1 - share) * step_bytes - spared_bytes);
  const experts_bytes = Math.max(0, step_bytes - Math.max(spared_bytes, (1 - share) * step_bytes));
  const bytes = dense_bytes + used_share * experts_bytes;
  return {
    bytes,
    whole_bytes: dense_bytes + experts_bytes,
    link: assumed.name,
    link_bytes_per_s,
    measured: seen?.link_bytes_per_s !== undefined,
    seconds: bytes / link_bytes_per_s,
    dense_s: dense_bytes / link_bytes_per_s,
    experts_s: experts_bytes / link_bytes_per_s,
  };
}

/** What every step brings: without experts. */
export function denseStep_bytes(model: PlacementModel, device: DeviceSpec): number {
  return (1 - expertsOf(model, device).share) * streamingOf(model).step_bytes;
}

/** Share of the weights that a step brings which are experts', and of these what a token needs. */
function expertsOf(model: PlacementModel, device: DeviceSpec): { share: number; used_share: number } {
  const shape = shapeOf(model);
  if (shape?.experts === undefined) return { share: 0, used_share: 0 };
  const { dense_bytes, expert_bytes } = streamedModel(shape, device);
  const { count, used_per_token } = shape.experts;
  return { share: expert_bytes / (dense_bytes + expert_bytes), used_share: used_per_token / count };
}

/** From config.json where it is there: it tells shared experts, latent attention and windows. */
export function shapeOf(model: PlacementModel): ModelShape | undefined {
  const { summary, config } = model;
  if (summary === undefined) return undefined;
  if (config === undefined) return shapeOfSummary(summary);
  try {
    return shapeOfConfig(config, summary.name);
  } catch (error) {
    if (error instanceof HpcserveError && error.code === 'E_MODEL_SHAPE') return shapeOfSummary(summary);
    throw error;
  }
}

/** Its keys and values are one latent vector a token and layer, of which each device of a layer holds all. */
export function hasLatentKv(model: PlacementModel): boolean {
  return shapeOf(model)?.latent !== undefined;
}

/** Rows and columns of weights that have one scale (FP8 as DeepSeek-V3 has it); empty where there are none. */
export function weightBlock({ config, spec }: PlacementModel): readonly number[] {
  if (config === undefined) return [];
  const read = readHuggingFaceConfig(config, spec.name);
  if ('wrong' in read) return [];
  const block = configPart(read.keys, 'quantization_config').weight_block_size;
  return Array.isArray(block) ? block.filter((side) => Number.isSafeInteger(side) && side > 0) : [];
}
