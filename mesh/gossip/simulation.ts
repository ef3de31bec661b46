import type { SessionMetadata, SessionRecord } from '../../spec/session-record.ts';
import { type Entry, hasLeft } from '../entry.ts';
import { SessionTable } from '../session-table.ts';
import { GossipDriver } from './driver.ts';
import { GossipMember } from './member.ts';
import { type Host, MemoryNetwork, type NetworkOptions } from './memory-network.ts';
import { type GossipSettings, gossipPresets } from './settings.ts';

export interface SimulationOptions extends NetworkOptions {
  members: number;
  /** Clocks of members are wrong by up to so much, ms. */
  clock_error_ms?: number;
  settings?: Partial<GossipSettings>;
}

export interface SimulatedNode {
  host: Host;
  driver: GossipDriver;
  table: SessionTable;
  /** The id of its session, which changes where others took it for gone. */
  session_id: string;
  /** Tells of a new version of its record. */
  publish(): void;
}

/** Members on a network in memory, by seed; member, driver and table are those of real processes. */
export class GossipSimulation {
  readonly network: MemoryNetwork;
  readonly nodes: SimulatedNode[] = [];
  readonly #options: SimulationOptions;
  readonly #settings: GossipSettings;
  #count = 1;

  /** All members know each other, as after some time in peace. */
  constructor(options: SimulationOptions) {
    this.#options = options;
    this.#settings = { ...gossipPresets.lan, ...options.settings };
    this.network = new MemoryNetwork(options);
    const names = Array.from({ length: options.members }, (_, at) => nameOf(at));
    const records = names.map((name) => this.#record(name));
    for (const [at, name] of names.entries()) this.#add(name, records[at]!, records);
    this.run(3_000);
  }

  /** A new member that knows one other. */
  join(known = 0): SimulatedNode {
    const name = nameOf(this.nodes.length);
    const record = this.#record(name);
    const node = this.#add(name, record, []);
    node.table.merge(record, 'own');
    for (const { to, message } of node.driver.member.greet(nameOf(known))) node.host.send(to, message);
    return node;
  }

  /** Runs for so long. */
  run(duration_ms: number): void {
    this.network.run(duration_ms);
  }

  /** Runs until it is so, looking each `step_ms`. @returns how long that took; Infinity where it took too long */
  until(condition: () => boolean, { step_ms, most_ms }: { step_ms: number; most_ms: number }): number {
    const start_ms = this.network.now_ms;
    while (!condition()) {
      if (this.network.now_ms - start_ms >= most_ms) return Number.POSITIVE_INFINITY;
      this.run(step_ms);
    }
    return this.network.now_ms - start_ms;
  }

  /** Members that speak, whatever others think of them. */
  get speaking(): SimulatedNode[] {
    return this.nodes.filter(({ host }) => !host.silent);
  }

  /** Whether every member that speaks knows exactly the sessions of those that speak as not left. */
  get agrees(): boolean {
    const live = this.speaking;
    return live.every(
      ({ driver, table }) =>
        driver.member.ring.names.length === live.length &&
        live.every(({ session_id }) => {
          const entry = table.entry(session_id);
          return entry !== undefined && !hasLeft(entry);
        }),
    );
  }

  /** Whether all that speak have this node's record as it has it. */
  knowNewest({ session_id, table }: SimulatedNode): boolean {
    const newest = table.entry(session_id)?.record;
    return this.speaking.every((node) => node.table.entry(session_id)?.record === newest);
  }

  #add(name: string, own: Entry, known: readonly Entry[]): SimulatedNode {
    const { random } = this.network;
    const clock_error_ms = (2 * random() - 1) * (this.#options.clock_error_ms ?? 0);
    const host = this.network.host(name, clock_error_ms);
    const table = new SessionTable();
    for (const entry of known) table.merge(entry, 'folder');
    const member = new GossipMember({
      self: name,
      table,
      sealTombstone: (session_id, evidence, seen) => ({
        session_id,
        tombstone: this.#signed({ session_id, evidence, ...(seen ? { seen } : {}) }),
      }),
      // As a session of a process: when the step is done.
      refute: (session_id, { version }) =>
        this.network.schedule(this.network.now_ms, () => {
          if (!host.silent && session_id === node.session_id) publish(version + 1);
        }),
      settings: this.#settings,
      now_ms: () => host.now_ms(),
      random,
    });
    const driver = new GossipDriver(member, table, host, host);
    const node: SimulatedNode = {
      host,
      driver,
      table,
      session_id: own.session_id,
      publish: () => publish(table.entry(node.session_id)!.record!.value.version + 1),
    };
    const publish = (version: number): void => {
      const { value } = table.entry(node.session_id)!.record!;
      table.merge({ session_id: node.session_id, record: this.#signed({ ...value, version }) }, 'own');
    };
    table.onStep(({ session_id, after }) => {
      if (session_id !== node.session_id || !after || !hasLeft(after)) return;
      const record = this.#record(name);
      node.session_id = record.session_id;
      // As a session of a process: when the step is done.
      this.network.schedule(this.network.now_ms, () => {
        if (!host.silent) table.merge(record, 'own');
      });
    });
    this.nodes.push(node);
    return node;
  }

  #record(name: string): Entry {
    const { random } = this.network;
    const session_id = Array.from({ length: 4 }, () =>
      Math.floor(random() * 2 ** 32)
        .toString(16)
        .padStart(8, '0'),
    ).join('');
    const metadata: SessionMetadata = {
      role: 'node-agent',
      node: name,
      hostname: name,
      site: 'simulated',
      provider: 'nobody@simulated',
      tier: 'stable',
      devices: [],
      models: [],
      addresses: [],
      peer: { id: name, addresses: [] },
    };
    const value: SessionRecord = {
      session_id,
      public_key: '',
      lifecycle: 'SERVING',
      version: 0,
      started_at_ms: 0,
      metadata,
    };
    return { session_id, record: this.#signed(value) };
  }

  /** Nobody forges here: signatures are tested where they are made. */
  #signed<T>(value: T): { value: T; envelope: Uint8Array; fingerprint: number } {
    // Spread over 48 bits, so that sums of them do not meet by chance; the lower 32 are all different.
    const count = this.#count++;
    const fingerprint =
      (Math.imul(count, 0x9e3779b1) >>> 16) * 2 ** 32 + (Math.imul(count, 0x85ebca6b) >>> 0);
    const envelope = new Uint8Array(4);
    new DataView(envelope.buffer).setUint32(0, count);
    return { value, envelope, fingerprint };
  }
}

/** In the order of their numbers, as text. */
function nameOf(at: number): string {
  return `n${String(at).padStart(5, '0')}`;
}
