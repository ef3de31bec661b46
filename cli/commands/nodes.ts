import type { Command } from 'commander';
import { type MeshQuery, type MeshSession, meshSessions } from '../../control/gateway/admin.ts';
import { inspectGateways } from '../../control/gateway/process.ts';
import { joinedOffers } from '../../control/plan/joined-offers.ts';
import { liveFacts } from '../../control/plan/live-facts.ts';
import { offersOf } from '../../control/plan/site-offers.ts';
import { isDevice } from '../../solver/routing/filter.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { NodeKindOffer } from '../../spec/plan.ts';
import { describeProvider } from '../../spec/session-record.ts';
import { formatSlurmDuration } from '../../spec/slurm-types.ts';
import type { StateLayout } from '../../spec/state-layout.ts';
import type { CliContext } from '../context.ts';
import { describeIsa } from '../format/isa.ts';
import { formatBytes } from '../format/quantities.ts';
import { fittedTable } from '../format/table.ts';
import { textWidth } from '../format/wrap.ts';
import { addMeshOptions, type MeshOptions, meshQuery } from '../mesh-options.ts';
import { openEndpoint, openSession } from '../site-session.ts';

export function registerNodes(command: Command, context: CliContext): void {
  addMeshOptions(command)
    .addHelpText(
      'after',
      `
Node kinds are what the site offers. Nodes in the mesh are those that serve now, as a gateway of the site sees them;
only they have models and providers.

Examples:
  $ hpcserve nodes
  $ hpcserve nodes --gpu GH200 --memory-gb 80
  $ hpcserve nodes --model my-model --json
  $ hpcserve nodes --site perlmutter --json`,
    )
    .action(async (options: MeshOptions) => {
      const operations = openSession(context, { command: 'hpcserve nodes' });
      const query = meshQuery(options);
      const ofMesh = query.model !== undefined || query.provider !== undefined;
      const live = ofMesh ? undefined : await liveFacts(operations);
      const offers = ofMesh
        ? []
        : [
            ...offersOf(operations.loaded.site, live, context.environment),
            ...joinedOffers(
              operations.loaded.site,
              operations.loaded.layout,
              context.environment,
              'all',
              context.now_ms(),
            ),
          ].filter((offer) => isAsked(offer, query));
      const { nodes, because } = await nodesInMesh(context, operations.loaded.layout, query);
      if (context.json)
        return context.out(
          JSON.stringify({
            site: operations.loaded.site.name,
            ...(ofMesh ? {} : { node_kinds: offers }),
            ...(nodes ? { nodes } : {}),
          }),
        );
      if (!ofMesh)
        for (const line of fittedTable(titled(kindTitles), offers.map(rowOf), textWidth(context)))
          context.out(line);
      if (because !== undefined) return context.note(`nodes that serve are not known: ${because}`);
      if (!nodes || nodes.length === 0) return context.note('no node in the mesh is like that');
      if (!ofMesh) context.out('');
      for (const line of fittedTable(titled(nodeTitles), nodes.map(nodeRow), textWidth(context)))
        context.out(line);
    });
}

const kindTitles = [
  'NODE KIND',
  'TIER',
  'PARTITION',
  'NODES',
  'IDLE',
  'CPUS',
  'MEMORY',
  'DEVICES',
  'LONGEST',
  'ENGINES',
];
const nodeTitles = [
  'NODE',
  'SITE',
  'PROVIDER',
  'TIER',
  'DEVICES',
  'MODELS',
  'LOAD',
  'KNOWN BY',
  'HEARD',
  'UNTIL',
];

function titled(titles: readonly string[]): { title: string }[] {
  return titles.map((title) => ({ title }));
}

/** A node as the mesh knows it: all sessions there together. */
interface MeshNode {
  node: string;
  site: string;
  provider: string;
  provider_id?: string | undefined;
  tier: string;
  devices: MeshSession['devices'];
  models: { name: string; state: string; precision: string; reachable: boolean }[];
  /** Requests that are computed, and that wait. */
  running: number;
  waiting: number;
  /** How its records came to the gateway: own, folder, gossip. */
  sources: string[];
  /** Since its last sign of life in the gossip. */
  heard_ms_ago?: number;
  job_end_time_ms?: number;
  clock_ahead_ms?: number;
}

