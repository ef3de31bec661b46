/**
 * How much others may bring into the table of a member. Who has the network key is let in, not trusted with all memory
 * and time: what a record's origin has in the table is bounded, and what a member brings a second, whoever made it,
 * since honest members pass on everybody's records.
 */
import type { Entry } from './entry.ts';
import type { PeerName } from './gossip/messages.ts';
import type { SessionTable } from './session-table.ts';

/** Rows of the table and bytes of their envelopes. */
export interface TableUsage {
  rows: number;
  bytes: number;
}

export interface TableBounds {
  /**
   * What names one member: its sessions, and those of the last ten minutes that left. Lower: nodes with many devices
   * are cut short; higher: one member that makes up sessions costs more, `rows_max` links of a gateway.
   */
  member: TableUsage;
  /**
   * What proves one provider, or none: all nodes of a user at a site. Lower: large users are cut short; higher: one
   * takes more of what is for all.
   */
  provider: TableUsage;
  /**
   * All that came by gossip. Lower: smaller meshes; higher: more memory, about 3 bytes for each byte of an envelope.
   */
  all: TableUsage;
  /**
   * What one member may bring at once, and a second, that is new here. Lower: who joins has the whole table later,
   * since the rest comes with later push-pulls (2 s, or 0.3 s); higher: longer without a pause, 0.1 ms for each KiB.
   */
  relayed_burst_bytes: number;
  relayed_bytes_per_s: number;
}

const KiB = 1024;
const MiB = 1024 * KiB;

/**
 * A thousand nodes of one user with five sessions each, of 2 KB, have 5,000 rows and 10 MB; members that bring them, 1
 * MB a second.
 */
export const defaultTableBounds: TableBounds = {
  member: { rows: 256, bytes: 2 * MiB },
  provider: { rows: 10_000, bytes: 32 * MiB },
  all: { rows: 20_000, bytes: 64 * MiB },
  relayed_burst_bytes: 4 * MiB,
  relayed_bytes_per_s: 512 * KiB,
};

export type Excess = 'member' | 'provider' | 'all';

/** Whose bound a record would break that adds so much; undefined where it breaks none. */
export function excessOf(
  used: Record<Excess, TableUsage>,
  added: TableUsage,
  bounds: Pick<TableBounds, Excess>,
): Excess | undefined {
  return (['member', 'provider', 'all'] as const).find((whose) => {
    const { rows, bytes } = used[whose];
    // What makes nothing larger passes: a session must be able to say that it leaves.
    const grows = added.rows > 0 || added.bytes > 0;
    return grows && (rows + added.rows > bounds[whose].rows || bytes + added.bytes > bounds[whose].bytes);
  });
}

/** Members whose rate is remembered. */
const senders_max = 4096;
const nothing: TableUsage = { rows: 0, bytes: 0 };

/** What is in a table, by origin, and who brought how much of late. */
export class TableAccounts {
  readonly #table: SessionTable;
  readonly #bounds: TableBounds;
  readonly #used = new Map<string, TableUsage>();
  readonly #senders = new Map<PeerName, { bytes: number; at_ms: number }>();

  constructor(table: SessionTable, bounds: TableBounds = defaultTableBounds) {
    this.#table = table;
    this.#bounds = bounds;
    for (const entry of table.entries()) this.#count(entry, 1);
    table.onStep(({ before, after }) => {
      this.#count(before, -1);
      this.#count(after, 1);
    });
  }

  /**
   * Takes bytes that a member brings and that are new here off what it may bring. @returns whether they are still
   * within it
   */
  takes(from: PeerName, bytes: number, now_ms: number): boolean {
    const { relayed_burst_bytes, relayed_bytes_per_s } = this.#bounds;
    const sender = this.#senders.get(from);
    const regained = sender ? ((now_ms - sender.at_ms) / 1000) * relayed_bytes_per_s : 0;
    const left = Math.min(relayed_burst_bytes, (sender?.bytes ?? relayed_burst_bytes) + regained);
    const taken = bytes <= left;
    this.#senders.delete(from);
    this.#senders.set(from, { bytes: taken ? left - bytes : left, at_ms: now_ms });
    const [oldest] = this.#senders.keys();
    if (this.#senders.size > senders_max) this.#senders.delete(oldest!);
    return taken;
  }

  /** Whose bound an entry would break; undefined where it breaks none. */
  excess(entry: Entry): Excess | undefined {
    const known = this.#table.entry(entry.session_id);
    if (!entry.record) return undefined; // a tombstone of what is there
    const [member, provider] = originsOf(entry);
    // A session that changes its member or provider is counted as new there: that is rare, and errs to the safe side.
    const isSame = known !== undefined && originsOf(known).join() === originsOf(entry).join();
    const added = {
      rows: isSame ? 0 : 1,
      bytes: bytesOf(entry) - (isSame ? (known.record?.envelope.length ?? 0) : 0),
    };
    const of = (name: string): TableUsage => this.#used.get(name) ?? nothing;
    return excessOf({ member: of(member), provider: of(provider), all: of('all') }, added, this.#bounds);
  }

  #count(entry: Entry | undefined, sign: 1 | -1): void {
    if (!entry) return;
    for (const name of [...originsOf(entry), 'all']) {
      const { rows, bytes } = this.#used.get(name) ?? nothing;
      const now = { rows: rows + sign, bytes: bytes + sign * bytesOf(entry) };
      if (now.rows === 0) this.#used.delete(name);
      else this.#used.set(name, now);
    }
  }
}

/**
 * Who is charged for an entry: the member that it names, and the provider that it proves. Those that prove none share
 * what is for one: nobody uses up another's by his name.
 */
function originsOf({ record }: Entry): [member: string, provider: string] {
  return [`member ${record?.value.metadata.peer?.id ?? ''}`, `provider ${record?.value.provider_id ?? ''}`];
}

function bytesOf({ record, tombstone }: Entry): number {
  return (record?.envelope.length ?? 0) + (tombstone?.envelope.length ?? 0);
}
