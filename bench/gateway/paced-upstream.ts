import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { SessionServer } from '../../agent/node/session-server.ts';
import { type Registry, type SessionIdentity, sessionTlsServerOptions } from '../../mesh/index.ts';
import { agentPaths } from '../../spec/wire.ts';
import { instantAnswer, modelList, paceOf } from './requests.ts';

export interface PacedUpstream {
  port: number;
  close(): Promise<void>;
}

const heartbeat_ms = 500;

/**
 * A session as it is behind a node agent: requests share a connection, and what the streams say in one turn travels
 * together.
 */
export async function startPacedSession(
  registry: Registry,
  identity: SessionIdentity,
  heartbeat: () => string,
): Promise<PacedUpstream> {
  const streams = new PacedStreams(heartbeat);
  const server = new SessionServer({
    registry,
    identityOf: (id) => (id === identity.session_id ? identity : undefined),
    handle: (_session, request, response) => streams.answer(request, response),
  });
  const port = await server.listen('127.0.0.1', undefined);
  return {
    port,
    close: async () => {
      streams.stop();
      await server.close();
    },
  };
}

/** One that knows HTTP/1.1 alone: each request has a connection of its own, each event a record. */
export async function startPacedPlain(
  identity: SessionIdentity,
  heartbeat: () => string,
): Promise<PacedUpstream> {
  const streams = new PacedStreams(heartbeat);
  const server = createServer(
    { ...sessionTlsServerOptions(() => identity), requestCert: false, keepAliveTimeout: 600_000 },
    (request, response) => streams.answer(request, response),
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    port: (server.address() as AddressInfo).port,
    close: async () => {
      streams.stop();
      server.closeAllConnections();
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}

/**
 * Streams of which each sends one event at a time, and all of the same pace at once: what a batch of sequences on an
 * engine looks like to a proxy.
 */
export class PacedStreams {
  readonly #heartbeat: () => string;
  readonly #batches = new Map<number, Batch>();
  readonly #watches = new Set<NodeJS.Timeout>();

  /** @param heartbeat of a session; absent: nobody watches */
  constructor(heartbeat: () => string = () => '{}') {
    this.#heartbeat = heartbeat;
  }

  answer(request: IncomingMessage, response: ServerResponse): void {
    if (request.url === agentPaths.watch) this.#watch(response);
    else if (request.method === 'GET') answerJson(response, modelList);
    else void this.#generate(request, response);
  }

  stop(): void {
    for (const watch of this.#watches) clearInterval(watch);
    for (const batch of this.#batches.values()) batch.stop();
  }

  #watch(response: ServerResponse): void {
    response.writeHead(200, { 'content-type': 'application/jsonl' });
    const beat = (): void => void response.write(`${this.#heartbeat()}\n`);
    beat();
    const timer = setInterval(beat, heartbeat_ms);
    this.#watches.add(timer);
    response.on('close', () => {
      clearInterval(timer);
      this.#watches.delete(timer);
    });
  }

  async #generate(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const { stream, messages } = JSON.parse(Buffer.concat(chunks).toString()) as {
      stream?: boolean;
      messages: { content: string }[];
    };
    if (!stream) return answerJson(response, instantAnswer);
    const pace = paceOf(messages.at(-1)!.content);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    let batch = this.#batches.get(pace.pause_ms);
    if (!batch) {
      batch = new Batch(pace.pause_ms);
      this.#batches.set(pace.pause_ms, batch);
    }
    batch.join(response, pace.events);
  }
}

function answerJson(response: ServerResponse, text: string): void {
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
  response.end(text);
}

/** Streams that are computed together: each iteration, each of them sends one event. */
class Batch {
  readonly #left = new Map<ServerResponse, number>();
  readonly #events = new Map<ServerResponse, number>();
  readonly #pause_ms: number;
  #timer: NodeJS.Timeout | undefined;

  constructor(pause_ms: number) {
    this.#pause_ms = pause_ms;
  }

  join(response: ServerResponse, events: number): void {
    this.#left.set(response, events);
    this.#events.set(response, events);
    response.on('close', () => this.#leave(response));
    this.#timer ??= setInterval(() => this.#iterate(), this.#pause_ms);
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  #leave(response: ServerResponse): void {
    this.#left.delete(response);
    this.#events.delete(response);
    if (this.#left.size === 0) this.stop();
  }

  #iterate(): void {
    for (const [response, left] of this.#left) {
      if (left > 0) {
        response.write(chunk);
        this.#left.set(response, left - 1);
      } else {
        response.end(lastOf(this.#events.get(response)!));
        this.#leave(response);
      }
    }
  }
}

const chunk = `data: ${JSON.stringify({
  id: 'chatcmpl-bench',
  object: 'chat.completion.chunk',
  created: 1,
  model: 'bench',
  choices: [{ index: 0, delta: { content: ' token' }, logprobs: null, finish_reason: null }],
})}\n\n`;

function lastOf(events: number): string {
  const usage = { prompt_tokens: 9, completion_tokens: events, total_tokens: events + 9 };
  return [
    chunk.replace('"finish_reason":null', '"finish_reason":"stop"'),
    `data: ${JSON.stringify({ id: 'chatcmpl-bench', choices: [], usage })}\n\n`,
    'data: [DONE]\n\n',
  ].join('');
}
