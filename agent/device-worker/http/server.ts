import { chmodSync, existsSync, rmSync, statSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { connect } from 'node:net';
import { dirname } from 'node:path';
import type { DeviceReport } from '../../../spec/device-report.ts';
import { moveAwaySchema, type SharedDeviceView } from '../../../spec/device-view.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { agentPaths, clientPaths, headers as headerNames, limits } from '../../../spec/wire.ts';
import type { AnswerContext } from '../answers/answer.ts';
import type { WorkerMetrics } from '../metrics.ts';
import type { Models } from '../models.ts';
import type { AnswerMover } from '../moving/answer-mover.ts';
import { BodyReader } from '../requests/body-reader.ts';
import { chatCompletion } from '../requests/chat.ts';
import { textCompletion } from '../requests/completions.ts';
import { embeddings } from '../requests/embeddings.ts';
import { detokenize, tokenize } from '../requests/tokens.ts';
import type { ServedModel } from '../served-model.ts';
import type { WorkerLimits } from '../worker-options.ts';
import { largestBody_bytes, readJson } from './read-body.ts';
import { replyError, sendJson } from './replies.ts';
import { TensorAnswers } from './tensors.ts';

/**
 * A request's head and body must be complete within this. Lower: idle uploads are cut sooner; higher: slow uploads
 * pass.
 */
const request_timeout_ms = 120_000;
/** Last words of answers must be taken within this when the worker ends; their readers are on this node. */
const flush_ms = 500;
/** sizeof(sockaddr_un.sun_path) on Linux is 108 with its NUL. */
const socket_path_bytes_max = 107;

type Handler = (body: BodyReader, model: ServedModel, context: AnswerContext) => void;

const generating: Record<string, Handler> = {
  '/v1/chat/completions': chatCompletion,
  '/v1/completions': textCompletion,
  '/v1/embeddings': embeddings,
  [clientPaths.tokenize]: tokenize,
  [clientPaths.detokenize]: detokenize,
};
const reading = ['/v1/models', '/health', '/metrics', agentPaths.device, agentPaths.sharing];
const posted: string[] = [agentPaths.move, agentPaths.tensors, agentPaths.kv];
/** Answers that are to leave with their KV have so long; the gateway that asks waits a little longer. */
const leave_ms = 3000;

/** OpenAI's paths, and those for a model's tokens, on a unix socket. */
export class WorkerServer {
  /** Set while nothing new is admitted. */
  draining = false;
  readonly #models: Models;
  readonly #metrics: WorkerMetrics;
  readonly #workerLimits: WorkerLimits;
  readonly #server: Server;
  #path: string | undefined;

  readonly #tensors: TensorAnswers | undefined;
  readonly #report: () => Promise<DeviceReport>;
  readonly #mover: AnswerMover | undefined;

  /**
   * @param mover absent: answers go on elsewhere from their tokens alone
   * @param report what the device's worker says of itself
   */
  constructor(
    models: Models,
    metrics: WorkerMetrics,
    workerLimits: WorkerLimits,
    mover: AnswerMover | undefined,
    report: () => Promise<DeviceReport>,
  ) {
    this.#report = report;
    this.#mover = mover;
    this.#models = models;
    this.#tensors = models.shared && new TensorAnswers(models.shared);
    this.#metrics = metrics;
    this.#workerLimits = workerLimits;
    this.#server = createServer(
      { maxHeaderSize: limits.header_bytes, requestTimeout: request_timeout_ms, keepAliveTimeout: 60_000 },
      (request, response) => {
        void this.#handle(request, response);
      },
    );
    this.#server.maxConnections = limits.connections;
  }

  /** @throws HpcserveError E_WORKER_SOCKET where the folder is not private, the path too long or taken */
  async listen(path: string): Promise<void> {
    await checkSocketPath(path);
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', (error) => {
        reject(
          new HpcserveError('E_WORKER_SOCKET', { what: `cannot listen on ${path}`, because: error.message }),
        );
      });
      this.#server.listen(path, resolve);
    });
    chmodSync(path, 0o600);
    this.#path = path;
  }

  /** Ends connections, at once where no answer is on its way; the socket's file is removed. */
  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    const idle = setInterval(() => this.#server.closeIdleConnections(), flush_ms / 25);
    const limit = setTimeout(() => this.#server.closeAllConnections(), flush_ms);
    await closed;
    clearInterval(idle);
    clearTimeout(limit);
    if (this.#path !== undefined) rmSync(this.#path, { force: true });
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname } = new URL(request.url ?? '/', 'http://worker');
    const known = pathname in generating || reading.includes(pathname) || posted.includes(pathname);
    const id = request.headers[headerNames.request_id];
    const headers: Record<string, string> = typeof id === 'string' ? { [headerNames.request_id]: id } : {};
    // A connection that breaks is seen by `close`; without a listener the error would end the process.
    response.on('error', () => {});
    response.on('close', () => this.#metrics.request(known ? pathname : 'other', response.statusCode));
    try {
      const handler = generating[pathname];
      if (handler) await this.#generate(handler, request, response, headers);
      else if (pathname === agentPaths.move) await this.#move(request, response, headers);
      else if (this.#mover && pathname === agentPaths.kv) await this.#mover.answer(request, response);
      else if (this.#tensors && pathname === agentPaths.tensors) await this.#held(request, response);
      else if (this.#tensors && pathname.startsWith(`${agentPaths.tensors}/`))
        await this.#tensors.range(request, response);
      else await this.#read(pathname, request, response, headers);
    } catch (error) {
      const failure = HpcserveError.from(error);
      if (failure.code === 'E_INTERNAL') process.stderr.write(`${stackOf(error)}\n`);
      // A body that was not read to its end would be taken for the next request.
      if (!request.complete) response.setHeader('connection', 'close');
      replyError(response, failure, headers);
    }
  }

  async #generate(
    handler: Handler,
    request: IncomingMessage,
    response: ServerResponse,
    headers: Record<string, string>,
  ): Promise<void> {
    this.#checkMethod(request, 'POST', response);
    if (this.draining)
      throw new HpcserveError('E_WORKER_DRAINING', { what: 'This device worker admits nothing new' });
    const routed = request.headers[headerNames.model];
    const scope = request.headers[headerNames.cache_scope];
    const body = new BodyReader(await readJson(request, this.#largestBody_bytes(routed)));
    const name = body.string('model');
    if (name === undefined) return body.refuse('model', 'is required');
    const model = this.#models.find(name, typeof routed === 'string' ? routed : undefined);
    if (response.destroyed) return;
    model.borrow();
    response.on('close', () => model.release());
    const { info, config } = model;
    handler(body, model, {
      models: this.#models,
      response,
      headers: {
        ...headers,
        ...(info ? { [headerNames.precision]: info.file_type } : {}),
        [headerNames.model]: config.name,
      },
      token_ids: request.headers[headerNames.token_ids] === '1',
      timings: request.headers[headerNames.timings] === '1',
      may_move: request.headers[headerNames.may_move] === '1',
      arrived_kv: arrivedKv(request),
      cache_scope: typeof scope === 'string' ? scope : undefined,
      slow_client_ms: this.#workerLimits.slow_client_ms,
      admit: (sequences) => this.#admit(model, sequences, request.headers[headerNames.at_once] === '1'),
    });
  }

  /** Of the model that the gateway chose; where nobody says which, of the one with the longest context. */
  #largestBody_bytes(routed: string | string[] | undefined): number {
    const named = this.#models.all.filter(({ config }) => encodeURI(config.name) === routed);
    const models = named.length > 0 ? named : this.#models.all;
    return largestBody_bytes(Math.max(0, ...models.map(({ config }) => config.context_tokens)));
  }

  /**
   * @param at_once who asks knows of other replicas: nothing waits here
   * @throws HpcserveError E_WORKER_BUSY where the queue is too full, E_REQUEST_INVALID where it could never hold so
   * many
   */
  #admit({ config, max_sequences }: ServedModel, sequences: number, at_once: boolean): void {
    const longest = max_sequences + this.#workerLimits.waiting_sequences;
    const most = at_once ? max_sequences : longest;
    if (sequences > longest)
      throw new HpcserveError('E_REQUEST_INVALID', {
        what: `The request asks for ${sequences} answers at once, and ${config.name} takes at most ${longest}`,
      });
    const live = this.#models.liveOf(config.name);
    if (live + sequences > most)
      throw new HpcserveError('E_WORKER_BUSY', {
        what: `${live} of at most ${most} sequences of ${config.name} run or wait already`,
      });
  }

  async #read(
    path: string,
    request: IncomingMessage,
    response: ServerResponse,
    headers: Record<string, string>,
  ): Promise<void> {
    const one = /^\/v1\/models\/(.+)$/.exec(path)?.[1];
    if (!reading.includes(path) && one === undefined)
      throw new HpcserveError('E_REQUEST_PATH', { what: `There is no ${path} here` });
    this.#checkMethod(request, 'GET', response);
    if (one !== undefined) {
      sendJson(response, 200, describe(this.#models.find(decodeURIComponent(one))), headers);
    } else if (path === '/v1/models') {
      const data = this.#models.all.filter(({ state }) => state === 'serving').map(describe);
      sendJson(response, 200, { object: 'list', data }, headers);
    } else if (path === agentPaths.device) {
      sendJson(response, 200, await this.#report(), headers);
    } else if (path === agentPaths.sharing) {
      sendJson(response, 200, await this.#view(), headers);
    } else if (path === '/health') {
      const status = this.draining ? 'draining' : 'ok';
      sendJson(response, this.draining ? 503 : 200, { status, models: this.#models.loads }, headers);
    } else {
      const text = await this.#metrics.text(this.#models.all);
      response.writeHead(200, { 'content-type': this.#metrics.contentType }).end(text);
    }
  }

  /** What the compute thread knows, and how KV of its answers moves. */
  async #view(): Promise<SharedDeviceView> {
    const { view } = await this.#models.report();
    const instances = view.instances.map(async (instance) => ({
      ...instance,
      kv_moves: await this.#mover?.costsOf(instance.model),
    }));
    return { ...view, instances: await Promise.all(instances) };
  }

  async #move(
    request: IncomingMessage,
    response: ServerResponse,
    headers: Record<string, string>,
  ): Promise<void> {
    this.#checkMethod(request, 'POST', response);
    const asked = moveAwaySchema.safeParse(await readJson(request, largestBody_bytes(0)));
    if (!asked.success)
      throw new HpcserveError('E_REQUEST_INVALID', {
        what: 'The move was not understood',
        because: asked.error.issues.map(({ message }) => message),
      });
    const { model, because } = asked.data;
    const { name } = this.#models.find(model).config;
    // All or none: what cannot go on elsewhere keeps the others here.
    const canLeave = this.#models.liveSequences(name).every(({ movable }) => movable);
    const with_kv = canLeave ? ((await this.#mover?.evacuate([name], leave_ms, because)) ?? 0) : 0;
    sendJson(response, 200, { moved: with_kv + this.#models.leave(name, because) }, headers);
  }

  async #held(request: IncomingMessage, response: ServerResponse): Promise<void> {
    this.#checkMethod(request, 'POST', response);
    await this.#tensors!.held(request, response);
  }

  #checkMethod(request: IncomingMessage, method: string, response: ServerResponse): void {
    if (request.method === method || (method === 'GET' && request.method === 'HEAD')) return;
    response.setHeader('allow', method);
    throw new HpcserveError('E_REQUEST_METHOD', {
      what: `${request.url} is asked with ${method}, not with ${request.method}`,
    });
  }
}

/** What a gateway says that has come before a request; it names rows of this worker, or none. */
function arrivedKv({ headers }: IncomingMessage): string | undefined {
  const kv = headers[headerNames.arrived_kv];
  return typeof kv === 'string' && /^[0-9a-f]{1,64}$/.test(kv) ? kv : undefined;
}

function describe(model: ServedModel) {
  const { config, info, created_s } = model;
  return {
    id: config.name,
    object: 'model',
    created: created_s,
    owned_by: 'hpcserve',
    max_model_len: model.context_tokens,
    hpcserve: { aliases: config.aliases, precision: info?.file_type, architecture: info?.architecture },
  };
}

function stackOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}

async function checkSocketPath(path: string): Promise<void> {
  const refuse = (what: string, because: string): never => {
    throw new HpcserveError('E_WORKER_SOCKET', { what, because });
  };
  const bytes = Buffer.byteLength(path);
  if (bytes > socket_path_bytes_max)
    refuse(
      `the socket path ${path} is too long`,
      `it has ${bytes} bytes and Linux allows ${socket_path_bytes_max}`,
    );
  const folder = statSync(dirname(path), { throwIfNoEntry: false });
  if (!folder) return refuse(`the folder of ${path} is missing`, 'stat found nothing there');
  if ((folder.mode & 0o077) !== 0)
    refuse(
      `others can reach the folder of ${path}`,
      `its mode is ${(folder.mode & 0o777).toString(8)} and must be 700`,
    );
  if (!existsSync(path)) return;
  const answered = await new Promise<boolean>((resolve) => {
    const probe = connect(path, () => {
      probe.destroy();
      resolve(true);
    });
    probe.on('error', () => resolve(false));
  });
  if (answered) refuse(`the socket ${path} is taken`, 'another process listens on it');
  // Left behind by a process that was killed.
  rmSync(path);
}
