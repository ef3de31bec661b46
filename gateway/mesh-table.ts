import { z } from 'zod';
import type { ApiKey } from '../ledger/index.ts';
import { isDevice } from '../solver/routing/filter.ts';
import { type DeviceDescription, provenProviderOf, type SessionRecord } from '../spec/session-record.ts';
import type { GatewayGossip } from './gateway-gossip.ts';
import { allowsModel } from './openai-handler.ts';
import type { Replica } from './routing/replica.ts';
import type { RoutingTable } from './routing/table.ts';
import type { SessionLink } from './session-link.ts';

/** What `GET /mesh/table` may be asked for; all of it must be true of a session. */
export const tableQuery = z.strictObject({
  /** Catalog name of a GPU or MIG slice, or its beginning; `any` for all of them. */
  gpu: z.string().min(1).max(128).optional(),
  /** Memory of one of its devices (one that `gpu` names, where it does), in GB of 10⁹ bytes. */
  memory_gb_min: z.coerce.number().positive().optional(),
  /** Name or alias of a model. */
  model: z.string().min(1).max(256).optional(),
  /** `user@site`, `*@site`, or the beginning of a fingerprint (8 digits at least). */
  provider: z.string().min(1).max(256).optional(),
  tier: z.enum(['stable', 'scavenger']).optional(),
});
export type TableQuery = z.infer<typeof tableQuery>;

/** Sessions that serve models, as this gateway sees them, with the loads they last reported. */
export function sessionRows(
  table: RoutingTable<SessionLink>,
  gossip: GatewayGossip,
  query: TableQuery = {},
  key?: ApiKey | undefined,
): object[] {
  return table.sessions().flatMap(({ record, session, reachable, replicas }) => {
    const { metadata } = record;
    if (!isAsked(record, query) || !isTrusted(record, key)) return [];
    const models = replicas.filter(({ served }) => maySee(served, key));
    if (models.length === 0 && replicas.length > 0) return [];
    return [
      {
        session_id: record.session_id,
        lifecycle: record.lifecycle,
        reachable,
        node: metadata.node,
        site: metadata.site,
        region: metadata.region,
        provider: metadata.provider,
        provider_id: provenProviderOf(record, Date.now()),
        tier: metadata.tier,
        engine: metadata.engine,
        engine_version: metadata.engine_version,
        deployment: metadata.deployment,
        job_id: metadata.job_id,
        job_end_time_ms: metadata.job_end_time_ms,
        started_at_ms: record.started_at_ms,
        clock_ahead_ms: session.clock_ahead_ms,
        devices: metadata.devices,
        ...gossip.sessionStatus(record.session_id),
        models: models.map(modelRow),
      },
    ];
  });
}

/** Nodes that are there and serve nothing yet: their agents' own sessions (`hpcserve run` without a command). */
export function idleNodeRows(
  records: readonly SessionRecord[],
  gossip: GatewayGossip,
  query: TableQuery,
  key: ApiKey | undefined,
): object[] {
  const busy = new Set(
    records
      .filter(({ metadata, lifecycle }) => metadata.role !== 'node-agent' && lifecycle !== 'LEFT')
      .map(({ metadata }) => metadata.launch_id),
  );
  return records
    .filter(
      (record) =>
        record.metadata.role === 'node-agent' &&
        record.lifecycle === 'SERVING' &&
        !busy.has(record.metadata.launch_id) &&
        isAsked(record, query) &&
        isTrusted(record, key),
    )
    .map(({ session_id, lifecycle, started_at_ms, metadata, ...record }) => ({
      session_id,
      lifecycle,
      reachable: true,
      node: metadata.node,
      site: metadata.site,
      region: metadata.region,
      provider: metadata.provider,
      provider_id: provenProviderOf(record, Date.now()),
      tier: metadata.tier,
      job_id: metadata.job_id,
      job_end_time_ms: metadata.job_end_time_ms,
      started_at_ms,
      devices: metadata.devices,
      ...gossip.sessionStatus(session_id),
      models: [],
    }));
}

/** Gateways of the mesh, wherever they are. */
export function gatewayRows(records: readonly SessionRecord[], gossip: GatewayGossip): object[] {
  return records
    .filter(({ metadata, lifecycle }) => metadata.role === 'gateway' && lifecycle !== 'LEFT')
    .map(({ session_id, lifecycle, started_at_ms, metadata, ...record }) => ({
      session_id,
      lifecycle,
      node: metadata.node,
      site: metadata.site,
      provider: metadata.provider,
      provider_id: provenProviderOf(record, Date.now()),
      addresses: metadata.addresses,
      started_at_ms,
      ...gossip.sessionStatus(session_id),
    }));
}

function modelRow({ served, ...load }: Replica<SessionLink>): object {
  return {
    name: served.name,
    aliases: served.aliases,
    precision: served.precision,
    context_tokens: served.context_tokens,
    slo: served.slo,
    pool: served.pool,
    handover_tokens_min: load.handover_tokens_min,
    error: served.error,
    state: load.state,
    // It answers, once it is back on its device.
    off_device: load.asleep || load.weights?.resting === true || undefined,
    running: load.running,
    waiting: load.waiting,
    max_sequences: load.max_sequences,
    unreported: load.unreported,
    kv_tokens_total: load.kv_tokens_total,
    kv_tokens_used: load.kv_tokens_used,
    prefix_cache: load.prefix_cache,
  };
}

function isAsked(
  { metadata, provider_id }: SessionRecord,
  { gpu, memory_gb_min, model, provider, tier }: TableQuery,
): boolean {
  if (tier !== undefined && metadata.tier !== tier) return false;
  if (provider !== undefined && !isProvider(provider, metadata.provider, provider_id)) return false;
  if (model !== undefined && !metadata.models.some(({ name, aliases }) => [name, ...aliases].includes(model)))
    return false;
  if (gpu === undefined && memory_gb_min === undefined) return true;
  return metadata.devices.some(
    (device) =>
      (gpu === undefined || isGpu(gpu, device)) &&
      (memory_gb_min === undefined || device.memory_bytes >= memory_gb_min * 1e9),
  );
}

function isGpu(asked: string, device: DeviceDescription): boolean {
  return device.kind !== 'cpu' && (asked === 'any' || isDevice(asked, device));
}

/** For looking around, where a name will do. */
function isProvider(asked: string, name: string, provider_id: string | undefined): boolean {
  if (/^[0-9a-f]{8,32}$/.test(asked)) return provider_id?.startsWith(asked) === true;
  return asked === name || (asked.startsWith('*@') && name.endsWith(asked.slice(1)));
}

function isTrusted(record: SessionRecord, key: ApiKey | undefined): boolean {
  const trusted = key?.settings.providers;
  if (trusted === undefined) return true;
  const provider_id = provenProviderOf(record, Date.now());
  return provider_id !== undefined && trusted.includes(provider_id);
}

function maySee({ name, aliases }: { name: string; aliases: string[] }, key: ApiKey | undefined): boolean {
  return key === undefined || [name, ...aliases].some((each) => allowsModel(key, each));
}
