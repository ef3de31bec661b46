import { randomBytes } from 'node:crypto';
import type { z } from 'zod';
import { fabricAbsence } from '../../native/fabric/fabric.ts';
import { canMove, ticket_bytes } from '../../native/fabric/mover.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { frameHeader } from './frame.ts';
import { failed_way_ms, farewell_ms, meeting_ms, silence_ms, transferLimit_ms } from './limits.ts';
import {
  begunSchema,
  doneSchema,
  finishedSchema,
  type KvMessage,
  type KvOffer,
  type Opened,
  openedSchema,
  type Way,
} from './messages.ts';
import { checkSize, type OutgoingKv, partFrom } from './outgoing-kv.ts';
import { runHeaders, runSize_bytes } from './run-headers.ts';
import { brokenWay, loopback, type TransferOptions } from './transfer-options.ts';
import { FabricSource } from './ways/fabric-way.ts';
import { SocketSource } from './ways/socket-way.ts';
import { TlsSource } from './ways/tls-way.ts';
import type { SourceEnd } from './ways/way.ts';

/** A worker that keys and values go to. */
export interface KvPeer {
  session_id: string;
  /** An address of its node, from its session record. */
  host: string;
  /** Whether it is on this node. */
  same_node: boolean;
  /**
   * Says something to it over the mesh, and brings its answer.
   * @throws HpcserveError as the peer said; E_KV_TRANSFER: it does not answer
   */
  ask(message: KvMessage, limit_ms: number): Promise<unknown>;
}

export interface SentKv {
  way: string;
  bytes: number;
  elapsed_ms: number;
}

/** What became of transfers to one peer, for reports. */
export interface PeerTransfers {
  peer: string;
  /** How bytes travel now; absent: no way is open. */
  way?: string;
  transfers: number;
  bytes: number;
  /** In transfers that came to their end. */
  busy_ms: number;
  failures: number;
  /** Ways that did not work, since ever. */
  fallbacks_total: number;
  /** The last of them, newest last. */
  fallbacks: { way: string; because: string; at_ms: number }[];
}

interface Attempt {
  way: Way;
  encrypted: boolean;
  provider?: string;
}

interface Link {
  id: string;
  attempt: Attempt;
  end: SourceEnd;
  /** What the peer takes at once. */
  bytes_max: number;
}

interface PeerState extends PeerTransfers {
  /** As it was asked for last. */
  known: KvPeer;
  link?: Link;
  /** Transfers that have begun or wait for their turn. */
  waiting: number;
  /** Transfers to one peer follow one another. */
  turn: Promise<unknown>;
  /** Ways that failed, and until when they are left out. */
  broken: Map<string, number>;
}

const fallbacks_kept_max = 16;

/**
 * The side of a transfer from which keys and values go. For each peer it opens the best way that both sides have and
 * that works, and keeps it; one that breaks is replaced by the next, and told.
 */
export class KvSource {
  readonly #options: TransferOptions;
  readonly #ways: readonly Way[];
  readonly #peers = new Map<string, PeerState>();
  #round = 0;
  #closed = false;

  /** @param ways that may be used, best first; absent: all */
  constructor(options: TransferOptions, ways: readonly Way[] = ['rma', 'sendfile', 'tcp']) {
    this.#options = options;
    this.#ways = ways;
  }

  /** For reports: how bytes travel to each peer, and what did not work. */
  get peers(): PeerTransfers[] {
    return [...this.#peers.values()].map(
      ({ known: _, link: __, turn: ___, broken: ____, waiting: _____, ...told }) => told,
    );
  }

