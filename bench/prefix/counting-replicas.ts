/** Servers that hold each request until it is to end, and count whom it came to. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { modelList } from '../gateway/requests.ts';

const answer = JSON.stringify({
  id: 'cmpl-bench',
  object: 'text_completion',
  created: 1,
  model: 'bench',
  choices: [{ index: 0, text: '', logprobs: null, finish_reason: 'stop' }],
  usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
});

/** Servers of loopback that stand for replicas; each request is held by its number until it is released. */
export class CountingReplicas implements AsyncDisposable {
  readonly urls: string[];
  readonly #servers: Server[];
  /** By the number of the request, which is its `user`. */
  readonly #held = new Map<number, ServerResponse>();
  readonly #expected = new Map<number, (replica: number) => void>();

  private constructor(servers: Server[]) {
    this.#servers = servers;
    this.urls = servers.map((server) => `http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    for (const [replica, server] of servers.entries())
      server.on('request', (request, response) => void this.#take(replica, request, response));
  }

  static async start(count: number): Promise<CountingReplicas> {
    const servers = Array.from({ length: count }, () => createServer({ keepAliveTimeout: 600_000 }));
    for (const server of servers)
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', () => resolve()));
    return new CountingReplicas(servers);
  }

  /** The replica to which a request comes that is about to be sent. */
  expect(request: number): Promise<number> {
    return new Promise((resolve) => this.#expected.set(request, resolve));
  }

  /** Answers a request that was held. */
  release(request: number): void {
    this.#held.get(request)?.end(answer);
    this.#held.delete(request);
  }

  async #take(replica: number, request: IncomingMessage, response: ServerResponse): Promise<void> {
    response.setHeader('content-type', 'application/json');
    if (request.method !== 'POST') {
      response.end(modelList);
      return;
    }
    const { user } = JSON.parse(await text(request)) as { user?: string };
    const arrived = this.#expected.get(Number(user));
    // What a router asks of its own is answered at once.
    if (!arrived) {
      response.end(answer);
      return;
    }
    this.#expected.delete(Number(user));
    this.#held.set(Number(user), response);
    arrived(replica);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const server of this.#servers) {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    }
  }
}
