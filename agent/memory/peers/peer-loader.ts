/** The share of a load that comes from peers: groups are fetched whole, compared with their names, and then placed. */
import { createHash } from 'node:crypto';
import koffi from 'koffi';
import { memoryAt } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { LoadCounters, type LoadWork } from '../load/load-work.ts';
import type { FileRange, Unit } from '../load/pieces.ts';
import type { UnitLoader } from '../load/unit-loader.ts';
import { GroupClaims } from './group-claims.ts';
import { PeerClient } from './peer-client.ts';
import type { PeerOffer } from './peer-messages.ts';

/** Groups on their way at once: while one is verified and placed, the next one comes. */
const groups_at_once = 2;

export interface PeerWork {
  /** Units are those of `groups`, in their order. */
  load: LoadWork;
  groups: readonly { units: readonly Unit[]; ranges: readonly FileRange[]; contents?: readonly string[] }[];
  claims: SharedArrayBuffer;
  socket_path: string;
}

/** What went wrong, or whose memory it came from. */
export interface PeerNews {
  node: string;
  bytes?: number;
  trouble?: string;
}

export async function loadFromPeers(
  work: PeerWork,
  unitLoader: UnitLoader,
  tell: (news: PeerNews) => void,
): Promise<void> {
  const claims = new GroupClaims(work.claims);
  const client = new PeerClient(work.socket_path);
  claims.reach('seen');
  try {
    const names = [...new Set(work.groups.flatMap(({ contents }) => contents ?? []))];
    const peers = (await client.offers(names)).map((offer) => new Peer(offer, names));
    const loader = new GroupLoader(work, claims, client, unitLoader, tell);
    const running = Array.from({ length: groups_at_once }, () => loader.run(peers));
    claims.reach('begun');
    await Promise.all(running);
  } catch (error) {
    tell({ node: 'the node agent', trouble: (error as Error).message });
  } finally {
    claims.reach('begun');
    client.close();
  }
}

/** One that offers tensors, until it once fails to keep its word. */
class Peer {
  readonly session_id: string;
  readonly node: string;
  good = true;
  /** Groups that are on their way from it. */
  busy = 0;
  readonly #held: ReadonlySet<string>;

  constructor({ session_id, node, held }: PeerOffer, names: readonly string[]) {
    this.session_id = session_id;
    this.node = node;
    this.#held = new Set(held.flatMap((index) => names[index] ?? []));
  }

  has(contents: readonly string[] | undefined): boolean {
    return this.good && contents?.every((name) => this.#held.has(name)) === true;
  }
}

class GroupLoader {
  readonly #work: PeerWork;
  readonly #claims: GroupClaims;
  readonly #client: PeerClient;
  readonly #units: UnitLoader;
  readonly #tell: (news: PeerNews) => void;
  readonly #clock: PeerClock;

  constructor(
    work: PeerWork,
    claims: GroupClaims,
    client: PeerClient,
    units: UnitLoader,
    tell: (news: PeerNews) => void,
  ) {
    this.#work = work;
    this.#claims = claims;
    this.#client = client;
    this.#units = units;
    this.#tell = tell;
    this.#clock = new PeerClock(new LoadCounters(work.load.counters));
  }

  /** Brings group after group, until none is left that a peer has. */
  async run(peers: readonly Peer[]): Promise<void> {
    const { groups } = this.#work;
    for (;;) {
      const holder = (group: number): Peer | undefined =>
        peers
          .filter((peer) => peer.has(groups[group]!.contents))
          .reduce<Peer | undefined>(
            (least, peer) => (least && least.busy <= peer.busy ? least : peer),
            undefined,
          );
      const group = this.#claims.takeForPeer((index) => holder(index) !== undefined);
      if (group === undefined) return;
      const peer = holder(group)!;
      peer.busy++;
      try {
        await this.#bring(group, peer);
      } catch (error) {
        // What is told after the group went back may come when the load is over: nobody hears it then.
        const over = this.#claims.stopped;
        if (!over) {
          peer.good = false;
          this.#tell({ node: peer.node, trouble: (error as Error).message });
        }
        this.#claims.giveBack(group);
        if (over) return;
      } finally {
        peer.busy--;
      }
    }
  }

