import type { ModelLoad } from '../../spec/agent-state.ts';
import type { ServedModel, SessionRecord } from '../../spec/session-record.ts';
import type { Candidate } from './policy.ts';

/** One model on one session, as the router sees it. `T` is what the gateway keeps of a session. */
export class Replica<T> implements Candidate {
  readonly session: T;
  readonly session_id: string;
  readonly served: ServedModel;
  /** The model's name as a header field carries it: names may hold any character. */
  readonly modelField: string;
  state: ServedModel['state'];
  running = 0;
  waiting = 0;
  max_sequences = 1;
  unreported = 0;

  constructor(session: T, session_id: string, served: ServedModel) {
    this.session = session;
    this.session_id = session_id;
    this.served = served;
    this.modelField = encodeURI(served.name);
    this.state = served.state;
  }

  report(load: ModelLoad): void {
    this.state = load.state;
    this.running = load.running;
    this.waiting = load.waiting;
    this.max_sequences = Math.max(1, load.max_sequences);
    this.unreported = 0;
  }
}

/** Where requests for one name may go. */
export interface Route<T> {
  /** The name as asked for: a model's own, or an alias of it. */
  name: string;
  /** Replicas that can answer now. */
  candidates: Replica<T>[];
  /** Those that cannot: weights loading, failed, session unreachable or ending. */
  others: Replica<T>[];
}

interface Entry<T> {
  record: SessionRecord;
  /** Whether its watch stream is open: without it nobody knows whether it lives. */
  reachable: boolean;
  replicas: Replica<T>[];
}

/** Every session that serves models, and from that, names to replicas. Rebuilt on change, read on every request. */
export class RoutingTable<T> {
  readonly #entries = new Map<string, Entry<T>>();
  #routes = new Map<string, Route<T>>();

  /** Takes a session in, or its changed record. */
  set(record: SessionRecord, session: T): void {
    const known = this.#entries.get(record.session_id);
    const replicas = record.metadata.models.map((served) => {
      const old = known?.replicas.find((replica) => replica.served.name === served.name);
      const replica = new Replica(session, record.session_id, served);
      if (old) {
        replica.running = old.running;
        replica.waiting = old.waiting;
        replica.max_sequences = old.max_sequences;
        replica.unreported = old.unreported;
      }
      return replica;
    });
    this.#entries.set(record.session_id, { record, reachable: known?.reachable ?? false, replicas });
    this.#rebuild();
  }

  remove(session_id: string): void {
    if (this.#entries.delete(session_id)) this.#rebuild();
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
      replica.report(load);
    }
    if (changed) this.#rebuild();
  }

  find(name: string): Route<T> | undefined {
    return this.#routes.get(name);
  }

  /** Every name there is, served now or not. */
  routes(): Iterable<Route<T>> {
    return this.#routes.values();
  }

  sessions(): { record: SessionRecord; reachable: boolean; replicas: readonly Replica<T>[] }[] {
    return [...this.#entries.values()];
  }

  #rebuild(): void {
    const routes = new Map<string, Route<T>>();
    for (const { record, reachable, replicas } of this.#entries.values()) {
      for (const replica of replicas) {
        const answers = reachable && record.lifecycle === 'SERVING' && replica.state === 'serving';
        for (const name of [replica.served.name, ...replica.served.aliases]) {
          let route = routes.get(name);
          if (!route) {
            route = { name, candidates: [], others: [] };
            routes.set(name, route);
          }
          const list = answers ? route.candidates : route.others;
          // A model may list its own name among its aliases.
          if (!list.includes(replica)) list.push(replica);
        }
      }
    }
    this.#routes = routes;
  }
}
