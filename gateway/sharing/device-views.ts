/** The devices of native replicas, as their workers see them at one moment. */
import type { DeviceView, InstanceView, ModelOnDevice } from '../../solver/sharing/device-view.ts';
import { GrowingProfile } from '../../solver/sharing/growing-profile.ts';
import { defaultSharingSettings, type SharingSettings } from '../../solver/sharing/settings.ts';
import { type SharedDeviceView, sharedDeviceViewSchema } from '../../spec/device-view.ts';
import { agentPaths } from '../../spec/wire.ts';
import type { GatewayLog } from '../log.ts';
import type { RoutingTable } from '../routing/table.ts';
import { AccessRefused, type SessionLink } from '../session-link.ts';

/** A provider that does not let this gateway see what its devices do is not asked again for so long. */
const refused_ms = 60_000;
/** Until when, by the link to a session. */
const refused = new WeakMap<SessionLink, number>();

/** A worker answers between two iterations; one that takes longer is left out. */
const answer_ms = 2000;

export interface SeenDevice {
  link: SessionLink;
  view: DeviceView;
  /** Models that have no instance there now, as one would run. */
  resting: readonly ModelOnDevice[];
  settings: SharingSettings;
}

/**
 * Those that answer, in the order of their sessions' ids, so that all gateways decide alike. Times count from now.
 * @param near only these sessions, and those that serve a model of theirs; absent: all
 */
export async function seeDevices(
  table: RoutingTable<SessionLink>,
  log: GatewayLog,
  near?: readonly string[],
): Promise<SeenDevice[]> {
  const sessions = table.sessions();
  const models = new Set(
    sessions
      .filter(({ record }) => near?.includes(record.session_id))
      .flatMap(({ replicas }) => replicas.map(({ served }) => served.name)),
  );
  const asked = sessions.map(async ({ record, reachable, replicas }): Promise<SeenDevice[]> => {
    const replica = replicas[0];
    if (!reachable || record.metadata.engine !== 'native' || !replica) return [];
    if (near && !replicas.some(({ served }) => models.has(served.name))) return [];
    const { session: link, cpu } = replica;
    if (performance.now() < (refused.get(link) ?? 0)) return [];
    try {
      const told = sharedDeviceViewSchema.parse(await link.ask(agentPaths.sharing, answer_ms));
      const compute = record.metadata.devices.map(({ model }) => model).join(' + ');
      const settings = { ...defaultSharingSettings, ...told.settings } as SharingSettings;
      const view = viewOf(record.session_id, cpu ? 'cpu' : 'gpu', compute, told);
      const resting = told.resting.map((model) => ({
        ...model,
        profile: new GrowingProfile(model.profile).profile,
      }));
      return [{ link, settings, view, resting }];
    } catch (error) {
      if (error instanceof AccessRefused) {
        const facts = { session: record.session_id, reason: error.message };
        if (!refused.has(link)) log.warn(facts, 'a device takes no part in moves');
        refused.set(link, performance.now() + refused_ms);
        return [];
      }
      // It ended meanwhile, or computes for longer: it takes no part in this look.
      log.info({ session: record.session_id, reason: (error as Error).message }, 'a device was not seen');
      return [];
    }
  });
  const seen = (await Promise.all(asked)).flat();
  keepCarries(seen.flatMap(({ view }) => view.instances));
  return seen.sort((a, b) => (a.view.id < b.view.id ? -1 : 1));
}

function requestOf(
  session_id: string,
  { first_token_ms, background, ...told }: SharedDeviceView['instances'][number]['requests'][number],
): InstanceView['requests'][number] {
  const request: InstanceView['requests'][number] = { ...told, id: `${session_id}:${told.id}` };
  if (first_token_ms !== undefined) request.first_token_ms = first_token_ms;
  if (background !== undefined) request.background = background;
  return request;
}

/** KV goes from one worker to another only where both can. */
function keepCarries(instances: readonly InstanceView[]): void {
  const cannot = new Set(instances.filter(({ carry }) => !carry).map(({ model }) => model));
  for (const instance of instances) if (cannot.has(instance.model)) delete instance.carry;
}

/** Memory on the way is the workers' business: they take as much at once as they have. */
function carryOf(kv_moves: SharedDeviceView['instances'][number]['kv_moves']): Pick<InstanceView, 'carry'> {
  return kv_moves ? { carry: { ...kv_moves, free_bytes: Number.POSITIVE_INFINITY } } : {};
}

function viewOf(
  session_id: string,
  kind: DeviceView['kind'],
  compute: string,
  { pool_bytes, budget_bytes, held_bytes, instances }: SharedDeviceView,
): DeviceView {
  return {
    id: session_id,
    kind,
    compute,
    pool_bytes,
    budget_bytes,
    held_bytes,
    release_ms: 0,
    instances: instances.map(({ profile, requests, kv_moves, ...instance }) => ({
      ...instance,
      ...carryOf(kv_moves),
      id: `${instance.model} on ${session_id.slice(0, 8)}`,
      profile: new GrowingProfile(profile).profile,
      stays: true,
      requests: requests.map((request) => requestOf(session_id, request)),
    })),
  };
}