  /**
   * Brings runs of a sequence to a peer. Once it is over, whichever way, nothing reads their rows any more.
   * @throws HpcserveError E_KV_FORMAT, E_KV_STALE, E_KV_ROOM, E_KV_CHECKSUM: the peer refused them, and they are to be
   *   computed again; E_KV_TRANSFER: no way works
   */
  send(peer: KvPeer, outgoing: OutgoingKv): Promise<SentKv> {
    const state = this.#stateOf(peer);
    state.waiting++;
    const sent = state.turn
      .then(() => this.#sendByAny(peer, state, outgoing))
      .finally(() => {
        state.waiting--;
      });
    state.turn = sent.catch(() => undefined);
    return sent;
  }

  /** Whether something goes to a peer now. */
  isBusy(session_id: string): boolean {
    return (this.#peers.get(session_id)?.waiting ?? 0) > 0;
  }

  /** The peer is not needed any more, or gone: its way is closed, and it is told, if it hears. */
  async forget(session_id: string): Promise<void> {
    const { known, link } = this.#peers.get(session_id) ?? {};
    this.#peers.delete(session_id);
    await link?.end.close();
    if (known && link) await tellClosed(known, link.id, farewell_ms);
  }

  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all([...this.#peers.keys()].map((id) => this.forget(id)));
  }

  async #sendByAny(peer: KvPeer, state: PeerState, outgoing: OutgoingKv): Promise<SentKv> {
    const failed: { way: string; because: string }[] = [];
    const { tokens } = outgoing.offer;
    const all: SentKv = { way: '', bytes: 0, elapsed_ms: 0 };
    for (let { begin } = tokens; ; ) {
      if (this.#closed)
        throw new HpcserveError('E_KV_TRANSFER', {
          what: `keys and values were not brought to ${peer.session_id}`,
          because: 'this worker ends',
        });
      const kept = state.link;
      const link = kept ?? (await this.#open(peer, state, failed));
      try {
        const part = partFrom(outgoing, begin, link.bytes_max);
        checkSize(part, link.bytes_max);
        const sent = await this.#sendBy(peer, link, part);
        state.transfers++;
        state.bytes += sent.bytes;
        state.busy_ms += sent.elapsed_ms;
        all.way = sent.way;
        all.bytes += sent.bytes;
        all.elapsed_ms += sent.elapsed_ms;
        begin = part.offer.tokens.end;
        if (begin === tokens.end) return all;
      } catch (error) {
        state.failures++;
        const refused = error instanceof HpcserveError && isRefusal(error);
        // What the peer refused before anything was sent leaves the way as it is.
        if (refused && error.code !== 'E_KV_CHECKSUM') throw error;
        await this.#drop(peer, state, link);
        if (refused) throw error;
        // The peer closed it while nothing came by it: that says nothing of the way.
        if (link === kept && error instanceof HpcserveError && error.code === 'E_KV_CLOSED') continue;
        failed.push(this.#failed(peer, state, link.attempt, reasonOf(error)));
      }
    }
  }

  async #sendBy(peer: KvPeer, link: Link, { offer: known, pieces }: OutgoingKv): Promise<SentKv> {
    const started_ms = performance.now();
    const offer: KvOffer = { ...known, round: this.#round++ };
    const transfer = randomBytes(8).toString('hex');
    const bytes = runSize_bytes(offer, offer.tokens);
    const limit_ms = transferLimit_ms(bytes);
    const ask = async <T>(message: KvMessage, schema: z.ZodType<T>, wait_ms: number): Promise<T> =>
      understood(peer, schema, await peer.ask(message, wait_ms));
    const { places } = await ask({ kind: 'begin', link: link.id, transfer, offer }, begunSchema, meeting_ms);
    if (places && places.length !== offer.runs.length) throw new Error('the peer has places for other runs');
    const sending = offer.runs.map(async (tokens, at) => {
      const header = frameHeader(transfer, at, runSize_bytes(offer, tokens));
      const frame = { header, pieces: pieces(tokens) };
      try {
        return await link.end.send(frame, places?.[at], { silence_ms, limit_ms });
      } catch (error) {
        // The others wait for the same peer: they end with it.
        void link.end.close();
        throw error;
      }
    });
    const outcomes = await Promise.allSettled(sending);
    const checksums = outcomes.map((outcome) => {
      if (outcome.status === 'rejected') throw outcome.reason;
      return outcome.value;
    });
    const headers = runHeaders(offer, checksums);
    const finish: KvMessage = { kind: 'finish', link: link.id, transfer, headers };
    const finished = await ask(finish, finishedSchema, limit_ms + silence_ms);
    if (finished.transfer !== transfer) throw new Error('the peer has taken another transfer');
    return { way: link.end.description, bytes, elapsed_ms: performance.now() - started_ms };
  }

  /** @throws HpcserveError E_KV_TRANSFER: none of the ways works; or as the peer refuses */
  async #open(peer: KvPeer, state: PeerState, failed: { way: string; because: string }[]): Promise<Link> {
    for (const attempt of this.#attempts(peer, state)) {
      const id = randomBytes(16).toString('hex');
      try {
        const { end, bytes_max } = await this.#connect(peer, id, attempt, failed);
        state.link = { id, attempt, end, bytes_max };
        state.way = end.description;
        return state.link;
      } catch (error) {
        if (error instanceof HpcserveError && isRefusal(error)) throw error;
        failed.push(this.#failed(peer, state, attempt, reasonOf(error)));
        await tellClosed(peer, id);
      }
    }
    throw new HpcserveError('E_KV_TRANSFER', {
      what: `keys and values cannot be brought to ${peer.session_id}`,
      because:
        failed.length > 0 ? failed.map(({ way, because }) => `${way}: ${because}`) : noWay(this.#options),
    });
  }

  async #connect(
    peer: KvPeer,
    link: string,
    { way, encrypted, provider }: Attempt,
    failed: { way: string; because: string }[],
  ): Promise<{ end: SourceEnd; bytes_max: number }> {
    const { memory, own, host } = this.#options;
    const message: KvMessage = { kind: 'open', link, way, failed: failed.slice(-fallbacks_kept_max) };
    const shown = randomBytes(ticket_bytes);
    // Without an encrypted way, what does not leave the node need not be.
    const isLocal = peer.same_node && provider === undefined && !encrypted;
    if (isLocal) message.same_node = true;
    if (provider !== undefined) message.provider = provider;
    else if (encrypted) message.key = Buffer.from(own.public_key).toString('base64');
    else message.ticket = shown.toString('hex');
    const opened = understood(peer, openedSchema, await peer.ask(message, 2 * meeting_ms));
    const end = await connectTo(isLocal ? loopback : peer.host, opened, {
      rma: (fabric) => FabricSource.connect(memory, provider!, provider === 'shm' ? '' : host, fabric),
      tls: (place) => TlsSource.connect(memory, own, place),
      plain: (place) => SocketSource.connect(way, memory, { ...place, shown }),
    });
    try {
      const connected: KvMessage = { kind: 'connected', link };
      if (end instanceof FabricSource) connected.probe = end.probe;
      understood(peer, doneSchema, await peer.ask(connected, 2 * meeting_ms));
      return { end, bytes_max: opened.transfer_bytes_max ?? Number.POSITIVE_INFINITY };
    } catch (error) {
      await end.close();
      throw error;
    }
  }

  /** Ways in the order in which they are tried, without those that have just failed. */
  #attempts({ same_node }: KvPeer, { broken }: PeerState): Attempt[] {
    if (!canMove()) return [];
    const { private_fabric, providers, memory } = this.#options;
    const all = this.#ways.flatMap((way): Attempt[] => {
      const sealed: Attempt = { way, encrypted: true };
      // Where the peer's site does not call its network private, the encrypted one is left.
      if (way === 'tcp') return private_fabric ? [{ way, encrypted: false }, sealed] : [sealed];
      if (way === 'sendfile') {
        const isAllowed = (private_fabric || same_node) && memory.descriptor !== undefined;
        return isAllowed ? [{ way, encrypted: false }] : [];
      }
      if (!private_fabric) return [];
      if (fabricAbsence() !== undefined) return [];
      const usable = providers.filter((provider) => provider !== 'shm' || same_node);
      return usable.map((provider) => ({ way, encrypted: false, provider }));
    });
    const now_ms = performance.now();
    return all.filter((attempt) => (broken.get(nameOf(attempt)) ?? 0) <= now_ms);
  }

  #failed(
    peer: KvPeer,
    state: PeerState,
    attempt: Attempt,
    because: string,
  ): { way: string; because: string } {
    const way = nameOf(attempt);
    state.broken.set(way, performance.now() + failed_way_ms);
    state.fallbacks_total++;
    state.fallbacks.push({ way, because, at_ms: Date.now() });
    if (state.fallbacks.length > fallbacks_kept_max) state.fallbacks.shift();
    this.#options.warn(brokenWay(peer.session_id, way, because));
    return { way, because: because.replaceAll(/\p{Cc}/gu, ' ').slice(0, 1000) };
  }

  async #drop(peer: KvPeer, state: PeerState, link: Link): Promise<void> {
    if (state.link === link) {
      delete state.link;
      delete state.way;
    }
    await link.end.close();
    await tellClosed(peer, link.id);
  }

