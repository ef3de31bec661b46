/** How long a job would wait, asked of Slurm for each kind of node where the site wants it weighed. */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { NodeKindOffer, PlannedLaunch } from '../../spec/plan.ts';
import type { Operations } from '../runner/operations.ts';
import { describeLaunch } from '../runner/prepare-launch.ts';

/**
 * Offers with `queue_wait_s`. One `sbatch --test-only` a kind, one after the other: the controller holds its lock
 * for each. A kind for which Slurm refuses or does not answer keeps the fixed factor of the site config.
 */
export async function withQueueWaits(
  operations: Operations,
  offers: readonly NodeKindOffer[],
): Promise<NodeKindOffer[]> {
  const { slurm_runner: runner, loaded, store, facts, emit, now_ms } = operations;
  if (!runner || !loaded.site.planning.queue_wait) return [...offers];
  emit({ at_ms: now_ms(), kind: 'checking', what: 'how long jobs would wait' });
  const asked: NodeKindOffer[] = [];
  for (const [index, offer] of offers.entries()) {
    const id = index.toString(16).padStart(16, '0');
    const prepared = describeLaunch('queue-wait', id, smallest(offer), loaded.site, store, facts);
    try {
      const { start_time_ms } = await runner.estimateStart(prepared);
      asked.push({ ...offer, queue_wait_s: Math.max(0, (start_time_ms - now_ms()) / 1000) });
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      const reason = [error.message, ...error.because].join(': ');
      emit({ at_ms: now_ms(), kind: 'warning', message: `no estimate for ${offer.node_kind}: ${reason}` });
      asked.push(offer);
    }
  }
  return asked;
}

/** A job for one device of a kind. */
function smallest(offer: NodeKindOffer): PlannedLaunch {
  const { devices } = offer;
  const limit = offer.time_limit_default_s;
  const launch: PlannedLaunch = {
    node_kind: offer.node_kind,
    tier: offer.tier,
    partitions: offer.partitions,
    node_count: 1,
    devices_per_node: {
      kind: devices.kind,
      model: devices.model,
      count: devices.kind === 'cpu' ? 0 : 1,
      memory_bytes: devices.memory_bytes,
    },
    cpus_per_node: Math.max(1, Math.floor(offer.cpus / devices.count)),
    memory_bytes_per_node: Math.floor(offer.memory_bytes / devices.count),
    units: [],
  };
  if (devices.emulated) launch.devices_per_node.emulated = devices.emulated;
  if (limit !== undefined) launch.time_limit_s = limit;
  return launch;
}