/** Nodes that serve, as a gateway sees them; none and no reason where the site has no gateway. */
async function nodesInMesh(
  context: CliContext,
  layout: StateLayout,
  query: MeshQuery,
): Promise<{ nodes?: MeshNode[]; because?: string }> {
  const gateways = await inspectGateways(layout);
  if (gateways.every(({ status }) => status.state === 'not_running')) return { nodes: [] };
  try {
    const endpoint = await openEndpoint(context);
    const byNode = new Map<string, MeshNode>();
    for (const session of await meshSessions(endpoint, endpoint.key, query, context.signal)) {
      const {
        node,
        site,
        provider,
        provider_id,
        tier,
        devices,
        models,
        reachable,
        job_end_time_ms,
        clock_ahead_ms,
      } = session;
      const id = `${node} ${site} ${provider} ${provider_id}`;
      const nothing = { devices: [], models: [], running: 0, waiting: 0, sources: [] };
      const known: MeshNode = byNode.get(id) ?? { node, site, provider, provider_id, tier, ...nothing };
      known.devices.push(...devices);
      known.models.push(
        ...models.map(({ name, state, precision }) => ({ name, state, precision, reachable })),
      );
      for (const { running, waiting } of models) {
        known.running += running;
        known.waiting += waiting;
      }
      known.sources = [...new Set([...known.sources, ...session.sources])];
      if (session.heard_ms_ago !== undefined)
        known.heard_ms_ago = Math.min(known.heard_ms_ago ?? Number.POSITIVE_INFINITY, session.heard_ms_ago);
      if (job_end_time_ms !== undefined) known.job_end_time_ms = job_end_time_ms;
      if (clock_ahead_ms !== undefined) known.clock_ahead_ms = clock_ahead_ms;
      byNode.set(id, known);
    }
    return { nodes: [...byNode.values()].sort((a, b) => (a.node < b.node ? -1 : 1)) };
  } catch (thrown) {
    const error = HpcserveError.from(thrown);
    if (error.code !== 'E_GATEWAY_UNREACHABLE' && error.code !== 'E_CREDENTIALS') throw error;
    return { because: [error.message, ...error.because].join(': ') };
  }
}

function nodeRow(found: MeshNode): string[] {
  const { node, site, provider, provider_id, tier, devices, models, job_end_time_ms, heard_ms_ago } = found;
  const counts = new Map<string, number>();
  for (const { model, memory_bytes, isa, emulated } of devices) {
    const sets = describeIsa(isa);
    const description = `${model} ${formatBytes(memory_bytes)}${emulated ? ' (emulated)' : sets === '' ? '' : ` (${sets})`}`;
    counts.set(description, (counts.get(description) ?? 0) + 1);
  }
  return [
    node,
    site,
    describeProvider(provider, provider_id),
    tier,
    [...counts].map(([description, count]) => `${count}× ${description}`).join(', ') || '-',
    models
      .map(({ name, state, reachable }) =>
        state === 'serving' && reachable ? name : `${name} (${reachable ? state : 'unreachable'})`,
      )
      .join(', '),
    `${found.running}${found.waiting > 0 ? ` (${found.waiting} wait)` : ''}`,
    found.sources.join(', ') || '-',
    heard_ms_ago === undefined ? '-' : `${(heard_ms_ago / 1000).toFixed(1)} s ago`,
    job_end_time_ms === undefined ? '-' : `${new Date(job_end_time_ms).toISOString().slice(0, 16)}Z`,
  ];
}

/** Whether a kind of nodes has what is asked for. */
function isAsked({ devices, tier }: NodeKindOffer, { gpu, memory_gb_min, tier: wanted }: MeshQuery): boolean {
  if (wanted !== undefined && tier !== wanted) return false;
  if (memory_gb_min !== undefined && devices.memory_bytes < memory_gb_min * 1e9) return false;
  return gpu === undefined || (devices.kind !== 'cpu' && (gpu === 'any' || isDevice(gpu, devices)));
}

function rowOf(offer: NodeKindOffer): string[] {
  const { devices } = offer;
  return [
    offer.node_kind,
    offer.tier,
    offer.partitions.join(',') || '-',
    offer.nodes_total === Number.MAX_SAFE_INTEGER ? '-' : String(offer.nodes_total),
    offer.nodes_idle === undefined ? '-' : String(offer.nodes_idle),
    String(offer.cpus),
    formatBytes(offer.memory_bytes),
    `${devices.count}× ${devices.model} ${formatBytes(devices.memory_bytes)}${devices.emulated ? ' (emulated on CPU)' : ''}`,
    offer.time_limit_max_s === undefined ? '-' : formatSlurmDuration(offer.time_limit_max_s),
    Object.entries(offer.engines)
      .filter(([, engine]) => engine?.available)
      .map(([name]) => name)
      .join(', '),
  ];
}
