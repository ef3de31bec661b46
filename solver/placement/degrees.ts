/** Tensor-parallel degrees a replica may have on a kind of node. */
import type { NodeKindOffer, PlacementModel, ResolvedEngine } from '../../spec/plan.ts';

/** Engines that split a replica over devices at our word. */
export const splitting: ReadonlySet<ResolvedEngine> = new Set([
  'vllm',
  'sglang',
  'lmdeploy',
  'tensorrt-llm',
  'tgi',
  'command',
]);

/**
 * Degrees to choose from, ascending; never empty. A degree divides the heads (a key-value head may be held by
 * several devices, but then by equally many), and the group stays within a node. MIG slices form no groups:
 * NCCL does not connect slices of one GPU.
 */
export function tensorDegrees(
  model: PlacementModel,
  offer: NodeKindOffer,
  engine: ResolvedEngine,
): readonly number[] {
  const { tensor, pipeline } = model.spec.parallel;
  if (tensor !== 'auto') return [tensor];
  if (engine === 'command' || !splitting.has(engine) || offer.devices.kind !== 'gpu') return [1];
  const most = Math.max(1, Math.floor(offer.devices.count / pipeline));
  return Array.from({ length: most }, (_, index) => index + 1).filter((degree) =>
    model.summary === undefined ? Number.isInteger(Math.log2(degree)) : dividesHeads(model, degree),
  );
}

/** True where nothing is known of the model's heads. */
export function dividesHeads({ summary }: PlacementModel, degree: number): boolean {
  if (summary === undefined) return true;
  const { n_head, n_head_kv } = summary;
  return n_head % degree === 0 && (n_head_kv % degree === 0 || degree % n_head_kv === 0);
}
