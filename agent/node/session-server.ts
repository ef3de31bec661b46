import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { TLSSocket } from 'node:tls';
import {
  authorizePeer,
  ChannelConnection,
  ChannelSocket,
  channel_protocol,
  type Registry,
  type SessionIdentity,
  sessionTlsServerOptions,
  UnauthenticatedSockets,
} from '../../mesh/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { limits } from '../../spec/wire.ts';
import { answerError, openAiError } from './answers.ts';

/** A handshake that takes longer is ended. Higher: very slow links; lower: less held by strangers. */
const handshake_timeout_ms = 10_000;
const headers_timeout_default_ms = 15_000;
/**
 * Connections whose peer is not known to be a member (handshake, looking up its key, being refused). The port is
 * open to everybody on the network: of more than these the oldest ends, so that strangers who hold connections
 * open keep no member out, who is through in milliseconds. Lower: less memory; higher: gentler to slow members.
 */
const strangers_max = 256;
/** A stranger has so long to read why it was refused. */
const refusal_ms = 1000;

export interface SessionServerOptions {
  registry: Registry;
  /** The identity of a session of this node, by id. */
  identityOf(sessionId: string): SessionIdentity | undefined;
  /** Time for a request's headers. Lower: less held by slow members; higher: slow links. */
  headers_timeout_ms?: number;
  /**
   * @param sessionId the session that the client asked for by server name
   * @param peer the client's own record, as it is now
   */
  handle(sessionId: string, request: IncomingMessage, response: ServerResponse, peer: SessionRecord): void;
  /** A peer wants to speak something else on this connection. @returns whether it does from now on */
  upgrade?(request: IncomingMessage, socket: Duplex, head: Buffer, peer: SessionRecord): boolean;
}

/**
 * The one port of a node: TLS 1.3, both sides show their keys, the server name picks the session. HTTP is read
 * only from clients whose key a live record of the mesh names; others get one line that says so. A connection carries
 * one request at a time, or, where the client knows them, many on channels.
 */
export class SessionServer {
  readonly #server: Server;
  readonly #sockets = new Set<TLSSocket>();
  readonly #strangers = new UnauthenticatedSockets();
  /** Open on all connections. */
  #channels = 0;

