/** What placement counts with of a model: its load, and its shape as far as its files tell. */
import { HpcserveError } from '../../spec/errors/error.ts';
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

/** What a step of a replica brings over the link, and how fast that is. */
export interface StreamedStep {
  bytes: number;
  link: string;
  link_bytes_per_s: number;
  /** As its device said it, and not as its kind is assumed to be. */
  measured: boolean;
  seconds: number;
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
  const bytes = Math.max(0, streamingOf(model).step_bytes - sparedStep_bytes(resident_bytes));
  return {
    bytes,
    link: assumed.name,
    link_bytes_per_s,
    measured: seen?.link_bytes_per_s !== undefined,
    seconds: bytes / link_bytes_per_s,
  };
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
