import { type IncomingMessage, request as requestOverHttp, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { type ChannelConnection, ChannelSocket } from '../../mesh/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { sendError } from '../http-error.ts';
import { requestIdOf } from '../request-id.ts';
import { provenHeader } from './messages.ts';

/** Of one connection alone (RFC 9110 §7.6.1); and `expect`, which Node has answered by then. */
const ofConnection = new Set([
  'connection',
  'expect',
  'keep-alive',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);
const unauthorized = 401;
const nobody = {
  data: () => undefined,
  ended: () => undefined,
  drained: () => undefined,
  closed: () => undefined,
};

/** What only the primary can answer: a worker passes it on, whole, over the pipe between the two. */
export class PassOn {
  readonly #connection: ChannelConnection;

  constructor(connection: ChannelConnection) {
    this.#connection = connection;
  }

  /** @param onProven the primary found a valid key with it, or the operator's token */
  pass(request: IncomingMessage, response: ServerResponse, onProven: () => void): void {
    const fail = (error: Error): void => {
      if (response.headersSent) response.destroy();
      else sendError(response, HpcserveError.from(error), requestIdOf(request.headers['x-request-id']));
    };
    let asked: ReturnType<typeof requestOverHttp>;
    try {
      const { method, url, rawHeaders } = request;
      const headers = passed(rawHeaders);
      // A body whose length nobody said comes in chunks.
      if (request.headers['transfer-encoding'] !== undefined) headers.push('transfer-encoding', 'chunked');
      asked = requestOverHttp({ method, path: url, headers, createConnection: () => this.#open() });
    } catch (thrown) {
      fail(thrown as Error);
      return;
    }
    response.once('close', () => asked.destroy());
    asked.once('error', fail);
    asked.once('response', (answer) => {
      const { statusCode, headers, rawHeaders } = answer;
      if (headers[provenHeader] !== undefined) onProven();
      // Also where a key was valid once: its connection is proven by nothing any more.
      if (statusCode === unauthorized) response.shouldKeepAlive = false;
      response.writeHead(statusCode!, passed(rawHeaders));
      answer.once('error', () => response.destroy());
      answer.pipe(response);
    });
    request.pipe(asked);
  }

  /**
   * A connection to a session that has no direct way, through the primary, which is the peer of the mesh.
   * @throws Error where there is none
   */
  tunnel({ session_id }: SessionRecord): Promise<Duplex> {
    return new Promise((resolve, reject) => {
      const asked = requestOverHttp({
        method: 'CONNECT',
        path: session_id,
        createConnection: () => this.#open(),
      });
      asked.once('error', reject);
      asked.once('connect', ({ statusCode, statusMessage }, socket) => {
        if (statusCode === 200) resolve(socket);
        else {
          socket.destroy();
          reject(new Error(statusMessage));
        }
      });
      asked.end();
    });
  }

  #open(): ChannelSocket {
    return new ChannelSocket(this.#connection.open(nobody), 'primary');
  }
}

function passed(rawHeaders: readonly string[]): string[] {
  const pairs: string[] = [];
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at]!.toLowerCase();
    if (!ofConnection.has(name) && name !== provenHeader) pairs.push(rawHeaders[at]!, rawHeaders[at + 1]!);
  }
  return pairs;
}
