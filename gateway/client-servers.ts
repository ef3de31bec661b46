import {
  createServer as createHttpServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createHttpsServer, type Server as HttpsServer } from 'node:https';
import type { Server as NetServer, Socket } from 'node:net';
import type { SecureContextOptions } from 'node:tls';
import { sendPastStream } from '../native/socket-send.ts';
import { limits } from '../spec/wire.ts';
import type { ClientConnections } from './client-connections.ts';
import type { HeldName } from './holder/messages.ts';
import { QueuedAnswers } from './queued-answers.ts';
import { refuseConnection } from './refuse-connection.ts';

export interface ClientServerTimes {
  /** Until the whole header of a request must be there. Lower: slow attackers hold connections shorter. */
  headers_ms: number;
  /** Until the whole request must be there; 32 MiB need 4.5 Mbit/s at 60 s. */
  request_ms: number;
  /** How long an idle connection is kept. Higher: fewer handshakes for clients. */
  keep_alive_ms: number;
  /** Granularity of the first two. */
  check_ms: number;
}

/** What becomes of the connections that a port and a unix socket accept. */
export interface Accepting {
  readonly servers: Readonly<Record<HeldName, NetServer>>;
  /** Accepts no more. @returns when those have ended that are answered here */
  stopAccepting(): Promise<void>;
  /** Of those that are accepted here, ends the ones on which nothing is under way; or all. */
  closeIdle(): void;
  closeAll(): void;
}

/** Until a TLS handshake must be done, ms. Lower: less held by strangers; higher: very slow links. */
const handshake_ms = 10_000;

/** The servers that read what clients send: of the port, with TLS or without, and of the unix socket beside it. */
export class ClientServers implements Accepting {
  readonly servers: Readonly<Record<HeldName, Server>>;
  readonly #queued = new QueuedAnswers();
  #listener: RequestListener | undefined;

  constructor(
    times: ClientServerTimes,
    connections: ClientConnections,
    tls: SecureContextOptions | undefined,
  ) {
    const answer = (request: IncomingMessage, response: ServerResponse): void => {
      connections.arrived(request, response);
      if (response.socket === null) this.#queued.add(request.socket, response);
      this.#listener!(request, response);
    };
    const settings = {
      maxHeaderSize: limits.header_bytes,
      headersTimeout: times.headers_ms,
      requestTimeout: times.request_ms,
      keepAliveTimeout: times.keep_alive_ms,
      connectionsCheckingInterval: times.check_ms,
      noDelay: true,
    };
    const port = tls
      ? createHttpsServer({ ...settings, ...tls, handshakeTimeout: handshake_ms }, answer)
      : createHttpServer(settings, answer);
    connections.watch(port);
    // Who can reach it is the user that the gateway runs as: nobody there is a stranger.
    const socket = createHttpServer(settings, answer);
    socket.maxConnections = limits.connections;
    socket.on('clientError', (error, client) => refuseConnection(error, client as Socket));
    for (const plain of tls ? [socket] : [port, socket]) plain.on('connection', sendPastStream);
    this.servers = { port, socket };
  }

  /** Says who answers, before anybody asks. @returns the server of the port */
  answerWith(listener: RequestListener): Server {
    this.#listener = listener;
    return this.servers.port;
  }

  /** Shows another certificate to whoever connects from now on. */
  setSecureContext(options: SecureContextOptions): void {
    (this.servers.port as HttpsServer).setSecureContext(options);
  }

  async stopAccepting(): Promise<void> {
    const listening = Object.values(this.servers).filter((server) => server.listening);
    await Promise.all(
      listening.map((server) => new Promise<void>((resolve) => server.close(() => resolve()))),
    );
  }

  closeIdle(): void {
    for (const server of Object.values(this.servers)) server.closeIdleConnections();
  }

  closeAll(): void {
    for (const server of Object.values(this.servers)) server.closeAllConnections();
  }
}
