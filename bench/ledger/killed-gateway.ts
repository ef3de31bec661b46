/**
 * A gateway as hpcserve starts it, killed under load again and again; what clients were answered is compared with what
 * its ledger has.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { openSync, readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import Database from 'better-sqlite3';
import { compiledFile } from '../../host/programs.ts';
import { openLedgerReader } from '../../ledger/index.ts';
import { LocalSession, ProviderKey, RendezvousRegistry, sessionTlsServerOptions } from '../../mesh/index.ts';
import { holderNodeOptions } from '../../spec/gateway-node-options.ts';
import { type GatewayConfig, type GatewayEndpoint, gatewayFiles } from '../../spec/state-layout.ts';
import { agentPaths } from '../../spec/wire.ts';
import {
  beat,
  delegationOf,
  freePort,
  makeKey,
  metadata,
  untilServed,
  writeGatewayConfig,
} from '../gateway/setting.ts';

const model = 'killed';
const clients = 16;
/** A holder starts its gateway again at once after the first end, and after ever longer pauses from the third on. */
const kills_each = 2;
const start_ms = 240_000;
/** Answers before a gateway's code is compiled, and those whose CPU time is measured then. */
const warm_answers = 2000;
const measured_answers = 3000;

export interface KillOutcome {
  kills: number;
  /** Requests whose whole answer a client has. */
  answered: number;
  /** Of these, those that the ledger has not; and those it has more than once. */
  missing: string[];
  twice: string[];
  /** Requests of the ledger, and what its sums by hour say. */
  rows: number;
  summed: number;
  /** CPU time that the event loop of the first gateway took for a request, all on, µs. */
  request_us: number;
}

/** Kills the gateway so many times, each after another part of a second under load. */
export async function killUnderLoad(
  folder: string,
  kills: number,
  log: (line: string) => void,
): Promise<KillOutcome> {
  await using stage = await Stage.open(folder);
  const answered: string[] = [];
  let done = false;
  let asking: Promise<void>[] = [];
  let request_us: number | undefined;
  for (let killed = 0; killed < kills; ) {
    await using holder = stage.startHolder();
    let pid = 0;
    for (let here = 0; here < kills_each && killed < kills; here++) {
      const endpoint = await holder.nextGateway(pid);
      pid = endpoint.pid;
      const key = await stage.key(endpoint);
      await untilServed(endpoint.url, key, [model]);
      if (asking.length === 0)
        asking = Array.from({ length: clients }, (_, client) =>
          askUntil(() => done, `${endpoint.url}/v1/chat/completions`, key, client, answered),
        );
      request_us ??= await costOfRequest(pid, answered);
      const before = answered.length;
      await until(() => answered.length >= before + clients, 'answers', start_ms);
      await delay((killed * 37) % 300);
      process.kill(pid, 'SIGKILL');
      killed++;
      if (killed % 20 === 0) log(`${killed} kills, ${answered.length} answers`);
    }
  }
  done = true;
  await Promise.all(asking);
  return { kills, answered: answered.length, request_us: request_us!, ...compare(stage.ledger, answered) };
}

/** Of the process's first thread, which is its event loop: those that move requests into tables are others. */
async function costOfRequest(pid: number, answered: readonly string[]): Promise<number> {
  const loop_us = (): number =>
    Number(readFileSync(`/proc/${pid}/task/${pid}/schedstat`, 'utf8').split(' ')[0]) / 1000;
  await until(() => answered.length >= warm_answers, 'answers of a warm gateway', start_ms);
  const [answers, before_us] = [answered.length, loop_us()];
  await until(() => answered.length >= answers + measured_answers, 'answers to measure', start_ms);
  return (loop_us() - before_us) / (answered.length - answers);
}

function compare(
  ledger: string,
  answered: readonly string[],
): Omit<KillOutcome, 'kills' | 'answered' | 'request_us'> {
  // The last gateway was killed as well: opening the ledger takes what it had not moved into tables.
  const reader = openLedgerReader(ledger);
  const summed = reader.usage({ group_by: ['endpoint'] }).reduce((sum, { requests }) => sum + requests, 0);
  reader.close();
  const db = new Database(ledger, { readonly: true });
  const ids = db.prepare('SELECT request_id FROM requests').pluck().all() as string[];
  db.close();
  const counts = new Map<string, number>();
  for (const id of ids) counts.set(id, (counts.get(id) ?? 0) + 1);
  return {
    missing: answered.filter((id) => !counts.has(id)),
    twice: [...counts].filter(([, count]) => count > 1).map(([id]) => id),
    rows: ids.length,
    summed,
  };
}

/** Asks one request after another, streams and others in turn, each with an id of its own. */
async function askUntil(
  isDone: () => boolean,
  url: string,
  key: string,
  client: number,
  answered: string[],
): Promise<void> {
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  for (let count = 0; !isDone(); count++) {
    const request_id = `req-${client}-${count}-${randomBytes(6).toString('hex')}`;
    const stream = count % 2 === 0;
    try {
      const answer = await fetch(url, {
        method: 'POST',
        headers: { ...headers, 'x-request-id': request_id },
        body: JSON.stringify({ model, stream, messages: [{ role: 'user', content: 'hello' }] }),
        signal: AbortSignal.timeout(10_000),
      });
      const text = await answer.text();
      // Whole, to its last byte: that is when it has to be in the ledger.
      if (answer.status === 200 && text.endsWith(stream ? 'data: [DONE]\n\n' : '}'))
        answered.push(request_id);
    } catch {
      // It was killed: nothing of this request was promised.
      await delay(5);
    }
  }
}

