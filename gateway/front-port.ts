import { chmodSync, rmSync, statSync } from 'node:fs';
import {
  createServer as createHttpServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createHttpsServer, type Server as HttpsServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import { dirname } from 'node:path';
import { makeFolders } from '../host/make-folders.ts';
import { moveIntoPlaceSync } from '../host/move.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { limits } from '../spec/wire.ts';
import type { ClientConnections } from './client-connections.ts';
import type { ClientTls } from './client-tls.ts';
import type { HolderLink } from './holder/holder-link.ts';
import type { HeldName } from './holder/messages.ts';
import { rawErrorAnswer } from './http-error.ts';
import { type Listening, listen, startListening, type WantedAddress } from './listen.ts';
import type { GatewayLog } from './log.ts';

export interface FrontPortTimes {
  /** Until the whole header of a request must be there. Lower: slow attackers hold connections shorter. */
  headers_ms: number;
  /** Until the whole request must be there; 32 MiB need 4.5 Mbit/s at 60 s. */
  request_ms: number;
  /** How long an idle connection is kept. Higher: fewer handshakes for clients. */
  keep_alive_ms: number;
  /** Granularity of the first two. */
  check_ms: number;
}

export interface FrontPortOptions {
  times: FrontPortTimes;
  log: GatewayLog;
  connections: ClientConnections;
  tls: ClientTls | undefined;
  /** Keeps the listening sockets when this process is killed; undefined where nobody does. */
  holder: HolderLink | undefined;
  /** Descriptors of listening sockets that the gateway before this one had. */
  inherited: Partial<Record<HeldName, number>>;
}

/** Longest path of a unix socket, bytes: 107, less what stands behind it while it is made. */
const socket_bytes_max = 100;
/** Until a TLS handshake must be done, ms. Lower: less held by strangers; higher: very slow links. */
const handshake_ms = 10_000;

/** Where clients come in: a TCP port, with TLS or without, and a unix socket beside it. */
export class FrontPort {
  readonly #options: FrontPortOptions;
  readonly #port: Server;
  readonly #socket: Server;
  #socket_path: string | undefined;
  #listener: RequestListener | undefined;

  constructor(options: FrontPortOptions) {
    this.#options = options;
    const { times, tls, connections } = options;
    const answer = (request: IncomingMessage, response: ServerResponse): void => {
      connections.arrived(request, response);
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
    this.#port = tls
      ? createHttpsServer({ ...settings, ...tls.options, handshakeTimeout: handshake_ms }, answer)
      : createHttpServer(settings, answer);
    tls?.watch(this.#port as HttpsServer);
    connections.watch(this.#port);
    // Who can reach it is the user that the gateway runs as: nobody there is a stranger.
    this.#socket = createHttpServer(settings, answer);
    this.#socket.maxConnections = limits.connections;
    this.#socket.on('clientError', (error, socket) => refuseConnection(error, socket as Socket));
  }

  /** Says who answers, before it listens. @returns the server of the port */
  answerWith(listener: RequestListener): Server {
    this.#listener = listener;
    return this.#port;
  }

  /** Listens on the port. Throws E_GATEWAY_PORT. */
  async listen(wanted: WantedAddress): Promise<Listening> {
    const { holder, inherited, log } = this.#options;
    if (inherited.port !== undefined) {
      await startListening(this.#port, { fd: inherited.port }, 'the port of the gateway before');
      holder?.holds('port', this.#port);
      return { port: (this.#port.address() as AddressInfo).port };
    }
    const found = await listen(this.#port, wanted, log);
    holder?.hold('port', this.#port);
    return found;
  }

  /** Listens on a unix socket too, in a folder of the user alone. Throws E_GATEWAY_PORT. */
  async listenOnSocket(path: string): Promise<void> {
    const { holder, inherited } = this.#options;
    if (inherited.socket !== undefined && isSocket(path)) {
      await startListening(this.#socket, { fd: inherited.socket }, path);
      this.#socket_path = path;
      holder?.holds('socket', this.#socket);
      return;
    }
    requirePrivate(path);
    // Under another name first: what is there of a gateway that was killed is replaced at once.
    const fresh = `${path}.new`;
    rmSync(fresh, { force: true });
    await startListening(this.#socket, { path: fresh }, path);
    chmodSync(fresh, 0o600);
    moveIntoPlaceSync(fresh, path);
    this.#socket_path = path;
    holder?.hold('socket', this.#socket);
  }

  /** Stops accepting and waits until every answer has ended, or cuts them off after `drain_ms`. */
  async drain(drain_ms: number): Promise<void> {
    const closed = this.#stopAccepting();
    const idle = setInterval(() => this.#each((server) => server.closeIdleConnections()), 50);
    const limit = setTimeout(() => this.#each((server) => server.closeAllConnections()), drain_ms);
    await closed;
    clearInterval(idle);
    clearTimeout(limit);
  }

  /** Cuts everything off. */
  async stop(): Promise<void> {
    const closed = this.#stopAccepting();
    this.#each((server) => server.closeAllConnections());
    await closed;
  }

  #stopAccepting(): Promise<unknown> {
    if (this.#socket_path !== undefined) rmSync(this.#socket_path, { force: true });
    this.#socket_path = undefined;
    return Promise.all(
      [this.#port, this.#socket].map(
        (server) =>
          new Promise<void>((resolve) => (server.listening ? server.close(() => resolve()) : resolve())),
      ),
    );
  }

  #each(act: (server: Server) => void): void {
    for (const server of [this.#port, this.#socket]) act(server);
  }
}

function isSocket(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isSocket() === true;
}

/** @throws HpcserveError E_GATEWAY_PORT where others could listen there, or put a socket of theirs in its place */
function requirePrivate(path: string): void {
  const refuse = (because: string): never => {
    throw new HpcserveError('E_GATEWAY_PORT', {
      what: `cannot listen on ${path}`,
      because,
      try: 'choose another gateway.socket in the site config',
    });
  };
  if (Buffer.byteLength(path) > socket_bytes_max)
    refuse(`the path has ${Buffer.byteLength(path)} bytes, and at most ${socket_bytes_max} are possible`);
  const folder = dirname(path);
  makeFolders(folder);
  const { uid, mode } = statSync(folder);
  if (uid !== process.getuid!()) refuse(`the folder ${folder} belongs to user id ${uid}`);
  if ((mode & 0o077) !== 0)
    refuse(
      `the mode of ${folder} is 0${(mode & 0o777).toString(8)}, and others must not enter it: chmod 700`,
    );
  const there = statSync(path, { throwIfNoEntry: false });
  if (there && !there.isSocket()) refuse('there is a file, and it is no socket');
}

/** Answers on a connection whose bytes never became a request, and ends it. */
export function refuseConnection(error: Error & { code?: string }, socket: Socket): void {
  if (!socket.writable || error.code === 'ECONNRESET') {
    socket.destroy();
    return;
  }
  // An answer may be half sent already on this connection: a second one would be garbage inside it.
  const busy = (socket as Socket & { _httpMessage?: ServerResponse | null })._httpMessage;
  if (busy?.headersSent) {
    socket.destroy();
    return;
  }
  const [known, phrase] = connectionError(error);
  socket.end(rawErrorAnswer(known, phrase), () => socket.destroy());
}

function connectionError(error: Error & { code?: string }): [HpcserveError, string] {
  switch (error.code) {
    case 'HPE_HEADER_OVERFLOW':
      return [
        new HpcserveError('E_REQUEST_HEADERS', {
          what: `the header of the request is larger than ${limits.header_bytes} bytes`,
        }),
        'Request Header Fields Too Large',
      ];
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return [
        new HpcserveError('E_REQUEST_TIMEOUT', { what: 'the request did not arrive in time' }),
        'Request Timeout',
      ];
    default:
      return [
        new HpcserveError('E_REQUEST_MALFORMED', {
          what: 'what arrived is not an HTTP request',
          because: error.message,
        }),
        'Bad Request',
      ];
  }
}
