import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { UnauthenticatedSockets } from '../mesh/index.ts';
import { headers } from '../spec/wire.ts';
import { bearerOf } from './bearer.ts';

/**
 * The connections of clients. A connection is proven by a request with a valid key on it; of the others the oldest
 * ends whenever there is no room for a new one. So whoever holds connections without a key keeps nobody out who sends
 * his request soon.
 */
export class ClientConnections {
  readonly #open = new Set<Socket>();
  readonly #unauthenticated = new UnauthenticatedSockets();
  /** What proved a connection: the same again needs no second look. */
  readonly #proofs = new WeakMap<Socket, string>();
  readonly #connections_max: number;
  readonly #isValid: (request: IncomingMessage) => boolean;

  /**
   * @param connections_max proven and not. Higher: more clients at once; lower: less memory at risk
   * @param isValid whether a request carries a key, or the operator's token
   */
  constructor(connections_max: number, isValid: (request: IncomingMessage) => boolean) {
    this.#connections_max = connections_max;
    this.#isValid = isValid;
  }

  /** Has an eye on what connects to a server, before TLS or HTTP reads of it. */
  watch(server: Server): void {
    server.on('connection', (socket: Socket) => {
      this.#open.add(socket);
      socket.once('close', () => this.#open.delete(socket));
      this.#unauthenticated.add(socket);
      if (this.#open.size <= this.#connections_max) return;
      // Node says only later that it is closed; its descriptor is free at once.
      const ended = this.#unauthenticated.endOldest() ?? socket;
      this.#open.delete(ended);
      ended.destroy();
    });
  }

  /** Before a request is answered. An answer to a request without a valid key is the last on its connection. */
  arrived(request: IncomingMessage, response: ServerResponse): void {
    const shown = shownBy(request);
    if (shown !== undefined) {
      if (this.#proofs.get(request.socket) === shown) return;
      if (this.#isValid(request)) {
        this.#prove(request.socket, shown);
        return;
      }
    }
    response.shouldKeepAlive = false;
  }

  /** Another process found a valid key with a request: more may follow on its connection. */
  proven(request: IncomingMessage, response: ServerResponse): void {
    const shown = shownBy(request);
    const wantsMore = request.httpVersionMinor === 1 && !/close/i.test(request.headers.connection ?? '');
    if (shown === undefined || !wantsMore) return;
    this.#prove(request.socket, shown);
    response.shouldKeepAlive = true;
  }

  #prove(socket: Socket, shown: string): void {
    this.#proofs.set(socket, shown);
    this.#unauthenticated.prove(socket);
  }
}

/**
 * What a request has to say who sends it: a key or token, or of a session of the dashboard its page's secret, without
 * which the cookie is none.
 */
function shownBy(request: IncomingMessage): string | undefined {
  const page = request.headers[headers.page];
  return bearerOf(request) ?? (typeof page === 'string' ? page : undefined);
}
