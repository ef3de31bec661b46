import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage, RequestListener, Server } from 'node:http';
import type { Socket } from 'node:net';
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import { z } from 'zod';
import { type ApiKey, type KeyStore, type Ledger, usageDimensions } from '../ledger/index.ts';
import type { LocalSession } from '../mesh/index.ts';
import { parseProviders } from '../solver/routing/filter.ts';
import { parseQos } from '../solver/routing/qos.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { type KeyChanges, keyChangesSchema, keySettingsSchema } from '../spec/key-settings.ts';
import { printableName } from '../spec/printable-name.ts';
import type { SessionRecord } from '../spec/session-record.ts';
import { headers } from '../spec/wire.ts';
import type { Availability } from './availability.ts';
import type { Batches } from './batches/batches.ts';
import { batchRoutes } from './batches/routes.ts';
import type { BodyMemory } from './body-memory.ts';
import { deviceReports } from './device-reports.ts';
import { ollamaModelRoutes } from './dialects/ollama/models.ts';
import type { GatewayGossip } from './gateway-gossip.ts';
import { errorCodeHeader, errorEnvelope } from './http-error.ts';
import type { KeptForKeys } from './kept/kept-for-keys.ts';
import { responseRoutes } from './kept/response-routes.ts';
import type { KeyLimits } from './keys/key-limits.ts';
import type { KnownProviders } from './keys/known-providers.ts';
import { KnownPaths } from './known-paths.ts';
import type { GatewayLog } from './log.ts';
import { gatewayRows, idleNodeRows, sessionRows, tableQuery } from './mesh-table.ts';
import type { GatewayMetrics } from './metrics.ts';
import { ModelList } from './model-list.ts';
import { agentsOn, drainNode } from './node-drain.ts';
import {
  allowsModel,
  bearerOf,
  isUnrestricted,
  keyError,
  lookForKey,
  type OpenAiHandler,
} from './openai-handler.ts';
import { insteadOf } from './other-servers-paths.ts';
import { refactorOrderSchema, refactorPipeline } from './refactoring.ts';
import { requestIdOf } from './request-id.ts';
import type { Router } from './routing/router.ts';
import type { RoutingTable } from './routing/table.ts';
import type { SessionLink } from './session-link.ts';
import type { WorkloadMeter } from './workload/workload-meter.ts';

export interface ApiServices {
  table: RoutingTable<SessionLink>;
  router: Router;
  /** Every record of the mesh, gateways included. */
  records(): readonly SessionRecord[];
  mesh: GatewayGossip;
  /** As which it asks agents. */
  own: LocalSession;
  ledger: Ledger;
  keys: KeyStore;
  keyLimits: KeyLimits;
  workload: WorkloadMeter;
  metrics: GatewayMetrics;
  availability: Availability;
  admin_token: string;
  log: GatewayLog;
  providers: KnownProviders;
  kept: KeptForKeys;
  bodies: BodyMemory;
  batches: Batches;
}

const admin_body_bytes_max = 64 * 1024;
const keyBody = z.strictObject({
  name: z.string().trim().min(1).max(128),
  settings: keySettingsSchema.optional(),
});
const usageParameters = z.strictObject({
  by: z.enum(usageDimensions),
  since_ms: z.coerce.number().int().min(0).optional(),
  until_ms: z.coerce.number().int().min(0).optional(),
});

/**
 * Every path but those that go to replicas, on the server that `makeServer` returns: who may ask what is in
 * docs/gateway.md.
 *
 * ```
 *   request ─► OpenAiHandler takes it, else ─► fastify ─► modelRoutes    a key
 *                                                         mesh, metrics  a key, the operator
 *                                                         adminRoutes    the operator
 * ```
 */
export function createApi(
  services: ApiServices,
  handler: OpenAiHandler,
  makeServer: (listener: RequestListener) => Server,
  onClientError: (error: Error & { code?: string }, socket: Socket) => void,
): FastifyInstance {
  const app = Fastify({
    serverFactory: (listener) => makeServer(listener),
    clientErrorHandler: onClientError,
    bodyLimit: admin_body_bytes_max,
    genReqId: (request) => requestIdOf(request.headers['x-request-id']),
    frameworkErrors: (error, request, reply) => answerWith(request, reply, toHpcserveError(error)),
  });
  app.addHook('onSend', async (request, reply) => {
    reply.header(headers.request_id, request.id);
  });
  answerErrors(app, services.log);
  app.get('/health', async (_request, reply) => {
    const status = handler.draining ? 'draining' : services.ledger.failure ? 'ledger_failing' : 'ok';
    reply.code(status === 'ok' ? 200 : 503);
    return { status };
  });
  modelRoutes(app, services);
  meshRoutes(app, services);
  adminRoutes(app, services);
  return app;
}

