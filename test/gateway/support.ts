/** A gateway in this process, and sessions beside it that speak OpenAI's protocol over the mesh's own TLS. */
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer as createHttpsServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TLSSocket } from 'node:tls';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll } from 'vitest';
import { type GatewayOptions, type RunningGateway, startGateway } from '../../gateway/gateway.ts';
import type { GatewayTimes } from '../../gateway/gateway-times.ts';
import {
  authorizePeer,
  type Delegation,
  LocalSession,
  RendezvousRegistry,
  sessionTlsServerOptions,
} from '../../mesh/index.ts';
import type { ModelLoad } from '../../spec/agent-state.ts';
import type { EnergyReading } from '../../spec/energy.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { KeySettings } from '../../spec/key-settings.ts';
import type { SessionMetadata, SessionModel } from '../../spec/session-record.ts';
import type { GatewayConfig } from '../../spec/state-layout.ts';
import { agentPaths } from '../../spec/wire.ts';
import { providerKeyFileOf, testProvider } from '../mesh/providers.ts';

export interface UpstreamRequest {
  path: string;
  headers: IncomingMessage['headers'];
  body: string;
  /** Resolves when the client of this request has gone before its answer ended. */
  aborted: Promise<void>;
}

export type Answer = (request: UpstreamRequest, response: ServerResponse) => void | Promise<void>;

/** What a session serves, and what it is, as far as a test wants it otherwise. */
export type TestModel = Partial<SessionModel> & {
  node?: string;
  engine?: string;
  metadata?: Partial<SessionMetadata>;
};

/** One serving session: a TLS server, its record, and what it was asked for clients. */
export class TestSession {
  /** Without the gateway's own questions, which come now and then. */
  readonly requests: UpstreamRequest[] = [];
  readonly own: LocalSession;
  readonly #server: Server;
  readonly #sockets = new Set<TLSSocket>();
  readonly #beats = new Set<() => void>();
  readonly #timers = new Set<NodeJS.Timeout>();
  /** Watch streams that were asked for while it is silent; undefined while it speaks. */
  #unanswered: ServerResponse[] | undefined;
  #sequence = 0;
  answer: Answer;
  /** What it tells the gateway of how its device is shared. */
  shares: Answer = (_request, response) => void response.writeHead(404).end();
  load: Partial<ModelLoad> = {};
  /** What the counters of its devices say; absent: it has none. */
  energy: (() => EnergyReading) | undefined;
  /** What it says on each new connection, unasked. */
  greeting: string | undefined;

  private constructor(own: LocalSession, server: Server, answer: Answer) {
    this.own = own;
    this.#server = server;
    this.answer = answer;
  }

