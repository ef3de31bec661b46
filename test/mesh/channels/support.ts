/** Two members of a mesh, one of which takes channels on the port of a node; all over TLS on real sockets. */

import type { AddressInfo } from 'node:net';
import { createServer, type Server, type TLSSocket } from 'node:tls';
import type { Channel, ChannelEvents } from '../../../mesh/channels/channel.ts';
import {
  ChannelConnection,
  channel_protocol,
  pinnedConnect,
  SessionIdentity,
  sessionTlsServerOptions,
} from '../../../mesh/index.ts';
import type { PinnedOptions } from '../../../mesh/tls.ts';
import { metadata, recordOf } from '../support.ts';

/** What one end of a channel has been told, in its order. */
export class Heard implements ChannelEvents {
  readonly chunks: Buffer[] = [];
  ends = 0;
  drains = 0;
  readonly closings: (Error | undefined)[] = [];
  onData: ((bytes: Buffer) => void) | undefined;
  onDrained: (() => void) | undefined;
  onEnded: (() => void) | undefined;

  get bytes(): Buffer {
    return Buffer.concat(this.chunks);
  }

  get length(): number {
    return this.chunks.reduce((sum, { length }) => sum + length, 0);
  }

  data(bytes: Buffer): void {
    if (this.closings.length > 0) throw new Error('bytes came behind the close');
    this.chunks.push(Buffer.from(bytes));
    this.onData?.(bytes);
  }

  ended(): void {
    this.ends++;
    this.onEnded?.();
  }

  drained(): void {
    this.drains++;
    this.onDrained?.();
  }

  closed(error: Error | undefined): void {
    this.closings.push(error);
  }
}

export interface Pair {
  /** The side that opens channels; undefined where it speaks frames by hand. */
  near: ChannelConnection;
  nearSocket: TLSSocket;
  far: ChannelConnection;
  farSocket: TLSSocket;
}

/** Two identities, and the port of one of them. */
export class Members {
  readonly #server: Server;
  readonly #own: SessionIdentity;
  readonly #other: SessionIdentity;
  readonly #port: number;
  #arrived: ((socket: TLSSocket) => void) | undefined;

  private constructor(server: Server, own: SessionIdentity, other: SessionIdentity) {
    this.#server = server;
    this.#own = own;
    this.#other = other;
    this.#port = (server.address() as AddressInfo).port;
    server.on('secureConnection', (socket: TLSSocket) => this.#arrived?.(socket));
  }

  static async open(): Promise<Members> {
    const [own, other] = await Promise.all([SessionIdentity.create(), SessionIdentity.create()]);
    const server = createServer(sessionTlsServerOptions(() => other, [channel_protocol]));
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return new Members(server, own, other);
  }

  /** Two sockets of a connection, on which nothing reads frames yet. */
  async sockets(read?: (bytes: Buffer) => void): Promise<{ near: TLSSocket; far: TLSSocket }> {
    const arrived = new Promise<TLSSocket>((resolve) => {
      this.#arrived = resolve;
    });
    const record = recordOf(this.#other, {
      metadata: { ...metadata, addresses: [{ host: '127.0.0.1', port: this.#port }] },
    });
    const options: PinnedOptions = { protocols: [channel_protocol] };
    if (read) options.read = read;
    const near = await pinnedConnect(record, this.#own, options);
    const far = await arrived;
    near.on('error', () => undefined);
    far.on('error', () => undefined);
    return { near, far };
  }

  /** @param onChannel takes what the near side opens */
  async pair(onChannel: (channel: Channel) => void): Promise<Pair> {
    let near: ChannelConnection | undefined;
    const sockets = await this.sockets((bytes) => near!.read(Buffer.from(bytes)));
    near = new ChannelConnection(sockets.near);
    const far = this.take(sockets.far, onChannel);
    return { near, nearSocket: sockets.near, far, farSocket: sockets.far };
  }

  /** The end of a connection at which channels arrive. */
  take(socket: TLSSocket, onChannel: (channel: Channel) => void): ChannelConnection {
    const connection = new ChannelConnection(socket, onChannel);
    socket.on('data', (bytes: Buffer) => connection.read(bytes));
    return connection;
  }

  async close(): Promise<void> {
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }
}

/** Gives back on a channel whatever comes, as fast as it is taken; and its end. */
export function echo(channel: Channel): Heard {
  const heard = new Heard();
  heard.onData = (bytes) => {
    if (!channel.write(Buffer.from(bytes))) channel.pause();
  };
  heard.onDrained = () => channel.resume();
  heard.onEnded = () => channel.end();
  channel.listen(heard);
  return heard;
}

/** Bytes that are the same for the same seed, and differ from place to place. */
export function pattern(seed: number, length: number): Buffer {
  const bytes = Buffer.allocUnsafe(length);
  let state = seed * 2654435761 + 1;
  for (let at = 0; at < length; at++) {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    bytes[at] = state >>> 16;
  }
  return bytes;
}

/** Writes as fast as it is taken, and ends. */
export function sendAll(channel: Channel, heard: Heard, bytes: Buffer, piece_bytes: number): void {
  let at = 0;
  const more = (): void => {
    while (at < bytes.length) {
      const piece = bytes.subarray(at, at + piece_bytes);
      at += piece.length;
      if (!channel.write(piece)) return;
    }
    channel.end();
  };
  heard.onDrained = more;
  more();
}