function answerErrors(app: FastifyInstance, log: GatewayLog): void {
  app.setErrorHandler((error, request, reply) => {
    const known = toHpcserveError(error);
    if (known.http_status >= 500) {
      log.error({ request_id: request.id, code: known.code, error: known.stack }, 'request failed');
    }
    answerWith(request, reply, known);
  });
  const paths = new KnownPaths();
  app.addHook('onRoute', ({ url, method }) => paths.add(url, [method].flat()));
  app.setNotFoundHandler((request, reply) => {
    const path = request.url.split('?')[0]!;
    const allowed = paths.methodsOf(path);
    if (allowed) {
      reply.header('allow', allowed.join(', '));
      const what = `${path} takes ${allowed.join(', ')}, not ${request.method}`;
      answerWith(request, reply, new HpcserveError('E_REQUEST_METHOD', { what }));
    } else {
      const what = `there is nothing at ${path.slice(0, 256)}`;
      const mend = insteadOf(path);
      answerWith(
        request,
        reply,
        new HpcserveError('E_REQUEST_PATH', mend === undefined ? { what } : { what, try: mend }),
      );
    }
  });
}

function toHpcserveError(error: unknown): HpcserveError {
  if (error instanceof HpcserveError) return error;
  const { statusCode, code, message } = error as Error & { statusCode?: number; code?: string };
  if (statusCode === 413) return new HpcserveError('E_REQUEST_TOO_LARGE', { what: message });
  if (code === 'FST_ERR_CTP_INVALID_JSON_BODY' || code === 'FST_ERR_CTP_EMPTY_JSON_BODY') {
    return new HpcserveError('E_REQUEST_JSON', { what: message });
  }
  if (statusCode !== undefined && statusCode < 500) {
    return new HpcserveError('E_REQUEST_INVALID', { what: message });
  }
  return HpcserveError.from(error);
}

function answerWith(request: FastifyRequest, reply: FastifyReply, error: HpcserveError): void {
  // Also where a key was valid once: its connection is proven by nothing any more.
  if (error.http_status === 401) reply.header('connection', 'close');
  reply
    .code(error.http_status)
    .header('content-type', 'application/json')
    .header(headers.request_id, request.id)
    .header(errorCodeHeader, error.code)
    .send(JSON.stringify(errorEnvelope(error)));
}

// --- for keys ------------------------------------------------------------------------------------------------

/** @throws E_REQUEST_KEY */
async function keyFor({ raw }: FastifyRequest, keys: KeyStore): Promise<ApiKey> {
  const key = await lookForKey(raw, keys);
  if (!key) throw keyError(raw);
  return key;
}

/** The key of a request, undefined for the operator. @throws E_REQUEST_KEY */
async function keyOrAdmin(
  request: FastifyRequest,
  { keys, admin_token }: ApiServices,
): Promise<ApiKey | undefined> {
  return isAdmin(request.raw, admin_token) ? undefined : await keyFor(request, keys);
}

function modelRoutes(app: FastifyInstance, services: ApiServices): void {
  const models = new ModelList(services);
  const keyOf = (request: FastifyRequest): Promise<ApiKey> => keyFor(request, services.keys);
  app.get('/v1/models', async (request) => ({
    object: 'list',
    data: await models.all(await keyOf(request)),
  }));
  // Names may hold slashes (org/name), which clients send with or without escaping.
  app.get<{ Params: { '*': string } }>('/v1/models/*', async (request) =>
    models.one(await keyOf(request), request.params['*']),
  );
  ollamaModelRoutes(app, models, keyOf);
  responseRoutes(app, services.kept.responses, keyOf);
  const { kept, bodies, batches } = services;
  batchRoutes(app, { folder: kept.files, bodies, batches, keyFor: keyOf });
}

function meshRoutes(app: FastifyInstance, services: ApiServices): void {
  const { table, metrics, workload } = services;
  app.get('/mesh/table', async (request) => {
    const key = await keyOrAdmin(request, services);
    const query = parseWith(tableQuery, request.query);
    const rows = {
      sessions: sessionRows(table, services.mesh, query, key),
      idle_nodes: key?.settings.models ? [] : idleNodeRows(services.records(), services.mesh, query, key),
      workload: workload.workloads().filter(({ model }) => key === undefined || allowsModel(key, model)),
    };
    // Where gateways are, and what the mesh refused, is of no use to who may ask for some models only.
    if (key !== undefined && !isUnrestricted(key)) return rows;
    const gateways = gatewayRows(services.records(), services.mesh);
    return { ...rows, gateways, mesh: services.mesh.status() };
  });
  app.get('/metrics', async (request, reply) => {
    const key = await keyOrAdmin(request, services);
    if (key && !isUnrestricted(key))
      throw new HpcserveError('E_REQUEST_ADMIN', {
        what: 'metrics are of all models, and are for the operator of the gateway',
        because: `the key ${printableName(key.name)} is for some models or providers only`,
      });
    reply.header('content-type', metrics.contentType);
    return await metrics.render();
  });
}

