import type { SessionRecord } from '../../spec/session-record.ts';

interface Asking {
  /** Of the agent that asks. */
  own_id: string;
  node: string;
  site: string;
  deployment: string;
  /** Names of the models that are served here. */
  models: readonly string[];
}

/**
 * Workers of the site that may have tensors in memory, the likeliest first: those of the same deployment or model, and
 * of these the ones of this node, which may have in the memory of their devices what is in no page cache. Among them is
 * who asks: it offers nothing that it lacks.
 */
export function peersToAsk(records: readonly SessionRecord[], asking: Asking): SessionRecord[] {
  const { own_id, node, site, deployment, models } = asking;
  const near = ({ metadata }: SessionRecord): number => (metadata.node === node ? 0 : 1);
  const alike = ({ metadata }: SessionRecord): number =>
    metadata.deployment === deployment || metadata.models.some(({ name }) => models.includes(name)) ? 0 : 1;
  // Otherwise by chance that is the same for everybody who asks, and another for each: no peer is everybody's first.
  const chance = ({ session_id }: SessionRecord): number =>
    (Number.parseInt(session_id.slice(0, 8), 16) ^ Number.parseInt(own_id.slice(0, 8), 16)) >>> 0;
  return records
    .filter(({ metadata }) => metadata.role === 'device-worker' && metadata.site === site)
    .filter(hasLoaded)
    .sort((a, b) => alike(a) - alike(b) || near(a) - near(b) || chance(a) - chance(b));
}

/** One that has later stages alone, or none any more, lists no model and stays in JOIN; others begin to load there. */
function hasLoaded({ lifecycle, metadata }: SessionRecord): boolean {
  return lifecycle === 'SERVING' || (lifecycle === 'JOIN' && metadata.models.length === 0);
}
