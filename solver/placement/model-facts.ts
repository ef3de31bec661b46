/** What placement counts with of a model: its load, and its shape as far as its files tell. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { assumedWorkload, type PlacementModel, type PlannedWorkload } from '../../spec/plan.ts';
import { shapeOfConfig } from '../catalog/hugging-face-config.ts';
import { type ModelShape, shapeOfSummary } from '../catalog/model-shape.ts';

export function workloadOf(model: PlacementModel): PlannedWorkload {
  return model.workload ?? assumedWorkload;
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
