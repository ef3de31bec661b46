import type { ModelLoad } from '../../spec/agent-state.ts';
import type { ModelState, SessionRecord } from '../../spec/session-record.ts';
import { DeviceOnLink } from './device-on-link.ts';
import { Replica } from './replica.ts';

/** Where requests for one name may go. */
export interface Route<T> {
  /** The name as asked for: a model's own, or an alias of it. */
  readonly name: string;
  /** Replicas that can answer now. */
  readonly candidates: readonly Replica<T>[];
  /** Those that cannot: weights loading, failed, session unreachable or ending. */
  readonly others: readonly Replica<T>[];
  /** Of these, the ones that load: they will answer. */
  readonly coming: readonly Replica<T>[];
  /** Names of the models behind it: several where they share an alias. */
  readonly models: readonly string[];
}

interface Entry<T> {
  record: SessionRecord;
  session: T;
  /** Whether its watch stream is open: without it nobody knows whether it lives. */
  reachable: boolean;
  replicas: Replica<T>[];
  /** Absent: of a wrapped engine. */
  device: DeviceOnLink | undefined;
}

/** Losses are of interest for so long, and as long as another replica loads. */
const forgotten_ms = 60_000;

/** Every session that serves models, and from that, names to replicas. Rebuilt on change, read on every request. */
export class RoutingTable<T> {
  readonly #entries = new Map<string, Entry<T>>();
  #routes = new Map<string, Route<T>>();
  /**
   * Names whose last replica was lost, and when, on the monotonic clock. One whose first session was only just heard of
   * counts as lost then: the way to it is not open yet.
   */
  readonly #lost_ms = new Map<string, number>();
  #emptied: (session_id: string) => void = () => undefined;

  /** Runs where the caches of a session are empty: it left, or its engine went to sleep. */
  onEmptied(callback: (session_id: string) => void): void {
    this.#emptied = callback;
  }

  /** Takes a session in, or its changed record. */
  set(record: SessionRecord, session: T): void {
    const known = this.#entries.get(record.session_id);
    const replicas = record.metadata.models.map((served) => {
      const old = known?.replicas.find((replica) => replica.served.name === served.name);
      const replica = new Replica(session, record, served);
      if (old) replica.inherit(old);
      return replica;
    });
    const device = record.metadata.engine === 'native' ? new DeviceOnLink(record, replicas) : undefined;
    for (const replica of replicas) {
      replica.beside = replicas;
      replica.on_link = device;
    }
    const reachable = known?.reachable ?? false;
    this.#entries.set(record.session_id, { record, session, reachable, replicas, device });
    this.#rebuild();
  }

  remove(session_id: string): void {
    if (!this.#entries.delete(session_id)) return;
    this.#emptied(session_id);
    this.#rebuild();
  }

  setReachable(session_id: string, reachable: boolean): void {
    const entry = this.#entries.get(session_id);
    if (!entry || entry.reachable === reachable) return;
    entry.reachable = reachable;
    this.#rebuild();
  }

  /** What a session says about its models in a heartbeat. */
  report(session_id: string, loads: readonly ModelLoad[]): void {
    const entry = this.#entries.get(session_id);
    if (!entry) return;
    let changed = false;
    for (const load of loads) {
      const replica = entry.replicas.find(({ served }) => served.name === load.name);
      if (!replica) continue;
      if (replica.state !== load.state) changed = true;
      if (load.asleep === true && !replica.asleep) this.#emptied(session_id);
      replica.report(load);
    }
    if (changed) this.#rebuild();
  }

  find(name: string): Route<T> | undefined {
    return this.#routes.get(name);
  }

  /**
   * Since when a name has no replica that was there, or is about to be: on the monotonic clock; undefined where it has
   * one, or none was heard of.
   */
  lostAt_ms(name: string): number | undefined {
    return this.#lost_ms.get(name);
  }

  /** Every name there is, served now or not. */
  routes(): Iterable<Route<T>> {
    return this.#routes.values();
  }

  sessions(): {
    record: SessionRecord;
    session: T;
    reachable: boolean;
    replicas: readonly Replica<T>[];
    device: DeviceOnLink | undefined;
  }[] {
    return [...this.#entries.values()];
  }

  /** Of each link that weights are streamed over one device that does so. */
  linkedDevices(): DeviceOnLink[] {
    const byLink = new Map<string, DeviceOnLink>();
    for (const { device, reachable } of this.#entries.values())
      if (reachable && device?.streams) byLink.set(device.link, device);
    return [...byLink.values()];
  }

  #rebuild(): void {
    // What one that cannot be reached does now nobody knows.
    DeviceOnLink.join(
      [...this.#entries.values()].flatMap(({ device, reachable }) => (device && reachable ? device : [])),
    );
    const byName = new Map<string, { lists: Record<Readiness, Replica<T>[]>; own: boolean }>();
    const add = (name: string, replica: Replica<T>, readiness: Readiness, own: boolean): void => {
      let route = byName.get(name);
      if (!route || (own && !route.own)) {
        // A model's own name is no other's alias, whoever gave it.
        route = { lists: { answers: [], comes: [], cannot: [] }, own };
        byName.set(name, route);
      } else if (route.own && !own) return;
      const list = route.lists[readiness];
      // An alias may be listed twice.
      if (list.at(-1) !== replica) list.push(replica);
    };
    for (const entry of this.#entries.values()) {
      for (const replica of entry.replicas) {
        const readiness = readinessOf(entry, replica.state);
        const { name, aliases } = replica.served;
        add(name, replica, readiness, true);
        for (const alias of aliases) add(alias, replica, readiness, false);
      }
    }
    const before = this.#routes;
    this.#routes = new Map(
      [...byName].map(([name, { lists }]) => {
        const { answers: candidates, comes: coming, cannot } = lists;
        const others = [...coming, ...cannot];
        const models = [...new Set([...candidates, ...others].map(({ served }) => served.name))].sort();
        return [name, { name, candidates, others, coming, models }];
      }),
    );
    this.#noteLosses(before);
  }

  #noteLosses(before: ReadonlyMap<string, Route<T>>): void {
    const answers = (route: Route<T> | undefined): boolean => (route?.candidates.length ?? 0) > 0;
    const now_ms = performance.now();
    for (const [name, route] of before)
      if (answers(route) && !answers(this.#routes.get(name))) this.#lost_ms.set(name, now_ms);
    for (const [name, route] of this.#routes)
      if (!before.has(name) && !answers(route) && route.others.some(({ state }) => mayServe(state)))
        this.#lost_ms.set(name, now_ms);
    for (const [name, lost_ms] of this.#lost_ms) {
      const route = this.#routes.get(name);
      const forgotten = now_ms - lost_ms > forgotten_ms && (route?.coming.length ?? 0) === 0;
      if (answers(route) || forgotten) this.#lost_ms.delete(name);
    }
  }
}

/** What can be expected of a replica. */
type Readiness = 'answers' | 'comes' | 'cannot';

/** Whether a replica in this state serves, or will. */
function mayServe(state: ModelState): boolean {
  return state === 'serving' || state === 'pending' || state === 'loading';
}

function readinessOf(
  { record: { lifecycle }, reachable }: Pick<Entry<unknown>, 'record' | 'reachable'>,
  state: ModelState,
): Readiness {
  if (!reachable) return 'cannot';
  if (lifecycle === 'SERVING' && state === 'serving') return 'answers';
  // A replica says that it serves some time before the mesh has heard that its session does.
  return mayServe(state) && (lifecycle === 'JOIN' || lifecycle === 'SERVING') ? 'comes' : 'cannot';
}
