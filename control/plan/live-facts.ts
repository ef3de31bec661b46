/** What the cluster says of itself now, where it can be asked. */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Operations } from '../runner/operations.ts';

/** What Slurm says of nodes now; absent on the local site and where nobody asked. */
export interface LiveNodes {
  partition: string;
  nodes: string[];
  states: string[];
  features: string[];
  gres: { name: string; type?: string; count: number }[];
  gres_used: { name: string; type?: string; count: number }[];
  cpus: number;
  /** Of all nodes of the group together. */
  cpu_counts: { idle: number };
  memory_mb: number;
}

export interface LivePartition {
  name: string;
  is_default: boolean;
  max_time_s: number;
  /** Its jobs get whole nodes. */
  exclusive?: boolean;
}

export interface LiveFacts {
  nodes: readonly LiveNodes[];
  partitions: readonly LivePartition[];
}

/** Whether Slurm is asked what there is: it must answer, it may, or nobody asks. */
export type AskSlurm = 'must' | 'may' | 'never';

/**
 * What the cluster says of itself now, as far as it can be asked.
 * @returns undefined on the local site, and where the site config alone has to do; `unasked` then says why.
 */
export async function factsToPlanWith(
  operations: Operations,
  ask: AskSlurm,
): Promise<{ live?: LiveFacts; unasked?: string }> {
  if (!operations.slurm) return {};
  const { unknown_resources } = operations.slurm;
  if (unknown_resources !== undefined) return { unasked: unknown_resources };
  if (ask === 'never') return { unasked: '--offline was given' };
  try {
    const live = await liveFacts(operations);
    return live ? { live } : {};
  } catch (error) {
    const away =
      error instanceof HpcserveError &&
      (error.code === 'E_SLURM_UNREACHABLE' || error.code === 'E_SLURM_COMMAND_MISSING');
    if (ask === 'must' || !away) throw error;
    return { unasked: [error.message, ...error.because].join(': ') };
  }
}

/** What the cluster says of itself now; undefined on the local site, and where it cannot be asked that much. */
export async function liveFacts(operations: Operations): Promise<LiveFacts | undefined> {
  const { slurm, lost_nodes } = operations;
  if (!slurm || slurm.unknown_resources !== undefined) return undefined;
  const [groups, partitions] = await Promise.all([slurm.nodeGroups(), slurm.partitions()]);
  const lost = lost_nodes?.() ?? new Set<string>();
  if (lost.size === 0) return { nodes: groups, partitions };
  const left = groups.map((group) => ({ ...group, nodes: group.nodes.filter((node) => !lost.has(node)) }));
  return { nodes: left.filter(({ nodes }) => nodes.length > 0), partitions };
}