  constructor({ registry, identityOf, handle, upgrade, ...options }: SessionServerOptions) {
    const headers_timeout_ms = options.headers_timeout_ms ?? headers_timeout_default_ms;
    const peers = new WeakMap<object, string>();
    this.#server = createServer(
      {
        ...sessionTlsServerOptions(identityOf, [channel_protocol, 'http/1.1']),
        handshakeTimeout: handshake_timeout_ms,
        connectionsCheckingInterval: headers_timeout_ms / 3,
        maxHeaderSize: limits.header_bytes,
        headersTimeout: headers_timeout_ms,
        // Bodies of 32 MiB over slow links, and answers that stream for hours: bounded by the peers, not by a clock.
        requestTimeout: 0,
        keepAliveTimeout: 65_000,
      },
      (request, response) => {
        const socket = request.socket as TLSSocket | ChannelSocket;
        const peer = registry.get(peers.get(socket) ?? '');
        const sessionId = String(socket.servername).slice(0, 32);
        if (!peer || peer.lifecycle === 'LEFT') {
          const error = new HpcserveError('E_MESH_PEER', { what: 'the peer has left this mesh' });
          answerError(response, error, undefined, { connection: 'close' });
        } else handle(sessionId, request, response, peer);
      },
    );
    if (upgrade)
      this.#server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
        const peer = registry.get(peers.get(socket) ?? '');
        const isTaken = peer && peer.lifecycle !== 'LEFT' && upgrade(request, socket, head, peer);
        if (!isTaken) socket.end('HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n');
      });
    // What reads HTTP comes after the question who is there, not at once.
    const readHttp = this.#server.listeners('secureConnection');
    this.#server.removeAllListeners('secureConnection');
    this.#server.on('secureConnection', (socket: TLSSocket) => {
      this.#sockets.add(socket);
      socket.once('close', () => this.#sockets.delete(socket));
      socket.on('error', () => socket.destroy()); // a connection that breaks is nobody's failure
      socket.setNoDelay(true);
      authorizePeer(socket, registry).then(
        (peer) => {
          this.#strangers.prove(socket);
          peers.set(socket, peer.session_id);
          if (socket.destroyed) return;
          const serve = (connection: Duplex): void => {
            for (const listener of readHttp) listener.call(this.#server, connection);
          };
          if (socket.alpnProtocol === channel_protocol)
            this.#carryChannels(socket, (channel) => {
              peers.set(channel, peer.session_id);
              serve(channel);
            });
          else serve(socket);
        },
        (error: unknown) => refuse(socket, HpcserveError.from(error)),
      );
    });
    this.#server.on('connection', (socket: Socket) => {
      this.#strangers.add(socket);
      if (this.#strangers.size > strangers_max) this.#strangers.endOldest();
    });
    this.#server.maxConnections = limits.connections + strangers_max;
  }

  /**
   * Listens on the first free port of the range; without a range, on any.
   *
   * @throws HpcserveError E_AGENT_PORT
   */
  async listen(host: string, range: readonly [number, number] | undefined): Promise<number> {
    const [first, last] = range ?? [0, 0];
    for (let port = first; port <= last; port++) {
      const bound = await this.#tryListen(host, port);
      if (bound !== undefined) return bound;
    }
    throw new HpcserveError('E_AGENT_PORT', {
      what: `no port of ${first}–${last} is free on ${host}`,
      because: 'other processes of this node listen on all of them',
    });
  }

  /** Ends every connection and stops listening. */
  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
    });
    for (const socket of this.#sockets) socket.destroy();
    this.#strangers.endAll();
    await closed;
  }

  /** @param serve takes each channel for a connection of its own */
  #carryChannels(socket: TLSSocket, serve: (channel: ChannelSocket) => void): void {
    const connection = new ChannelConnection(socket, (channel) => {
      if (this.#channels >= limits.connections) {
        channel.reset('the node has as many requests as it may');
        return;
      }
      this.#channels++;
      const own = new ChannelSocket(channel, String(socket.servername));
      own.once('close', () => {
        this.#channels--;
      });
      serve(own);
    });
    socket.on('data', (bytes: Buffer) => connection.read(bytes));
  }

  #tryListen(host: string, port: number): Promise<number | undefined> {
    return new Promise((resolve, reject) => {
      const onError = (error: NodeJS.ErrnoException): void => {
        if (error.code === 'EADDRINUSE' || error.code === 'EACCES') resolve(undefined);
        else {
          const because = error.message;
          reject(new HpcserveError('E_AGENT_PORT', { what: `the agent cannot listen on ${host}`, because }));
        }
      };
      this.#server.once('error', onError);
      this.#server.listen({ host, port }, () => {
        this.#server.off('error', onError);
        const address = this.#server.address();
        resolve(address && typeof address === 'object' ? address.port : undefined);
      });
    });
  }
}

function refuse(socket: TLSSocket, error: HpcserveError): void {
  if (socket.alpnProtocol === channel_protocol) {
    const connection = new ChannelConnection(socket, (channel) => {
      const own = new ChannelSocket(channel, '');
      // All that were opened in one turn are answered by then.
      own.once('close', () => connection.end());
      answerRefusal(own, error);
    });
    socket.on('data', (bytes: Buffer) => connection.read(bytes));
  } else answerRefusal(socket, error);
  // One that does not read would be kept for ever.
  setTimeout(() => socket.destroy(), refusal_ms).unref();
}

function answerRefusal(socket: Duplex, error: HpcserveError): void {
  const body = JSON.stringify(openAiError(error, error.http_status));
  socket.end(
    [
      `HTTP/1.1 ${error.http_status} Forbidden`,
      'content-type: application/json; charset=utf-8',
      `content-length: ${Buffer.byteLength(body)}`,
      'connection: close',
      '',
      body,
    ].join('\r\n'),
    () => socket.destroy(),
  );
}
