/** Nodes with their devices, from the sessions that are on them. */
import type { MeshTable, SessionRow } from '../api/rows.ts';
import { stateOf } from '../parts/states.ts';

export interface DeviceView {
  session_id: string;
  model: string;
  emulated: boolean;
  memory_bytes: number;
  /** Of the best model on it; `idle` where there is none. */
  state: string;
  models: { name: string; state: string }[];
  running: number;
  places: number;
  kv_share?: number;
}

export interface NodeView {
  name: string;
  site: string;
  provider: string;
  tier: SessionRow['tier'];
  jobs: string[];
  started_at_ms?: number;
  /** The first end of the jobs on it; absent where there is no limit. */
  end_ms?: number;
  devices: DeviceView[];
}

export function nodeViews({ sessions, idle_nodes }: MeshTable): NodeView[] {
  const nodes = new Map<string, NodeView>();
  for (const session of [...sessions, ...idle_nodes]) {
    const { node: name, site, provider, tier, job_id, job_end_time_ms, started_at_ms } = session;
    const known = nodes.get(`${site}/${name}`);
    const node: NodeView = known ?? { name, site, provider, tier, jobs: [], devices: [] };
    nodes.set(`${site}/${name}`, node);
    if (job_id !== undefined && !node.jobs.includes(job_id)) node.jobs.push(job_id);
    if (job_end_time_ms !== undefined) node.end_ms = Math.min(node.end_ms ?? Infinity, job_end_time_ms);
    node.started_at_ms = Math.min(node.started_at_ms ?? Infinity, started_at_ms);
    node.devices.push(...devicesOf(session));
  }
  return [...nodes.values()].sort((a, b) =>
    `${a.site}/${a.name}`.localeCompare(`${b.site}/${b.name}`, 'en', { numeric: true }),
  );
}

/** Devices that a session has together compute the same sequences: the load stands at the first. */
function devicesOf(session: SessionRow): DeviceView[] {
  const models = session.models.map(({ name, state }) => ({ name, state: stateOf(session, state) }));
  const best = models.find(({ state }) => state === 'serving') ?? models[0];
  const sum = (field: 'running' | 'max_sequences' | 'kv_tokens_used' | 'kv_tokens_total'): number =>
    session.models.reduce((total, model) => total + (model[field] || 0), 0);
  const kv_total = sum('kv_tokens_total');
  return session.devices.map(({ model, emulated, memory_bytes }, at) => {
    const view: DeviceView = {
      session_id: session.session_id,
      model,
      emulated: emulated !== undefined,
      memory_bytes,
      state: best?.state ?? 'idle',
      models,
      running: at === 0 ? sum('running') : 0,
      places: at === 0 ? sum('max_sequences') : 0,
    };
    if (at === 0 && kv_total > 0) view.kv_share = sum('kv_tokens_used') / kv_total;
    return view;
  });
}
