import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';
import { compiledFile } from '../../../host/programs.ts';
import type { ContentHashes } from '../content-hashes.ts';
import type { FileVersion } from '../file-version.ts';
import type { LoadWork } from '../load/load-work.ts';
import type { TensorLoad, Unit } from '../load/pieces.ts';
import type { Fetching, PeerPart } from '../load/tensor-loading.ts';
import { GroupClaims } from './group-claims.ts';
import type { PeerNews, PeerWork } from './peer-loader.ts';
import { residentRanges } from './shared-tensors.ts';
import { groupTensors, type TensorGroup } from './tensor-groups.ts';

/** Threads need compiled JavaScript: Node 20 runs no TypeScript. */
const threadFile = compiledFile('agent/memory/peers/peer-thread.js');

/** Less than this is read from the file before a peer was asked. */
const offered_bytes_min = 64 * 1024 * 1024;
/** The file's threads wait so long for peers to be asked: which side is slower is known only once both have begun. */
const asking_ms = 500;
/** And so long, once in the life of a worker, for the thread that asks. */
const starting_ms = 2000;
/**
 * Once the file's threads are done and no byte comes from peers for so long, the rest is read from the file. Lower: a
 * peer that hangs costs less; higher: one that is busy is given time.
 */
const silence_ms = 1500;

/**
 * Once the file's threads are done, peers keep what they have begun unless the file would bring it again in less than
 * this part of the time, and sooner by so much. Higher: less is read twice; lower: a slow peer holds a load up less.
 */
const slower_max = 2;
const slower_s = 0.25;

interface OfferedLoad {
  units: Unit[];
  groups: TensorGroup[];
  claims: GroupClaims;
  shared: NonNullable<LoadWork['shared']>;
}

/** Decides which part of a load peers may bring, and looks after the thread that fetches it. */
export class PeerShare {
  readonly #socketPath: string;
  readonly #folder: string;
  readonly #resident: typeof residentRanges;
  readonly #bytes_min: number;
  #thread: { worker: Worker; port: MessagePort } | undefined;

  /**
   * @param folder of the native libraries
   * @param resident, bytes_min see `TensorLoaderOptions`
   */
  constructor(socketPath: string, folder: string, resident = residentRanges, bytes_min = offered_bytes_min) {
    this.#resident = resident;
    this.#bytes_min = bytes_min;
    this.#socketPath = socketPath;
    this.#folder = folder;
  }

  /** @returns undefined where the file alone is best: most of it is in memory here, or its contents are not known */
  cut(
    file: FileVersion,
    tensors: readonly TensorLoad[],
    unit_bytes: number,
    contents: ContentHashes,
  ): OfferedLoad | undefined {
    const groups = groupTensors(tensors, unit_bytes, contents);
    const resident = this.#resident(
      file,
      groups.flatMap(({ ranges }) => ranges),
    );
    const claims = new GroupClaims(groups.length);
    let offered_bytes = 0;
    let at = 0;
    groups.forEach(({ ranges, contents: known }, index) => {
      const here = ranges.every((_, range) => resident[at + range]);
      at += ranges.length;
      if (known && !here) offered_bytes += ranges.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
      else claims.withhold(index);
    });
    if (offered_bytes < this.#bytes_min) return undefined;
    return {
      units: groups.flatMap(({ units }) => units),
      groups,
      claims,
      shared: {
        group_of: groups.flatMap(({ units }, index) => units.map(() => index)),
        claims: claims.shared,
      },
    };
  }

