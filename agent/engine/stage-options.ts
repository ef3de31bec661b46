import type { EngineOptions } from '../../spec/engine-contract.ts';
import type { EngineResources } from './engine-resources.ts';
import type { StageOptions } from './stage.ts';

/** What of an engine's options its stage is made with, and the memory that it is given. */
export function stageOptions(
  options: EngineOptions,
  { weights, kv, scratch }: Pick<EngineResources, 'weights' | 'kv' | 'scratch'>,
): StageOptions {
  const { threads, kv_tokens, kv_type, batch_invariant } = options;
  const stage: StageOptions = { threads, kv_tokens, kv_type, batch_invariant };
  if (options.kernels) stage.kernels = options.kernels;
  if (options.stage) stage.range = options.stage;
  if (options.on_progress) stage.on_progress = options.on_progress;
  if (weights) stage.weights = weights;
  if (kv) stage.kv = kv;
  if (scratch) stage.scratch = scratch;
  return stage;
}
