/**
 * Copies of weights in page-locked memory of the host, which a GPU's products read where they are (HybridGEMM). Each
 * replica has its own, beside the page cache that its file has: others that stream the file share that, and not these.
 */
import { denseStep_bytes } from './model-facts.ts';
import type { PlacementOption } from './options.ts';

/** Types of weights that those products multiply. */
const types = ['BF16', 'Q8_0'] as const;
/** Ampere's: older devices multiply no BF16. */
const compute_capability_min = 8;

/**
 * What they take of a replica's host at most. Layers that stay on the device need none, and are not deducted: which
 * stay follows the load, and a job has its memory for good.
 */
export function lockedCopies_bytes({
  offer,
  device,
  model,
}: Pick<PlacementOption, 'offer' | 'device' | 'model'>): number {
  const native = offer.engines.native;
  if (!native?.available || native.reads_host_weights !== true) return 0;
  if (Number.parseFloat(device.compute_capability ?? '0') < compute_capability_min) return 0;
  // How a product goes about it depends on the batch.
  if (model.spec.batch_invariant) return 0;
  const stored = model.summary?.tensor_types ?? {};
  const bytes = types.reduce((sum, type) => sum + (stored[type]?.bytes ?? 0), 0);
  return Math.ceil(Math.min(bytes, denseStep_bytes(model, device)));
}