  #stateOf(peer: KvPeer): PeerState {
    const { session_id } = peer;
    let state = this.#peers.get(session_id);
    if (!state) {
      const counts = { transfers: 0, bytes: 0, busy_ms: 0, failures: 0, fallbacks_total: 0, fallbacks: [] };
      const way = { waiting: 0, turn: Promise.resolve(), broken: new Map<string, number>() };
      state = { peer: session_id, known: peer, ...counts, ...way };
      this.#peers.set(session_id, state);
    }
    state.known = peer;
    return state;
  }
}

interface Place {
  host: string;
  port: number;
}

/** How its answer leads to the peer: always to the node that the mesh knows it on. @param host of that node */
function connectTo(
  host: string,
  { port, ticket, key, session_id, fabric }: Opened,
  ways: {
    rma(fabric: NonNullable<Opened['fabric']>): Promise<SourceEnd>;
    tls(place: Place & { session_id: string; key: string }): Promise<SourceEnd>;
    plain(place: Place & { expected: Buffer }): Promise<SourceEnd>;
  },
): Promise<SourceEnd> {
  if (fabric) return ways.rma(fabric);
  if (port === undefined) throw new Error('the peer did not say where it listens');
  if (key !== undefined && session_id !== undefined) return ways.tls({ host, port, session_id, key });
  if (ticket === undefined) throw new Error('the peer did not say by what it is known');
  return ways.plain({ host, port, expected: Buffer.from(ticket, 'hex') });
}