  /** @throws Error: it did not come whole, or is not what it was asked for as */
  async #bring(index: number, peer: Peer): Promise<void> {
    const { ranges, units } = this.#work.groups[index]!;
    const staged = new StagedRanges(ranges);
    try {
      await this.#fetch(index, peer, staged);
      const counters = new LoadCounters(this.#work.load.counters);
      counters.enter();
      try {
        if (!this.#claims.beginPlacing(index)) return;
        const bytes = this.#units.place(this.#work.load, units, (range) => staged.addressOf(range));
        this.#claims.placed(index);
        counters.finish(bytes);
        this.#tell({ node: peer.node, bytes });
      } finally {
        counters.leave();
      }
    } finally {
      staged.free();
    }
  }

  async #fetch(index: number, peer: Peer, staged: StagedRanges): Promise<void> {
    const { ranges, contents = [] } = this.#work.groups[index]!;
    let came_bytes = 0;
    this.#clock.begin();
    try {
      // All of them have ended before their memory is given back, also where one failed.
      const fetched = await Promise.allSettled(
        contents.map((content, at) =>
          this.#client.fetch(peer.session_id, content, staged.memoryOf(ranges[at]!), (bytes) => {
            // Nobody waits for it any more.
            if (this.#claims.stopped) throw new Error('the file brings the rest');
            this.#claims.received(bytes);
          }),
        ),
      );
      for (const outcome of fetched) if (outcome.status === 'rejected') throw outcome.reason;
      contents.forEach((content, at) => {
        const found = createHash('sha256').update(staged.memoryOf(ranges[at]!)).digest('base64url');
        if (found !== content) throw new Error(`what it sent as tensor ${content} has the hash ${found}`);
      });
      came_bytes = ranges.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
    } finally {
      this.#clock.end(came_bytes);
    }
  }
}

/** The time in which anything comes from peers, however many groups come at once. */
class PeerClock {
  readonly #counters: LoadCounters;
  #under_way = 0;
  #since_ms = 0;

  constructor(counters: LoadCounters) {
    this.#counters = counters;
  }

  begin(): void {
    if (this.#under_way++ === 0) this.#since_ms = performance.now();
  }

  end(came_bytes: number): void {
    this.#under_way--;
    this.#counters.wentBy('peer', came_bytes, this.#since_ms);
    this.#since_ms = performance.now();
  }
}

/** Ranges of a file in memory outside the pool and the JavaScript heap; neighbours in the file lie side by side. */
class StagedRanges {
  readonly #address: Pointer;
  /** In the order of the file. */
  readonly #places: { range: FileRange; at: number }[] = [];

  constructor(ranges: readonly FileRange[]) {
    let bytes = 0;
    for (const range of [...ranges].sort((a, b) => a.offset_bytes - b.offset_bytes)) {
      this.#places.push({ range, at: bytes });
      bytes += range.size_bytes;
    }
    this.#address = koffi.alloc('uint8_t', bytes) as Pointer;
  }

  memoryOf(range: FileRange): Uint8Array {
    return memoryAt(this.addressOf(range), range.size_bytes);
  }

  /** @throws Error: the range is not all here */
  addressOf({ offset_bytes, size_bytes }: FileRange): Pointer {
    const end = offset_bytes + size_bytes;
    let from: Pointer | undefined;
    let covered = offset_bytes;
    for (const { range, at } of this.#places) {
      const range_end = range.offset_bytes + range.size_bytes;
      if (covered < range.offset_bytes || covered >= range_end) continue;
      from ??= this.#address + BigInt(at + offset_bytes - range.offset_bytes);
      covered = range_end;
      if (covered >= end) return from;
    }
    throw new Error(`bytes ${offset_bytes} to ${end} of the file are not among those that were fetched`);
  }

  free(): void {
    koffi.free(this.#address);
  }
}
