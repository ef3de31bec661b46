import {
  createServer as createHttpServer,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createTlsServer, type TLSSocket, type Server as TlsServer } from 'node:tls';
import {
  authorizePeer,
  type Registry,
  type SessionIdentity,
  sessionTlsServerOptions,
} from '../../mesh/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { limits } from '../../spec/wire.ts';
import { answerError, openAiError } from './answers.ts';

/** A handshake that takes longer is ended. Higher: very slow links; lower: less held by strangers. */
const handshake_timeout_ms = 10_000;
/** Time for a request's headers. */
const headers_timeout_ms = 15_000;

export interface SessionServerOptions {
  registry: Registry;
  /** The identity of a session of this node, by id. */
  identityOf(sessionId: string): SessionIdentity | undefined;
  /** @param sessionId the session that the client asked for by server name */
  handle(sessionId: string, request: IncomingMessage, response: ServerResponse): void;
}

/**
 * The one port of a node: TLS 1.3, both sides show their keys, the server name picks the session. HTTP is read
 * only from clients whose key a live record of the mesh names; others get one line that says so.
 */
export class SessionServer {
  readonly #tls: TlsServer;
  readonly #http: Server;
  readonly #sockets = new Set<TLSSocket>();

  constructor({ registry, identityOf, handle }: SessionServerOptions) {
    const peers = new WeakMap<object, string>();
    this.#http = createHttpServer(
      {
        maxHeaderSize: limits.header_bytes,
        headersTimeout: headers_timeout_ms,
        // Bodies of 32 MiB over slow links, and answers that stream for hours: bounded by the peers, not by a clock.
        requestTimeout: 0,
        keepAliveTimeout: 65_000,
      },
      (request, response) => {
        const socket = request.socket as TLSSocket;
        const peer = registry.get(peers.get(socket) ?? '');
        const sessionId = String(socket.servername).slice(0, 32);
        if (!peer || peer.lifecycle === 'LEFT') {
          const error = new HpcserveError('E_MESH_PEER', { what: 'the peer has left this mesh' });
          answerError(response, error, undefined, { connection: 'close' });
        } else handle(sessionId, request, response);
      },
    );
    this.#tls = createTlsServer(
      { ...sessionTlsServerOptions(identityOf), handshakeTimeout: handshake_timeout_ms },
      (socket) => {
        this.#sockets.add(socket);
        socket.once('close', () => this.#sockets.delete(socket));
        socket.on('error', () => socket.destroy()); // a connection that breaks is nobody's failure
        socket.setNoDelay(true);
        authorizePeer(socket, registry).then(
          (peer) => {
            peers.set(socket, peer.session_id);
            this.#http.emit('connection', socket);
          },
          (error: unknown) => refuse(socket, HpcserveError.from(error)),
        );
      },
    );
    this.#tls.maxConnections = limits.connections;
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
      this.#tls.close(() => resolve());
    });
    for (const socket of this.#sockets) socket.destroy();
    await closed;
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
      this.#tls.once('error', onError);
      this.#tls.listen({ host, port }, () => {
        this.#tls.off('error', onError);
        const address = this.#tls.address();
        resolve(address && typeof address === 'object' ? address.port : undefined);
      });
    });
  }
}

function refuse(socket: TLSSocket, error: HpcserveError): void {
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