// --- for the operator ----------------------------------------------------------------------------------------

/** Compares hashes, so that the time it takes says nothing about the token. */
export function isAdmin(request: IncomingMessage, token: string): boolean {
  const sent = bearerOf(request);
  if (sent === undefined) return false;
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(sent), digest(token));
}

function adminRoutes(app: FastifyInstance, services: ApiServices): void {
  const { table, ledger, keys, keyLimits, providers, admin_token, log } = services;
  const onRequest = async (request: FastifyRequest): Promise<void> => {
    if (isAdmin(request.raw, admin_token)) return;
    throw new HpcserveError('E_REQUEST_ADMIN', {
      what: 'this path is for the operator of the gateway',
      because:
        bearerOf(request.raw) === undefined
          ? 'the request carries no token'
          : 'its token is not the admin token',
    });
  };
  app.post('/hpcserve/v1/keys', { onRequest }, async (request, reply) => {
    const { name, settings = {} } = parseWith(keyBody, request.body);
    const { key, secret } = keys.create(name, checkedSettings(settings, providers));
    log.info({ key: key.id, name }, 'API key created');
    reply.code(201);
    return { ...key, key: secret };
  });
  app.get('/hpcserve/v1/keys', { onRequest }, async () => {
    await keys.lookForNew();
    return { keys: keys.list().map((key) => ({ ...key, spent: keyLimits.spent(key) })) };
  });
  app.patch<{ Params: { id: string } }>('/hpcserve/v1/keys/:id', { onRequest }, async (request) => {
    const changes = parseWith(keyChangesSchema, request.body);
    const checked = checkedSettings(changes, providers);
    await keys.lookForNew();
    const key = keys.change(request.params.id, checked);
    log.info({ key: key.id, name: key.name, settings: Object.keys(key.settings) }, 'API key changed');
    return key;
  });
  app.delete<{ Params: { id: string } }>('/hpcserve/v1/keys/:id', { onRequest }, async (request) => {
    await keys.lookForNew();
    const key = keys.revoke(request.params.id);
    log.info({ key: key.id, name: key.name }, 'API key revoked');
    return key;
  });
  app.get('/hpcserve/v1/usage', { onRequest }, async (request) => {
    const query = parseWith(usageParameters, request.query);
    const names = new Map(query.by === 'key' ? keys.list().map(({ id, name }) => [id, name]) : []);
    return {
      usage: ledger.usage(query).map((row) => {
        const name = names.get(row.group);
        return name === undefined ? row : { ...row, name };
      }),
    };
  });
  orderRoutes(app, services, onRequest);
  app.get('/hpcserve/v1/devices', { onRequest }, async () => ({ devices: await deviceReports(table) }));
  app.get('/hpcserve/v1/table', { onRequest }, async () => ({
    sessions: sessionRows(table, services.mesh),
    mesh: services.mesh.status(),
  }));
}

/** What an operator has nodes and pipelines do. */
function orderRoutes(
  app: FastifyInstance,
  services: ApiServices,
  onRequest: (request: FastifyRequest) => Promise<void>,
): void {
  const { table, log, own, mesh } = services;
  app.post<{ Params: { node: string } }>(
    '/hpcserve/v1/nodes/:node/drain',
    { onRequest },
    async ({ params: { node } }) => {
      const around = { own: own.identity, relayFallback: mesh.relayFallback };
      const drain = await drainNode(node, { records: services.records(), ...around });
      log.info({ node, ...drain }, 'a node drains');
      return drain;
    },
  );
  app.get<{ Params: { node: string } }>(
    '/hpcserve/v1/nodes/:node/agents',
    { onRequest },
    async ({ params: { node } }) => ({
      agents: agentsOn(node, services.records()).map(({ session_id }) => session_id),
    }),
  );
  app.post('/hpcserve/v1/refactor', { onRequest }, async (request) => {
    const { session_id, ...order } = parseWith(refactorOrderSchema, request.body);
    return refactorPipeline(table, log, session_id, order);
  });
}

/**
 * What only shows when it is read is checked, and names of providers become the fingerprints that they lead to now.
 *
 * @throws E_REQUEST_QOS, E_REQUEST_PROVIDERS
 */
function checkedSettings<T extends Pick<KeyChanges, 'qos' | 'providers'>>(
  settings: T,
  known: KnownProviders,
): T {
  const { qos, providers } = settings;
  if (qos) parseQos(qos);
  if (!providers) return settings;
  return { ...settings, providers: known.resolve(providers.flatMap(parseProviders)) };
}

function parseWith<T>(schema: z.ZodType<T>, value: unknown): T {
  const result = schema.safeParse(value ?? {});
  if (result.success) return result.data;
  throw new HpcserveError('E_REQUEST_INVALID', {
    what: 'the request does not have the form that this path takes',
    because: result.error.issues.map(({ path, message }) => `${path.join('.') || 'body'}: ${message}`),
  });
}