  /** Sets the thread to work. */
  begin(load: LoadWork, { groups, claims }: Pick<OfferedLoad, 'groups' | 'claims'>): Fetching {
    return new PeerFetching(groups, claims, (...asked) => this.#ask(...asked), load);
  }

  /** @returns where the thread tells how it goes */
  #ask(load: LoadWork, groups: readonly TensorGroup[], claims: GroupClaims): MessagePort {
    const { port1: news, port2: told } = new MessageChannel();
    const work: PeerWork = { load, groups, claims: claims.shared, socket_path: this.#socketPath };
    this.#running().port.postMessage({ work, news: told }, [told]);
    return news;
  }

  /** Ends the thread. No load may be under way. */
  async close(): Promise<void> {
    if (!this.#thread) return;
    const { worker, port } = this.#thread;
    this.#thread = undefined;
    worker.ref();
    const ended = new Promise((resolve) => worker.once('exit', resolve));
    port.postMessage('end');
    await ended;
  }

  #running(): { port: MessagePort } {
    if (this.#thread) return this.#thread;
    const { port1, port2 } = new MessageChannel();
    const worker = new Worker(threadFile, {
      workerData: { port: port2, folder: this.#folder },
      transferList: [port2],
    });
    worker.unref();
    port1.unref();
    this.#thread = { worker, port: port1 };
    return this.#thread;
  }
}

/** Sets the thread to work. @returns where it tells how it goes */
type Ask = (load: LoadWork, groups: readonly TensorGroup[], claims: GroupClaims) => MessagePort;

class PeerFetching implements Fetching {
  readonly #groups: readonly TensorGroup[];
  readonly #claims: GroupClaims;
  readonly #ask: Ask;
  readonly #news: MessagePort;
  /** What came before the file's threads hung; absent: they bring what peers do not. */
  readonly #before: PeerFetching | undefined;
  readonly #told_at = performance.now();
  #seen_at: number | undefined;
  #received = 0;
  #moved_at = performance.now();

  constructor(
    groups: readonly TensorGroup[],
    claims: GroupClaims,
    ask: Ask,
    load: LoadWork,
    before?: PeerFetching,
  ) {
    this.#groups = groups;
    this.#claims = claims;
    this.#ask = ask;
    this.#before = before;
    this.#news = ask(load, groups, claims);
  }

  get asking(): boolean {
    const { stage } = this.#claims;
    const now = performance.now();
    if (stage === 'seen') this.#seen_at ??= now;
    if (stage === 'told') return now - this.#told_at < starting_ms;
    return stage === 'seen' && now - this.#seen_at! < asking_ms;
  }

  get pending(): boolean {
    if (!this.#claims.pending) return false;
    const received = this.#claims.received_bytes;
    const now = performance.now();
    if (received !== this.#received) this.#moved_at = now;
    this.#received = received;
    // Nobody else would bring it where the file hangs: each peer has its own time then.
    if (!this.#before && now - this.#moved_at > silence_ms) this.#claims.stop();
    return this.#claims.pending;
  }

  get left(): readonly Unit[] {
    return this.#missing.flatMap((group) => this.#groups[group]!.units);
  }

  get canRecall(): boolean {
    return !this.#before && this.#missing.every((group) => this.#groups[group]!.contents !== undefined);
  }

  recall(load: LoadWork): { work: LoadWork; fetching: Fetching } | undefined {
    this.#claims.stop();
    if (this.#claims.pending) return undefined;
    const missing = this.#missing;
    if (!missing.map((group) => this.#claims.recall(group)).every(Boolean)) return undefined;
    const groups = missing.map((group) => this.#groups[group]!);
    const work = { ...load, units: groups.flatMap(({ units }) => units), shared: undefined };
    const claims = new GroupClaims(groups.length);
    return { work, fetching: new PeerFetching(groups, claims, this.#ask, work, this) };
  }

  get #missing(): number[] {
    return [...this.#groups.keys()].filter(
      (group) => !this.#claims.isWhole(group, this.#groups[group]!.units.length),
    );
  }

  hurry(loaded_bytes: number): void {
    // Who has sent nothing yet may have been asked just now: silence is looked after elsewhere.
    if (this.#before || this.#claims.received_bytes === 0) return;
    const elapsed_s = (performance.now() - this.#told_at) / 1000;
    const placed_bytes = this.#bytesOf('placed');
    const fetching_bytes = this.#bytesOf('fetching');
    const peers_bytes_per_s = this.#claims.received_bytes / elapsed_s;
    const file_bytes_per_s = (loaded_bytes - placed_bytes) / elapsed_s;
    const under_way_bytes = Math.max(
      0,
      this.#claims.received_bytes - placed_bytes - this.#bytesOf('placing'),
    );
    const left_bytes = Math.max(0, fetching_bytes - under_way_bytes);
    const again_s = fetching_bytes / file_bytes_per_s;
    if (left_bytes / peers_bytes_per_s > slower_max * again_s + slower_s) this.#claims.stop();
  }

  stop(): void {
    this.#claims.stop();
  }

  #bytesOf(state: 'fetching' | 'placing' | 'placed'): number {
    let bytes = 0;
    for (const group of this.#claims.in(state))
      for (const { size_bytes } of this.#groups[group]!.ranges) bytes += size_bytes;
    return bytes;
  }

  close(): PeerPart[] {
    this.#claims.stop();
    const parts = new Map((this.#before?.close() ?? []).map((part) => [part.node, part]));
    for (;;) {
      const received = receiveMessageOnPort(this.#news) as { message: PeerNews } | undefined;
      if (!received) break;
      const { node, bytes = 0, trouble } = received.message;
      const part = parts.get(node) ?? { node, bytes: 0 };
      parts.set(node, { ...part, bytes: part.bytes + bytes, ...(trouble !== undefined && { trouble }) });
    }
    this.#news.close();
    return [...parts.values()];
  }
}
