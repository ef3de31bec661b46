import { createServer, type IncomingMessage, type RequestListener, type Server } from 'node:http';
import type { Duplex } from 'node:stream';
import { ChannelConnection, ChannelSocket } from '../../mesh/index.ts';
import { limits } from '../../spec/wire.ts';
import { provenHeader } from './messages.ts';

export interface PassedRequestsOptions {
  /** Whether a request carries a key, or the operator's token. */
  isProven(request: IncomingMessage): boolean;
  /** A connection to a session that has no direct way. @throws Error where there is none */
  tunnel(session_id: string): Promise<Duplex>;
}

/** The primary's side of `PassOn`: a server that listens nowhere, for what workers pass on. */
export class PassedRequests {
  readonly server: Server;
  readonly #options: PassedRequestsOptions;
  #listener: RequestListener | undefined;

  constructor(options: PassedRequestsOptions) {
    this.#options = options;
    // Whatever of time and size there is to bound, the worker has bounded.
    const settings = { maxHeaderSize: 2 * limits.header_bytes, headersTimeout: 0, requestTimeout: 0 };
    this.server = createServer(settings, (request, response) => {
      if (options.isProven(request)) response.setHeader(provenHeader, '1');
      this.#listener!(request, response);
    });
    this.server.on('connect', (request, socket) => void this.#tunnel(request, socket));
  }

  answerWith(listener: RequestListener): Server {
    this.#listener = listener;
    return this.server;
  }

  /** @param pipe to a worker, which opens a channel for each request */
  serve(pipe: Duplex): ChannelConnection {
    const connection = new ChannelConnection(pipe, (channel) =>
      this.server.emit('connection', new ChannelSocket(channel, 'worker')),
    );
    pipe.on('data', (bytes: Buffer) => connection.read(bytes));
    return connection;
  }

  async #tunnel({ url = '' }: IncomingMessage, socket: Duplex): Promise<void> {
    let way: Duplex;
    try {
      way = await this.#options.tunnel(url);
    } catch (error) {
      const words = (error as Error).message.replace(/[^\x20-\x7e]/g, ' ').slice(0, 200);
      socket.end(`HTTP/1.1 502 ${words}\r\n\r\n`);
      return;
    }
    if (socket.destroyed) {
      way.destroy();
      return;
    }
    socket.write('HTTP/1.1 200 Connected\r\n\r\n');
    socket.pipe(way).pipe(socket);
    // What became of the one is told to the other; whoever uses the tunnel sees its end.
    for (const [one, other] of [
      [socket, way],
      [way, socket],
    ] as const) {
      one.once('error', () => other.destroy());
      one.once('close', () => other.destroy());
    }
  }
}
