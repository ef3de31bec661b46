/** Models as people think of them: all replicas of a name together, and those that are still to come. */
import type { DeploymentRow, JobRow } from '../../../spec/deployment-row.ts';
import type { MeshTable, ReplicaRow, SessionRow } from '../api/rows.ts';
import { hardware, stateOf } from '../parts/states.ts';

export interface ModelView {
  name: string;
  aliases: string[];
  /** Of its best replica; `pending` or `asleep` where it has none. */
  state: string;
  replicas: { session: SessionRow; replica: ReplicaRow }[];
  serving_replicas: number;
  hardware: string;
  engines: string[];
  precisions: string[];
  context_tokens: number;
  running: number;
  waiting: number;
  places: number;
  kv_share?: number;
  /** Jobs of its deployments that wait. */
  pending: JobRow[];
  asleep_since_ms?: number;
  wake_s?: number;
  /** What a filter looks in, in lower case. */
  search: string;
}

const order = ['serving', 'loading', 'pending', 'draining', 'stalled', 'unreachable', 'failed', 'unloaded'];
const rank = (state: string): number => (order.includes(state) ? order.indexOf(state) : order.length);

export function modelViews({ sessions }: MeshTable, deployments: readonly DeploymentRow[]): ModelView[] {
  const views = new Map<string, ModelView>();
  const viewOf = (name: string): ModelView => {
    const view = views.get(name) ?? emptyView(name);
    views.set(name, view);
    return view;
  };
  for (const session of sessions)
    for (const replica of session.models) viewOf(replica.name).replicas.push({ session, replica });
  for (const deployment of deployments)
    for (const model of deployment.models) {
      const view = viewOf(model.name);
      view.aliases.push(...model.aliases);
      view.pending.push(...deployment.jobs.filter(isWaiting));
      if (model.asleep_since_ms !== undefined) view.asleep_since_ms = model.asleep_since_ms;
      if (model.wake_s !== undefined) view.wake_s = model.wake_s;
    }
  return [...views.values()].map(complete).sort((a, b) => a.name.localeCompare(b.name));
}

export function isWaiting({ phase, state, superseded, waits_for }: JobRow): boolean {
  if (phase === 'ended' || superseded) return false;
  return phase !== 'submitted' || waits_for !== undefined || state === 'PENDING';
}

function emptyView(name: string): ModelView {
  return {
    name,
    aliases: [],
    state: 'pending',
    replicas: [],
    serving_replicas: 0,
    hardware: '',
    engines: [],
    precisions: [],
    context_tokens: 0,
    running: 0,
    waiting: 0,
    places: 0,
    pending: [],
    search: '',
  };
}

function complete(view: ModelView): ModelView {
  const states = view.replicas.map(({ session, replica }) => stateOf(session, replica.state));
  const answering = view.replicas.filter((_, at) => states[at] === 'serving');
  const sum = (
    field: 'running' | 'waiting' | 'max_sequences' | 'kv_tokens_used' | 'kv_tokens_total',
  ): number => answering.reduce((total, { replica }) => total + (replica[field] || 0), 0);
  const unique = (values: (string | undefined)[]): string[] =>
    [...new Set(values.filter((value) => value !== undefined))].sort();
  const shown = answering.length > 0 ? answering : view.replicas;
  const none = view.asleep_since_ms === undefined ? 'pending' : 'asleep';
  const all: ModelView = {
    ...view,
    aliases: unique([...view.aliases, ...view.replicas.flatMap(({ replica }) => replica.aliases)]),
    state: states.sort((a, b) => rank(a) - rank(b))[0] ?? none,
    serving_replicas: answering.length,
    hardware: hardware(shown.flatMap(({ session }) => session.devices)),
    engines: unique(view.replicas.map(({ session }) => session.engine)),
    precisions: unique(view.replicas.map(({ replica }) => replica.precision)),
    context_tokens: Math.min(...shown.map(({ replica }) => replica.context_tokens)),
    running: sum('running'),
    waiting: sum('waiting'),
    places: sum('max_sequences'),
  };
  if (shown.length === 0) all.context_tokens = 0;
  if (sum('kv_tokens_total') > 0) all.kv_share = sum('kv_tokens_used') / sum('kv_tokens_total');
  const nodes = view.replicas.map(({ session }) => session.node);
  all.search = [all.name, all.aliases, all.hardware, all.engines, all.state, nodes]
    .flat()
    .join(' ')
    .toLowerCase();
  return all;
}