function understood<T>({ session_id }: KvPeer, schema: z.ZodType<T>, answer: unknown): T {
  const parsed = schema.safeParse(answer);
  if (parsed.success) return parsed.data;
  throw new HpcserveError('E_KV_MESSAGE', {
    what: `${session_id} answered something about keys and values that was not understood`,
    because: parsed.error.issues.slice(0, 4).map(({ path, message }) => `${path.join('.')}: ${message}`),
  });
}

/** A peer that does not hear it closes the way by its own clock. */
async function tellClosed(peer: KvPeer, link: string, limit_ms = silence_ms): Promise<void> {
  await peer.ask({ kind: 'close', link }, limit_ms).catch(() => undefined);
}

function reasonOf(error: unknown): string {
  if (error instanceof HpcserveError) return [error.message, ...error.because].join(': ');
  return (error as Error).message;
}

/** The peer does not want these rows, by whichever way. */
function isRefusal({ code }: HpcserveError): boolean {
  return code === 'E_KV_FORMAT' || code === 'E_KV_STALE' || code === 'E_KV_ROOM' || code === 'E_KV_CHECKSUM';
}

function nameOf({ way, encrypted, provider }: Attempt): string {
  if (provider !== undefined) return `rma (${provider})`;
  return encrypted ? `${way}, encrypted` : way;
}

function noWay({ private_fabric }: TransferOptions): string {
  if (!canMove()) return 'hpcserve was built without a C compiler';
  return `every way has failed within the last minute${private_fabric ? '' : ', and only an encrypted one may be used'}`;
}
