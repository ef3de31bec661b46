import { type MemoryPiece, piecesSize_bytes } from '../../native/fabric/memory.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { frameHeader } from './frame.ts';
import { Generations } from './generations.ts';
import { requireSameFormat } from './kv-format.ts';
import { links_max, meeting_ms, silence_ms, transfer_bytes_max, transferLimit_ms } from './limits.ts';
import {
  type Begun,
  type Finished,
  type KvMessage,
  type KvOffer,
  type KvRoom,
  type KvRunHeader,
  kvMessageSchema,
  type Opened,
  type OpenMessage,
  type Range,
} from './messages.ts';
import { checkHeaders, checkRuns, runSize_bytes } from './run-headers.ts';
import { brokenWay, loopback, portsOf, type TransferOptions } from './transfer-options.ts';
import { FabricTarget } from './ways/fabric-way.ts';
import { SocketTarget } from './ways/socket-way.ts';
import { TlsTarget } from './ways/tls-way.ts';
import type { Frame, TargetEnd } from './ways/way.ts';

/** Rows that were taken for what is on its way. */
export interface KvReservation {
  /** Where the bytes of a run belong in the worker's memory: per layer keys, then values, each in token order. */
  places(tokens: Range): MemoryPiece[];
  /** All of it has come, and is what was sent. @param way how, for people */
  commit(way: string): void | Promise<void>;
  /** It does not come. Nothing writes there any more. */
  abort(because: HpcserveError): void;
}

/** Whoever owns the KV cache that sequences come to. */
export interface KvReceiver {
  /** What rows mean here. */
  formatOf(offer: KvOffer): KvOffer['format'];
  /**
   * Takes rows for tokens of a sequence.
   * @throws HpcserveError E_KV_ROOM, E_KV_FORMAT
   */
  reserve(offer: KvOffer, peer: string): KvReservation | Promise<KvReservation>;
  /** What could come of a model now; nothing where it is not served here. */
  room(model: string): KvRoom;
}

interface Transfer {
  id: string;
  offer: KvOffer;
  reservation: KvReservation;
  checksums: () => Promise<number[]>;
  timer: NodeJS.Timeout;
}

interface Link {
  id: string;
  peer: string;
  end: TargetEnd;
  connected: boolean;
  /** When something came by it last. */
  used_ms: number;
  /** Rows are being taken for a transfer, which is the way's next one. */
  reserving: boolean;
  transfer?: Transfer;
}

/**
 * The side of a transfer to which keys and values come. It answers messages of peers that were authenticated already,
 * and believes none of them: whatever does not fit together ends the transfer, closes its way, so that nothing writes
 * to rows that others get, and gives the rows back.
 */
export class KvTarget {
  readonly #options: TransferOptions;
  readonly #receiver: KvReceiver;
  readonly #generations = new Generations();
  readonly #links = new Map<string, Link>();
  /** Ways that are being opened count as well. */
  #opening = 0;

  constructor(options: TransferOptions, receiver: KvReceiver) {
    this.#options = options;
    this.#receiver = receiver;
  }

