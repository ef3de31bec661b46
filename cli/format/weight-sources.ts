/** Where the weights of native models came from, as `status` says it. */
import type { DeploymentReport, UnitReport } from '../../control/status.ts';
import type { WeightSources } from '../../spec/weight-sources.ts';
import { alikeLines } from './alike.ts';
import { formatBytes, formatDuration } from './quantities.ts';
import { printable } from './style.ts';

/**
 * `cut-0: stage 0 on a1: 76.0 MiB were there; stage 1 on gh2: 92.0 MiB in 2 s, of them 84.0 MiB from the memory of a2`,
 * for replicas that are cut, and others where nodes had something to do with it.
 */
export function weightSourceLines(report: DeploymentReport, width: number): string[] {
  return alikeLines(report, width, 'weights as they were loaded last:', describeUnit);
}

function describeUnit({ stages, loaded }: UnitReport): string | undefined {
  if (!stages) return loaded && hasPeers(loaded) ? describeLoaded(loaded) : undefined;
  const known = [...stages]
    .sort((a, b) => a.stage - b.stage)
    .flatMap(({ stage, node, loaded: own }) =>
      own ? [`stage ${stage} on ${printable(node)}: ${describeLoaded(own)}`] : [],
    );
  return known.length > 0 ? known.join('; ') : undefined;
}

function hasPeers({ from_nodes, troubles = {} }: WeightSources): boolean {
  return Object.keys(from_nodes).length + Object.keys(troubles).length > 0;
}

function describeLoaded({
  reused_bytes,
  loaded_bytes,
  duration_ms,
  from_nodes,
  troubles = {},
}: WeightSources): string {
  const nodes = Object.entries(from_nodes).map(
    ([node, bytes]) => `${formatBytes(bytes)} from the memory of ${printable(node)}`,
  );
  const parts = [
    ...(reused_bytes > 0 || loaded_bytes === 0 ? [`${formatBytes(reused_bytes)} were there`] : []),
    ...(loaded_bytes > 0 ? [`${formatBytes(loaded_bytes)} in ${formatDuration(duration_ms)}`] : []),
    ...(nodes.length > 0 ? [`of them ${nodes.join(' and ')}`] : []),
    ...Object.entries(troubles).map(
      ([node, trouble]) => `no more from ${printable(node)}: ${printable(trouble)}`,
    ),
  ];
  return parts.join(', ');
}
