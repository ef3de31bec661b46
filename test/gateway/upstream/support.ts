/** A node's port with a server of its own making behind it, and the pool of a gateway that asks there. */
import { mkdtempSync, rmSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TLSSocket } from 'node:tls';
import { expect } from 'vitest';
import { SessionServer } from '../../../agent/node/session-server.ts';
import type { AnswerReceiver } from '../../../gateway/upstream/connection.ts';
import { type Call, UpstreamPool } from '../../../gateway/upstream/pool.ts';
import { SessionWays } from '../../../gateway/upstream/session-ways.ts';
import { channel_protocol, LocalSession, pinnedConnect, RendezvousRegistry } from '../../../mesh/index.ts';
import type { SessionMetadata } from '../../../spec/session-record.ts';

export const MiB = 1024 * 1024;
export const event = `data: {"choices":[{"delta":{"content":" token"}}]}\n\n`;

function described(role: SessionMetadata['role']): SessionMetadata {
  return {
    ...{ role, node: 'a', hostname: 'a', site: 'test', provider: 'tester@test', tier: 'stable' },
    ...{ devices: [], models: [], addresses: [] },
  };
}

interface Dialled {
  pool: UpstreamPool;
  /** Connections that it made. */
  sockets: TLSSocket[];
}

/** A node that serves one session, and a gateway's session that may ask it. */
export class AskedNode {
  readonly node: LocalSession;
  readonly gateway: LocalSession;
  readonly pools: UpstreamPool[] = [];
  /** What answers now. */
  handle: (request: IncomingMessage, response: ServerResponse) => void = answerPath;
  port = 0;
  readonly #folder: string;
  readonly #registry: RendezvousRegistry;
  #server: SessionServer | undefined;

  private constructor(
    folder: string,
    registry: RendezvousRegistry,
    node: LocalSession,
    gateway: LocalSession,
  ) {
    this.#folder = folder;
    this.#registry = registry;
    this.node = node;
    this.gateway = gateway;
  }

  static async open(): Promise<AskedNode> {
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-channels-'));
    const registry = await RendezvousRegistry.open(join(folder, 'mesh'), { create: true, poll_ms: 50 });
    const node = await LocalSession.join(registry, described('engine'));
    const asked = new AskedNode(
      folder,
      registry,
      node,
      await LocalSession.join(registry, described('gateway')),
    );
    asked.#server = asked.newServer();
    asked.port = await asked.#server.listen('127.0.0.1', undefined);
    const addresses = [{ host: '127.0.0.1', port: asked.port }];
    await node.update({ lifecycle: 'SERVING', metadata: { addresses } });
    return asked;
  }

  newServer(headers_timeout_ms = 15_000): SessionServer {
    return new SessionServer({
      registry: this.#registry,
      identityOf: (id) => (id === this.node.id ? this.node.identity : undefined),
      headers_timeout_ms,
      handle: (_session, request, response) => this.handle(request, response),
    });
  }

  newPool(port = this.port, protocols: readonly string[] = [channel_protocol, 'http/1.1']): Dialled {
    const sockets: TLSSocket[] = [];
    const { record } = this.node;
    const there = {
      ...record,
      metadata: { ...record.metadata, addresses: [{ host: '127.0.0.1', port }] },
    };
    const ways = new SessionWays(async (read) => {
      const socket = await pinnedConnect(there, this.gateway.identity, { read, protocols });
      sockets.push(socket);
      return socket;
    });
    const pool = new UpstreamPool(ways);
    this.pools.push(pool);
    return { pool, sockets };
  }

  /** As it was before a test. */
  reset(): void {
    for (const pool of this.pools.splice(0)) pool.destroy(new Error('the test is over'));
    this.handle = answerPath;
  }

  async close(): Promise<void> {
    await this.#server?.close();
    await this.#registry.close();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** Answers with the path that was asked for. */
export function answerPath(request: IncomingMessage, response: ServerResponse): void {
  request.resume();
  const text = String(request.url);
  response.setHeader('content-length', text.length);
  response.end(text);
}

/** What a receiver was told. */
export class Answer implements AnswerReceiver {
  status = 0;
  readonly chunks: Buffer[] = [];
  ends = 0;
  readonly errors: Error[] = [];
  call: Call | undefined;
  /** Whether it takes bytes as they come. */
  reads = true;

  onHead({ status }: { status: number }): void {
    this.status = status;
  }

  onBody(bytes: Buffer): boolean {
    this.chunks.push(bytes);
    return this.reads;
  }

  onEnd(): void {
    this.ends++;
  }

  onError(error: Error): void {
    this.errors.push(error);
  }

  get length(): number {
    return this.chunks.reduce((sum, { length }) => sum + length, 0);
  }

  get text(): string {
    return Buffer.concat(this.chunks).toString();
  }

  get over(): boolean {
    return this.ends + this.errors.length > 0;
  }

  async whole(): Promise<this> {
    await expect.poll(() => this.over, { timeout: 30_000, interval: 2 }).toBe(true);
    expect(this.errors).toEqual([]);
    expect(this.ends).toBe(1);
    return this;
  }
}

export function ask(pool: UpstreamPool, path: string, body: Buffer[] = []): Answer {
  const length = body.reduce((sum, piece) => sum + piece.length, 0);
  const answer = new Answer();
  const head = `POST ${path} HTTP/1.1\r\nhost: node\r\ncontent-length: ${length}\r\n\r\n`;
  answer.call = pool.send(head, body, answer);
  return answer;
}

export async function expectServing(pool: UpstreamPool): Promise<void> {
  expect((await ask(pool, '/still').whole()).text).toBe('/still');
}

/** Writes until it is told to wait, again and again. */
export function flood(response: ServerResponse, bytes: Buffer, total: number): { written: number } {
  const state = { written: 0 };
  const more = (): void => {
    while (state.written < total && !response.destroyed) {
      state.written += bytes.length;
      if (!response.write(bytes)) {
        response.once('drain', more);
        return;
      }
    }
    response.end();
  };
  more();
  return state;
}