  /** Ways that peers hold open, for people. */
  get links(): { peer: string; way: string }[] {
    return [...this.#links.values()].map(({ peer, end }) => ({ peer, way: end.description }));
  }

  /**
   * @param peer id of the session that proved to have said it
   * @returns what is answered
   * @throws HpcserveError E_KV_*
   */
  async answer(
    peer: string,
    message: unknown,
  ): Promise<Opened | Begun | Finished | KvRoom | Record<string, never>> {
    const parsed = kvMessageSchema.safeParse(message);
    if (!parsed.success)
      throw new HpcserveError('E_KV_MESSAGE', {
        what: `a message of ${peer} about keys and values was not understood`,
        because: parsed.error.issues.slice(0, 4).map(({ path, message }) => `${path.join('.')}: ${message}`),
      });
    const { data } = parsed;
    switch (data.kind) {
      case 'open':
        return this.#open(peer, data);
      case 'connected':
        return this.#connected(this.#linkOf(peer, data.link), data.probe);
      case 'begin':
        return this.#begin(this.#linkOf(peer, data.link), data);
      case 'finish':
        return this.#finish(this.#linkOf(peer, data.link), data);
      case 'close':
        return this.#end(this.#linkOf(peer, data.link), gone(peer, 'it has closed the way'));
      case 'room':
        return this.#receiver.room(data.model);
    }
  }

  /** The peer has left the mesh, or its process has ended. */
  async forget(peer: string): Promise<void> {
    const links = [...this.#links.values()].filter((link) => link.peer === peer);
    await Promise.all(links.map((link) => this.#end(link, gone(peer, 'it is not there any more'))));
  }

  async close(): Promise<void> {
    const over = gone('the peer', 'this worker ends');
    await Promise.all([...this.#links.values()].map((link) => this.#end(link, over)));
  }

  async #open(peer: string, message: OpenMessage): Promise<Opened> {
    const { warn } = this.#options;
    for (const { way, because } of message.failed) warn(brokenWay(peer, way, because, ['the peer says so']));
    if (this.#links.has(message.link)) throw unknown(peer, `${message.link} is open already`);
    if (this.#links.size + this.#opening >= links_max) await this.#endIdlest();
    if (this.#links.size + this.#opening >= links_max)
      throw new HpcserveError('E_KV_ROOM', {
        what: `${links_max} ways for keys and values are open already`,
      });
    this.#opening++;
    try {
      const { end, opened } = await this.#endFor(peer, message);
      const used_ms = performance.now();
      const link: Link = { id: message.link, peer, end, connected: false, used_ms, reserving: false };
      this.#links.set(link.id, link);
      if (this.#options.transfer_bytes_max !== undefined)
        opened.transfer_bytes_max = this.#options.transfer_bytes_max;
      // A peer that was told where to come, and does not.
      setTimeout(() => {
        if (!link.connected) void this.#end(link, gone(peer, 'it did not come'));
      }, 2 * meeting_ms).unref();
      return opened;
    } catch (error) {
      if (error instanceof HpcserveError) throw error;
      throw brokenWay(peer, message.provider ?? message.way, (error as Error).message);
    } finally {
      this.#opening--;
    }
  }

  async #endFor(
    peer: string,
    { way, ticket, key, provider, same_node }: OpenMessage,
  ): Promise<{ end: TargetEnd; opened: Opened }> {
    const { memory, own, host, private_fabric, providers } = this.#options;
    const ports = portsOf(this.#options);
    if (way === 'tcp' && key !== undefined) {
      const end = await TlsTarget.listen(memory, own, { host, ports, key });
      const shown = Buffer.from(own.public_key).toString('base64');
      return { end, opened: { port: end.port, key: shown, session_id: own.session_id } };
    }
    const isLocal = same_node === true && way !== 'rma';
    if (!private_fabric && !isLocal)
      throw brokenWay(
        peer,
        provider ?? way,
        'network.private_fabric is not set at the site where they would come',
      );
    if (way === 'rma') {
      if (provider === undefined || !providers.includes(provider))
        throw unknown(peer, `the provider ${provider} is not used here`);
      const end = await FabricTarget.open(memory, provider, provider === 'shm' ? '' : host);
      return { end, opened: { fabric: end.address } };
    }
    if (ticket === undefined) throw unknown(peer, 'it shows no ticket');
    const at = isLocal ? loopback : host;
    const end = new SocketTarget(memory, { way, host: at, ports, expected: Buffer.from(ticket, 'hex') });
    return { end, opened: { port: end.port, ticket: end.answer.toString('hex') } };
  }

  async #connected(link: Link, probe: string | undefined): Promise<Record<string, never>> {
    try {
      await link.end.connected(probe);
      link.connected = true;
      return {};
    } catch (error) {
      const broken = brokenWay(link.peer, link.end.description, (error as Error).message);
      this.#options.warn(broken);
      await this.#end(link, broken);
      throw broken;
    }
  }

  async #begin(link: Link, { transfer: id, offer }: KvMessage & { kind: 'begin' }): Promise<Begun> {
    if (!link.connected) throw unknown(link.peer, 'its way is not connected');
    if (link.transfer || link.reserving) throw unknown(link.peer, 'another transfer is on its way');
    const { memory, transfer_bytes_max: own_max = memory.bytes } = this.#options;
    checkRuns(offer, Math.min(transfer_bytes_max, own_max));
    requireSameFormat(this.#receiver.formatOf(offer), offer.format);
    this.#generations.advance(offer);
    const reservation = await this.#reserve(link, offer);
    if (this.#links.get(link.id) !== link) {
      // The peer waits no more, or is gone: nobody else would give it back.
      const over = gone(link.peer, 'its way was closed meanwhile');
      reservation.abort(over);
      throw over;
    }
    try {
      const places = offer.runs.map((tokens) => reservation.places(tokens));
      const frames = offer.runs.map((tokens, at): Frame => {
        const bytes = runSize_bytes(offer, tokens);
        if (piecesSize_bytes(places[at]!) !== bytes) throw new Error(`${bytes} bytes have no place here`);
        return { header: frameHeader(id, at, bytes), pieces: places[at]! };
      });
      const limit_ms = transferLimit_ms(runSize_bytes(offer, offer.tokens));
      const checksums = link.end.expect(frames, { silence_ms, limit_ms }, (error) => {
        if (link.transfer?.id === id) void this.#end(link, gone(link.peer, error.message));
      });
      const late = gone(link.peer, `not all of it came within ${Math.round(limit_ms)} ms`);
      const timer = setTimeout(() => void this.#end(link, late), limit_ms + silence_ms).unref();
      link.transfer = { id, offer, reservation, checksums, timer };
      return link.end.tellsPlaces ? { places } : {};
    } catch (error) {
      const failure = error instanceof HpcserveError ? error : gone(link.peer, (error as Error).message);
      reservation.abort(failure);
      await this.#end(link, failure);
      throw failure;
    }
  }

  /** Nothing else begins on the way meanwhile. */
  async #reserve(link: Link, offer: KvOffer): Promise<KvReservation> {
    link.reserving = true;
    try {
      return await this.#receiver.reserve(offer, link.peer);
    } finally {
      link.reserving = false;
    }
  }

  async #finish(
    link: Link,
    { transfer: id, headers }: { transfer: string; headers: KvRunHeader[] },
  ): Promise<Finished> {
    const { transfer } = link;
    if (transfer?.id !== id)
      throw new HpcserveError('E_KV_STALE', { what: `transfer ${id} of ${link.peer} is not under way here` });
    try {
      const checksums = await transfer.checksums();
      if (link.transfer !== transfer) throw gone(link.peer, 'it was given up meanwhile');
      checkHeaders(transfer.offer, headers, checksums);
    } catch (error) {
      const failure = error instanceof HpcserveError ? error : gone(link.peer, (error as Error).message);
      await this.#end(link, failure);
      throw failure;
    }
    clearTimeout(transfer.timer);
    delete link.transfer;
    link.used_ms = performance.now();
    await transfer.reservation.commit(link.end.description);
    return { transfer: id };
  }

  /** Whoever has it opens it again when it is needed. */
  async #endIdlest(): Promise<void> {
    const idle = [...this.#links.values()].filter(
      ({ connected, reserving, transfer }) => connected && !reserving && !transfer,
    );
    const [first] = idle.sort((a, b) => a.used_ms - b.used_ms);
    if (first) await this.#end(first, gone(first.peer, 'others need its way'));
  }

  /** The way is closed before rows are given back, so that nothing is written to whoever gets them. */
  async #end(link: Link, because: HpcserveError): Promise<Record<string, never>> {
    if (this.#links.get(link.id) !== link) return {};
    this.#links.delete(link.id);
    const { transfer } = link;
    delete link.transfer;
    await link.end.close();
    if (transfer) {
      clearTimeout(transfer.timer);
      transfer.reservation.abort(because);
    }
    return {};
  }

  /** Of others' ways nobody is told that there are any. */
  #linkOf(peer: string, id: string): Link {
    const link = this.#links.get(id);
    if (!link || link.peer !== peer)
      throw new HpcserveError('E_KV_CLOSED', { what: `the way ${id} of ${peer} is not open here` });
    return link;
  }
}

function gone(peer: string, because: string): HpcserveError {
  return new HpcserveError('E_KV_TRANSFER', { what: `keys and values of ${peer} did not arrive`, because });
}

function unknown(peer: string, because: string): HpcserveError {
  return new HpcserveError('E_KV_MESSAGE', {
    what: `${peer} said something about keys and values that cannot be`,
    because,
  });
}