/** What stays while gateways come and go: the mesh, a session that answers, the folder of the gateway. */
class Stage {
  readonly ledger: string;
  readonly #config: GatewayConfig;
  readonly #config_file: string;
  readonly #log: number;
  readonly #closers: (() => Promise<unknown>)[];
  #key: string | undefined;

  private constructor(folder: string, config: GatewayConfig, closers: (() => Promise<unknown>)[]) {
    this.#config = config;
    this.#config_file = join(config.gateway_folder, gatewayFiles.config);
    this.ledger = join(config.gateway_folder, gatewayFiles.ledger);
    this.#log = openSync(join(folder, 'gateway.log'), 'a');
    this.#closers = closers;
  }

  static async open(folder: string): Promise<Stage> {
    const mesh_folder = join(folder, 'mesh');
    const registry = await RendezvousRegistry.open(mesh_folder, { create: true });
    const provider_key_file = join(folder, 'provider.key');
    const delegation = delegationOf(ProviderKey.loadOrCreate(provider_key_file));
    const session = await LocalSession.join(registry, metadata(model, 1), undefined, () => delegation);
    const upstream = await startUpstream(session);
    const address = { host: '127.0.0.1', port: (upstream.address() as AddressInfo).port };
    await session.update({ lifecycle: 'SERVING', metadata: { addresses: [address] } });
    const config = writeGatewayConfig(folder, mesh_folder, provider_key_file, await freePort());
    return new Stage(folder, config, [
      () => registry.close(),
      () => new Promise((resolve) => upstream.close(resolve).closeAllConnections()),
      () => session.leave(),
    ]);
  }

  startHolder(): Holder {
    const program = compiledFile('gateway/holder/main.js');
    const child = spawn(process.execPath, [...holderNodeOptions, program, '--config', this.#config_file], {
      stdio: ['ignore', this.#log, this.#log],
    });
    return new Holder(child, join(this.#config.gateway_folder, gatewayFiles.endpoint));
  }

  /** One key for all gateways. */
  async key({ url }: GatewayEndpoint): Promise<string> {
    this.#key ??= await makeKey(url, this.#config);
    return this.#key;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const close of this.#closers.reverse()) await close();
  }
}

/** The process that starts a gateway, and starts it again. */
class Holder {
  readonly #child: ChildProcess;
  readonly #endpoint_file: string;
  readonly #exited: Promise<unknown>;

  constructor(child: ChildProcess, endpoint_file: string) {
    this.#child = child;
    this.#endpoint_file = endpoint_file;
    this.#exited = new Promise((resolve) => child.once('exit', resolve));
  }

  /** The gateway that listens after the one with this pid. */
  async nextGateway(before: number): Promise<GatewayEndpoint> {
    let endpoint: GatewayEndpoint | undefined;
    await until(
      () => {
        if (this.#child.exitCode !== null)
          throw new Error(`the gateway’s holder ended with ${this.#child.exitCode}`);
        endpoint = readEndpoint(this.#endpoint_file);
        return (
          endpoint !== undefined && endpoint.pid !== before && parentOf(endpoint.pid) === this.#child.pid
        );
      },
      'a gateway',
      start_ms,
    );
    return endpoint!;
  }

  /** While it waits to start another, or its gateway: both end. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#child.kill('SIGTERM');
    await this.#exited;
  }
}

/** Answers chat completions at once, as JSON or as a stream of three events. */
async function startUpstream(session: LocalSession): Promise<Server> {
  let sequence = 0;
  const heartbeat = (): string => `${JSON.stringify(beat(session.id, model, sequence++))}\n`;
  const server = createServer(
    { ...sessionTlsServerOptions(() => session.identity), requestCert: false, keepAliveTimeout: 600_000 },
    async (request, response) => {
      if (request.url === agentPaths.watch) {
        response.writeHead(200, { 'content-type': 'application/jsonl' });
        response.write(heartbeat());
        const timer = setInterval(() => response.write(heartbeat()), 500);
        response.on('close', () => clearInterval(timer));
      } else await answer(request, response);
    },
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return server;
}

async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  let text = '';
  for await (const chunk of request) text += String(chunk);
  const { stream } = JSON.parse(text || '{}') as { stream?: boolean };
  const id = { id: 'chatcmpl-killed', created: 1, model };
  const usage = { prompt_tokens: 9, completion_tokens: 2, total_tokens: 11 };
  if (!stream) {
    const message = { role: 'assistant', content: 'Hello.' };
    const choices = [{ index: 0, message, finish_reason: 'stop' }];
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ ...id, object: 'chat.completion', choices, usage }));
    return;
  }
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  const chunk = { ...id, object: 'chat.completion.chunk' };
  for (const [content, finish_reason] of [
    ['Hello', null],
    ['.', 'stop'],
  ] as const) {
    const choices = [{ index: 0, delta: { content }, finish_reason }];
    response.write(`data: ${JSON.stringify({ ...chunk, choices })}\n\n`);
  }
  response.end(`data: ${JSON.stringify({ ...chunk, choices: [], usage })}\n\ndata: [DONE]\n\n`);
}

function readEndpoint(path: string): GatewayEndpoint | undefined {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as GatewayEndpoint;
  } catch {
    return undefined; // It is not there yet.
  }
}

function parentOf(pid: number): number | undefined {
  try {
    return Number(/^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]);
  } catch {
    return undefined; // It ended.
  }
}

async function until(is: () => boolean, what: string, limit_ms: number): Promise<void> {
  const deadline = performance.now() + limit_ms;
  while (!is()) {
    if (performance.now() > deadline) throw new Error(`${what} did not come within ${limit_ms / 1000} s`);
    await delay(20);
  }
}
