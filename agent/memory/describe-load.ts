/** What a load brought, in words. */
import type { LoadLeg } from '../../spec/engine-contract.ts';
import type { WeightSources } from '../../spec/weight-sources.ts';
import type { WeightLoad } from './pooled-loading.ts';

export function describeLoad({
  reused_bytes,
  missing_bytes,
  read_ms,
  total_ms,
  peers,
  legs,
  past_cache,
}: WeightLoad): string {
  const there = `${megabytes(reused_bytes)} were there`;
  if (missing_bytes === 0) return `${there}: nothing was missing`;
  const rate = ((missing_bytes / 1e6) * 1000) / Math.max(read_ms, 1e-3);
  const brought = peers
    .filter(({ bytes }) => bytes > 0)
    .map(({ node, bytes }) => `, ${megabytes(bytes)} of them from the memory of ${node}`);
  const troubles = peers.flatMap(({ node, trouble }) =>
    trouble === undefined ? [] : [`; ${node}: ${trouble}`],
  );
  return [
    `${there}, ${megabytes(missing_bytes)} came in ${Math.round(total_ms)} ms (${Math.round(rate)} MB/s)`,
    ...brought,
    ...troubles,
    ...(past_cache === undefined ? [] : [`; ${past_cache}`]),
    ...(legs.length > 0 ? [`; a thread: ${legs.map(describeLeg).join(', ')}`] : []),
  ].join('');
}

/** The same for who is not here. */
export function weightSources({ reused_bytes, missing_bytes, total_ms, peers }: WeightLoad): WeightSources {
  const from = peers.filter(({ bytes }) => bytes > 0).map(({ node, bytes }) => [node, bytes] as const);
  const loaded: WeightSources = {
    reused_bytes,
    loaded_bytes: missing_bytes,
    duration_ms: total_ms,
    from_nodes: Object.fromEntries(from),
  };
  const troubles = peers.flatMap(({ node, trouble }) => (trouble === undefined ? [] : [[node, trouble]]));
  if (troubles.length > 0) loaded.troubles = Object.fromEntries(troubles);
  return loaded;
}

/** What one thread moved in a second of this part. */
function describeLeg({ leg, bytes, thread_ms }: LoadLeg): string {
  return `${leg} ${Math.round(bytes / 1e3 / Math.max(thread_ms, 1e-3))} MB/s of ${megabytes(bytes)}`;
}

function megabytes(bytes: number): string {
  return `${Math.round(bytes / 1e6)} MB`;
}