  static async start(
    registry: RendezvousRegistry,
    answer: Answer,
    { name = 'tiny', node = 'node1', engine = 'native', metadata = {}, ...model }: TestModel = {},
    delegate?: (provider: string, launch_id: string) => Delegation,
  ): Promise<TestSession> {
    const { provider = 'tester@test' } = metadata;
    const launch_id = randomBytes(8).toString('hex');
    const delegation = delegate?.(provider, launch_id);
    const described: SessionMetadata = {
      role: 'engine',
      node,
      hostname: node,
      site: 'test',
      provider,
      launch_id,
      tier: 'stable',
      engine,
      deployment: 'demo',
      job_id: '4711',
      devices: [],
      models: [{ name, aliases: [], state: 'serving', precision: 'f16', context_tokens: 2048, ...model }],
      addresses: [],
      ...metadata,
    };
    const own = await LocalSession.join(registry, described, undefined, () => delegation);
    const server = createHttpsServer(
      sessionTlsServerOptions((id) => (id === own.id ? own.identity : undefined)),
    );
    const session = new TestSession(own, server, answer);
    server.on('request', (request, response) => void session.#handle(registry, request, response));
    server.on('secureConnection', (socket) => {
      session.#sockets.add(socket);
      if (session.greeting !== undefined) socket.write(session.greeting);
      socket.on('close', () => session.#sockets.delete(socket));
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as AddressInfo;
    await own.update({ lifecycle: 'SERVING', metadata: { addresses: [{ host: '127.0.0.1', port }] } });
    return session;
  }

  /** Heartbeats so far. */
  get beats(): number {
    return this.#sequence;
  }

  /** Every connection ends at once, as when the process is killed; nothing listens any more. */
  async kill(): Promise<void> {
    for (const timer of this.#timers) clearInterval(timer);
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  /** Says nothing more and keeps its connections, as a node whose network is gone. */
  fallSilent(): void {
    for (const timer of this.#timers) clearInterval(timer);
    this.#beats.clear();
    this.#unanswered ??= [];
  }

  /** Its network is back. */
  speakAgain(): void {
    const unanswered = this.#unanswered ?? [];
    this.#unanswered = undefined;
    for (const response of unanswered) this.#watch(response);
  }

  async stop(): Promise<void> {
    await this.own.leave();
    await this.kill();
  }

  beat(): void {
    for (const send of this.#beats) send();
  }

  async #handle(
    registry: RendezvousRegistry,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    try {
      await authorizePeer(request.socket as TLSSocket, registry);
    } catch (error) {
      // As node agents do it: a gateway that has left meanwhile is no member.
      if (!(error instanceof HpcserveError) || error.code !== 'E_MESH_PEER') throw error;
      response.writeHead(error.http_status, { connection: 'close' }).end();
      return;
    }
    if (request.url === agentPaths.watch) {
      this.#watch(response);
      return;
    }
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const aborted = new Promise<void>((resolve) => {
      response.on('close', () => {
        if (!response.writableFinished) resolve();
      });
    });
    const seen = {
      path: request.url!,
      headers: request.headers,
      body: Buffer.concat(chunks).toString(),
      aborted,
    };
    if (seen.path === agentPaths.sharing) {
      await this.shares(seen, response);
      return;
    }
    this.requests.push(seen);
    await this.answer(seen, response);
  }

  #watch(response: ServerResponse): void {
    if (this.#unanswered) {
      this.#unanswered.push(response);
      return;
    }
    if (response.destroyed) return;
    response.writeHead(200, { 'content-type': 'application/jsonl' });
    const [model] = this.own.record.metadata.models;
    if (!model) {
      // It has left.
      response.destroy();
      return;
    }
    const send = (): void => {
      const load: ModelLoad = {
        name: model.name,
        state: model.state,
        running: 0,
        waiting: 0,
        max_sequences: 8,
        kv_tokens_total: 1024,
        kv_tokens_used: 0,
        ...this.load,
      };
      response.write(
        `${JSON.stringify({ session_id: this.own.id, sequence: this.#sequence++, energy: this.energy?.(), models: [load] })}\n`,
      );
    };
    send();
    this.#beats.add(send);
    const timer = setInterval(send, 200);
    this.#timers.add(timer);
    response.on('close', () => {
      clearInterval(timer);
      this.#beats.delete(send);
    });
  }
}

export interface Stage {
  folder: string;
  config: GatewayConfig;
  registry: RendezvousRegistry;
  gateway: RunningGateway;
  url: string;
  /** A valid API key and its id. */
  key: string;
  key_id: string;
  /** JSON lines the gateway logged so far. */
  logged: string[];
  session(answer: Answer, model?: TestModel): Promise<TestSession>;
  /** Fingerprint of the key that sessions of this provider prove. */
  fingerprint(provider: string): string;
  /** A further API key. */
  newKey(settings: KeySettings): Promise<{ id: string; key: string }>;
  admin(path: string, init?: { method?: string; body?: unknown }): Promise<Response>;
  post(path: string, body: unknown, headers?: Record<string, string>): Promise<Response>;
  close(): Promise<void>;
}

/** The config of a gateway whose folders are below one of a test. */
export function testConfig(folder: string, change: Partial<GatewayConfig> = {}): GatewayConfig {
  return {
    format: 1,
    site: 'test',
    provider: 'tester@test',
    host: '127.0.0.1',
    port: 0,
    mesh_folder: join(folder, 'mesh'),
    gateway_folder: join(folder, 'gateway'),
    deployments_folder: join(folder, 'deployments'),
    ...change,
  };
}

function adminOf(url: string, token: string): Stage['admin'] {
  return (path, { method = 'GET', body } = {}) => {
    const headers: Record<string, string> = { authorization: `Bearer ${token}` };
    if (body === undefined) return fetch(url + path, { method, headers });
    headers['content-type'] = 'application/json';
    return fetch(url + path, { method, headers, body: JSON.stringify(body) });
  };
}

export async function startStage(
  times: Partial<GatewayTimes> = {},
  change: Partial<GatewayConfig> = {},
  options: Pick<GatewayOptions, 'waiting_max' | 'start_limit'> = {},
): Promise<Stage> {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-gateway-test-'));
  const config = testConfig(folder, {
    provider_key_file: providerKeyFileOf(folder, 'tester@test'),
    ...change,
  });
  const registry = await RendezvousRegistry.open(config.mesh_folder, { create: true, poll_ms: 50 });
  const logged: string[] = [];
  const log = pino({ level: 'debug' }, { write: (line: string) => void logged.push(line) });
  const gateway = await startGateway(config, {
    ...options,
    log,
    times: { poll_ms: 50, drain_ms: 2000, keys_ms: 50, limits_ms: 50, ...times },
  });
  const { url } = gateway.endpoint;
  const sessions: TestSession[] = [];
  const admin = adminOf(url, gateway.admin_token);
  const made = (await (
    await admin('/hpcserve/v1/keys', { method: 'POST', body: { name: 'tester' } })
  ).json()) as { key: string; id: string };
  return {
    folder,
    config,
    registry,
    gateway,
    url,
    key: made.key,
    key_id: made.id,
    logged,
    admin,
    newKey: async (settings) => {
      const answer = await admin('/hpcserve/v1/keys', {
        method: 'POST',
        body: { name: 'another', settings },
      });
      if (answer.status !== 201) throw new Error(`no key was made: ${await answer.text()}`);
      return (await answer.json()) as { id: string; key: string };
    },
    fingerprint: (provider) => testProvider(folder, provider).id,
    session: async (answer, model) => {
      const session = await TestSession.start(registry, answer, model, (provider, launch_id) =>
        testProvider(folder, provider).launch(launch_id),
      );
      sessions.push(session);
      if ((model?.state ?? 'serving') === 'serving') await untilReachable(admin, session.own.id);
      else await untilListed(admin, session.own.id);
      return session;
    },
    post: (path, body, headers = {}) =>
      fetch(url + path, {
        method: 'POST',
        headers: { authorization: `Bearer ${made.key}`, 'content-type': 'application/json', ...headers },
        body: typeof body === 'string' ? body : JSON.stringify(body),
      }),
    close: async () => {
      await gateway.close();
      for (const session of sessions) await session.kill();
      await registry.close();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** A gateway that the tests of a file share. */
export interface SharedStage {
  /** There when tests run. */
  readonly stage: Stage;
  /** Those that the present test has started; they end with it. */
  readonly sessions: TestSession[];
  session: Stage['session'];
}

/**
 * Called at the top of a file: starts a gateway before its tests, and ends their sessions after each and itself at the
 * end.
 */
export function shareStage(...options: Parameters<typeof startStage>): SharedStage {
  let stage: Stage | undefined;
  const sessions: TestSession[] = [];
  beforeAll(async () => {
    stage = await startStage(...options);
  });
  afterEach(async () => {
    for (const session of sessions.splice(0)) await session.stop();
    await until(async () => {
      const table = (await (await stage!.admin('/hpcserve/v1/table')).json()) as { sessions: unknown[] };
      return table.sessions.length === 0;
    }, 'the sessions to be gone');
  });
  afterAll(() => stage?.close());
  return {
    get stage() {
      return stage!;
    },
    sessions,
    session: async (answer, model) => {
      const session = await stage!.session(answer, model);
      sessions.push(session);
      return session;
    },
  };
}

/** The gateway knows what it said of itself. */
async function untilListed(admin: Stage['admin'], session_id: string): Promise<void> {
  const answer = async (): Promise<string> => (await admin('/hpcserve/v1/table')).text();
  await until(async () => (await answer()).includes(session_id), `session ${session_id} to be listed`);
}

async function untilReachable(admin: Stage['admin'], session_id: string): Promise<void> {
  await until(async () => {
    const { sessions } = (await (await admin('/hpcserve/v1/table')).json()) as {
      sessions: { session_id: string; reachable: boolean; lifecycle: string }[];
    };
    return sessions.some(
      (session) => session.session_id === session_id && session.reachable && session.lifecycle === 'SERVING',
    );
  }, `session ${session_id} to be reachable`);
}

/** Waits for a condition; the error names what did not come. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  what: string,
  limit_ms = 15_000,
): Promise<void> {
  const deadline = performance.now() + limit_ms;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`waited ${limit_ms} ms in vain for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export const chatAnswer = {
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model: 'tiny',
  choices: [
    {
      index: 0,
      message: {
        role: 'assistant',
        content: 'hällo "usage": {"prompt_tokens": 99}',
        reasoning_content: 'hm',
      },
      logprobs: null,
      finish_reason: 'stop',
    },
  ],
  usage: {
    prompt_tokens: 5,
    completion_tokens: 7,
    total_tokens: 12,
    prompt_tokens_details: { cached_tokens: 2 },
    completion_tokens_details: { reasoning_tokens: 3 },
  },
};

/** Answers with JSON, as engines do. */
export function json(body: unknown, status = 200): Answer {
  return (_request, response) => {
    response.writeHead(status, { 'content-type': 'application/json', 'x-engine-extra': 'kept' });
    response.end(JSON.stringify(body));
  };
}

export function chunkEvent(content: string, finish_reason: string | null = null): string {
  return `data: ${JSON.stringify({ id: 'c1', object: 'chat.completion.chunk', created: 1, model: 'tiny', choices: [{ index: 0, delta: { content }, finish_reason }] })}\n\n`;
}

export const usageEvent = `data: ${JSON.stringify({ id: 'c1', object: 'chat.completion.chunk', created: 1, model: 'tiny', choices: [], usage: { prompt_tokens: 4, completion_tokens: 3, total_tokens: 7 } })}\n\n`;
export const doneEvent = 'data: [DONE]\n\n';

/** Sends pieces of a stream one by one, each after the one before has left. */
export function stream(pieces: readonly (string | Buffer)[]): Answer {
  return async (_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' });
    for (const piece of pieces) {
      await new Promise((resolve) => response.write(piece, resolve));
    }
    response.end();
  };
}

/** Writes control's record of a deployment, as far as the gateway reads it. */
export function writeDeployment(config: GatewayConfig, name: string, state: object): void {
  const folder = join(config.deployments_folder, name);
  mkdirSync(folder, { recursive: true });
  writeFileSync(
    join(folder, 'deployment.json'),
    JSON.stringify({ format: 1, name, desired: 'serving', ...state }),
  );
}
