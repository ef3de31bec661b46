/** What placement counts with of a model: its load, and its shape as far as its files tell. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { assumedWorkload, type PlacementModel, type PlannedWorkload } from '../../spec/plan.ts';
import { shapeOfConfig } from '../catalog/hugging-face-config.ts';
import { type ModelShape, shapeOfSummary } from '../catalog/model-shape.ts';
import { arenaFor_bytes, streamed_bytes } from '../streaming/arena-size.ts';

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
