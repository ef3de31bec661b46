/** Devices that a job is given and no replica uses, because its nodes are given whole; pure. */
import { type NodeKindOffer, type PlannedLaunch, unitsOfJob } from '../../spec/plan.ts';
import { type SiteConfig, slurmSettings } from '../../spec/site.ts';
import type { NodeKind } from '../../spec/site-nodes.ts';

/** Whether jobs on this kind get all of a node, whatever they ask for. */
export function givenWhole(
  site: SiteConfig,
  kind: NodeKind,
  partitions: readonly { exclusive?: boolean }[],
): boolean {
  if (site.kind === 'local') return false;
  const { defaults, gpu_request } = slurmSettings(site);
  const form = (kind.gpu_request ?? gpu_request).form;
  const asked = kind.slurm?.exclusive ?? defaults.exclusive;
  return asked === true || form === 'none' || partitions.some(({ exclusive }) => exclusive === true);
}

/** A warning, with what to do about it, for each node kind on which a plan leaves allocated devices unused. */
export function unusedDevices(
  launches: readonly PlannedLaunch[],
  offers: readonly NodeKindOffer[],
): string[] {
  return offers.flatMap(({ node_kind, devices, whole_nodes }) => {
    const own = launches.filter(
      (launch) => launch.node_kind === node_kind && launch.devices_per_node.model === devices.model,
    );
    const idle = own.reduce(
      (sum, launch) => sum + (devices.count - launch.devices_per_node.count) * launch.node_count,
      0,
    );
    if (!whole_nodes || devices.kind === 'cpu' || idle === 0) return [];
    const models = [...new Set(own.flatMap((launch) => unitsOfJob(launch).map(({ model }) => model.name)))];
    const all = devices.count * own.reduce((sum, { node_count }) => sum + node_count, 0);
    return [
      `${node_kind}: nodes are given whole, and ${idle} of their ${all} ${devices.model} would be allocated and used by nothing; ` +
        `ask for more replicas of ${models.join(' or ')}, or for a node kind whose nodes are shared`,
    ];
  });
}
