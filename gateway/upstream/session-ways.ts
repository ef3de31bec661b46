import type { TLSSocket } from 'node:tls';
import { ChannelConnection, channel_protocol } from '../../mesh/index.ts';
import { channelWay, type Dial, type SessionWay, socketWay, type WayEvents } from './session-way.ts';

/**
 * A connection without channels is given up after this time, and at the latest after twice as much: firewalls forget
 * connections that are silent, and tell nobody. Lower: more handshakes for those who ask now and then.
 */
const idle_ms = 60_000;

/**
 * Ways to one session. Where its agent knows channels, all requests share one TLS connection, so that what a batch of
 * sequences says in one iteration travels in one record; where it does not, each request has a connection of its own.
 */
export class SessionWays {
  readonly #dial: Dial;
  /** Connections that carry channels; how many each had opened when it was last seen without any. */
  readonly #carriers = new Map<ChannelConnection, number>();
  /** A connection that is being made, and may carry channels. */
  #making: Promise<ChannelConnection | undefined> | undefined;
  /** The agent knows no channels. */
  #plain = false;
  /** The connection by which that was found out, for whoever asks first. */
  #spare: { socket: TLSSocket; readBy(read: (bytes: Buffer) => void): void } | undefined;
  #sweeper: NodeJS.Timeout | undefined;
  #closed: Error | undefined;

  /** @param dial offers `channel_protocol` and HTTP/1.1 */
  constructor(dial: Dial) {
    this.#dial = dial;
  }

  /** @throws Error where the session cannot be reached */
  async open(events: WayEvents): Promise<SessionWay> {
    if (this.#closed) throw this.#closed;
    const carrier = this.#withRoom() ?? (await this.#carrier());
    // Whoever waited beside this one may have taken the last room.
    if (carrier) return carrier.hasRoom ? channelWay(carrier, events) : this.open(events);
    const spare = this.#spare;
    this.#spare = undefined;
    if (!spare || spare.socket.destroyed) return socketWay(this.#dial, events);
    return socketWay((read) => {
      spare.readBy(read);
      return Promise.resolve(spare.socket);
    }, events);
  }

  /** Ends the connections that carry channels, and with them what is on its way there. */
  close(error: Error): void {
    this.#closed = error;
    for (const carrier of [...this.#carriers.keys()]) carrier.destroy(error);
    this.#spare?.socket.destroy();
    this.#spare = undefined;
  }

  #withRoom(): ChannelConnection | undefined {
    for (const carrier of this.#carriers.keys()) if (carrier.hasRoom) return carrier;
    return undefined;
  }

  /** One that has room; undefined where there are no channels. */
  async #carrier(): Promise<ChannelConnection | undefined> {
    if (this.#plain) return undefined;
    this.#making ??= this.#make().finally(() => {
      this.#making = undefined;
    });
    return this.#making;
  }

  async #make(): Promise<ChannelConnection | undefined> {
    const early: Buffer[] = [];
    let read = (bytes: Buffer): void => void early.push(Buffer.from(bytes));
    const socket = await this.#dial((bytes) => read(bytes));
    if (this.#closed) {
      socket.destroy();
      throw this.#closed;
    }
    const readBy = (reader: (bytes: Buffer) => void): void => {
      for (const bytes of early.splice(0)) reader(bytes);
      read = reader;
    };
    if (socket.alpnProtocol !== channel_protocol) {
      this.#plain = true;
      this.#spare = { socket, readBy };
      return undefined;
    }
    const carrier = new ChannelConnection(socket);
    // A copy of all that arrived at once costs less than one of each frame.
    readBy((bytes) => carrier.read(Buffer.from(bytes)));
    this.#carriers.set(carrier, -1);
    this.#sweeper ??= setInterval(() => this.#sweep(), idle_ms).unref();
    socket.once('close', () => this.#forget(carrier));
    return carrier;
  }

  #forget(carrier: ChannelConnection): void {
    this.#carriers.delete(carrier);
    if (this.#carriers.size > 0) return;
    clearInterval(this.#sweeper);
    this.#sweeper = undefined;
  }

  /** Ends those that have had no channel since the last time. */
  #sweep(): void {
    for (const [carrier, opened] of [...this.#carriers]) {
      if (carrier.size > 0) continue;
      if (opened === carrier.opened) carrier.destroy(new Error('nobody needs the connection'));
      else this.#carriers.set(carrier, carrier.opened);
    }
  }
}
