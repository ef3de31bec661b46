import type { RequestListener, Server } from 'node:http';
import type { Socket } from 'node:net';
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import type { ApiKey, KeyStore, Ledger } from '../ledger/index.ts';
import type { LocalSession } from '../mesh/index.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { GatewayProcesses } from '../spec/gateway-processes.ts';
import { printableName } from '../spec/printable-name.ts';
import type { SessionRecord } from '../spec/session-record.ts';
import { headers } from '../spec/wire.ts';
import type { Availability } from './availability.ts';
import type { Batches } from './batches/batches.ts';
import { batchRoutes } from './batches/routes.ts';
import type { BodyMemory } from './body-memory.ts';
import { callerOf, requireOperator } from './caller.ts';
import { dashboardRoutes } from './dashboard/routes.ts';
import { deploymentRows } from './deployment-rows.ts';
import { deviceReports, sleeperReports } from './device-reports.ts';
import { ollamaModelRoutes } from './dialects/ollama/models.ts';
import type { GatewayGossip } from './gateway-gossip.ts';
import { errorCodeHeader, errorEnvelope } from './http-error.ts';
import type { KeptForKeys } from './kept/kept-for-keys.ts';
import { responseRoutes } from './kept/response-routes.ts';
import type { KeyLimits } from './keys/key-limits.ts';
import { keyRoutes } from './keys/key-routes.ts';
import type { KnownProviders } from './keys/known-providers.ts';
import { KnownPaths } from './known-paths.ts';
import type { GatewayLog } from './log.ts';
import type { Login } from './login/login.ts';
import { loginRoutes } from './login/routes.ts';
import { gatewayRows, idleNodeRows, sessionRows, tableQuery } from './mesh-table.ts';
import type { GatewayMetrics } from './metrics.ts';
import { ModelList } from './model-list.ts';
import { agentsOn, drainNode } from './node-drain.ts';
import { allowsModel, isUnrestricted, keyError, lookForKey, type OpenAiHandler } from './openai-handler.ts';
import { insteadOf } from './other-servers-paths.ts';
import { parseWith } from './parse-with.ts';
import { refactorOrderSchema, refactorPipeline } from './refactoring.ts';
import { requestIdOf } from './request-id.ts';
import type { Router } from './routing/router.ts';
import type { RoutingTable } from './routing/table.ts';
import type { SessionLink } from './session-link.ts';
import { usageRoutes } from './usage-routes.ts';
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
  login?: Login | undefined;
  log: GatewayLog;
  providers: KnownProviders;
  kept: KeptForKeys;
  bodies: BodyMemory;
  batches: Batches;
  /** When every process of the gateway goes by keys as they are now. */
  keysTaken(): Promise<void>;
  processes(): GatewayProcesses;
}

const admin_body_bytes_max = 64 * 1024;
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
    // What was said of a key holds wherever the client asks next.
    if (request.method !== 'GET') await services.keysTaken();
  });
  answerErrors(app, services.log);
  app.get('/health', async (_request, reply) => {
    const { ledger } = services;
    const status = handler.draining
      ? 'draining'
      : ledger.failure
        ? 'ledger_failing'
        : ledger.behind
          ? 'ledger_behind'
          : 'ok';
    reply.code(status === 'ok' || status === 'ledger_behind' ? 200 : 503);
    return { status };
  });
  modelRoutes(app, services);
  meshRoutes(app, services);
  adminRoutes(app, services);
  loginRoutes(app, services.login);
  dashboardRoutes(app);
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
  const { retry_after_s } = error.details;
  if (typeof retry_after_s === 'number') reply.header('retry-after', String(retry_after_s));
  reply
    .code(error.http_status)
    .header('content-type', 'application/json')
    .header(headers.request_id, request.id)
    .header(errorCodeHeader, error.code)
    .send(JSON.stringify(errorEnvelope(error)));
}

// --- for keys ------------------------------------------------------------------------------------------------

/** @throws E_REQUEST_KEY, E_LOGIN_SESSION, E_LOGIN_ORIGIN */
async function keyFor({ raw }: FastifyRequest, services: ApiServices): Promise<ApiKey> {
  const key = await lookForKey(raw, services);
  if (!key) throw keyError(raw);
  return key;
}

/** The key of a request, undefined for the operator. @throws E_REQUEST_KEY */
async function keyOrAdmin(request: FastifyRequest, services: ApiServices): Promise<ApiKey | undefined> {
  const caller = await callerOf(request.raw, services);
  return caller.role === 'operator' ? undefined : caller.key;
}

function modelRoutes(app: FastifyInstance, services: ApiServices): void {
  const models = new ModelList(services);
  const keyOf = (request: FastifyRequest): Promise<ApiKey> => keyFor(request, services);
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
  app.get('/hpcserve/v1/jobs', async (request) => {
    const key = await keyOrAdmin(request, services);
    const may = (model: string): boolean => key === undefined || allowsModel(key, model);
    return { deployments: deploymentRows(await services.availability.deployments(may), may) };
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

function adminRoutes(app: FastifyInstance, services: ApiServices): void {
  const { table } = services;
  const onRequest = async (request: FastifyRequest): Promise<void> => {
    await requireOperator(request.raw, services);
  };
  keyRoutes(app, services);
  usageRoutes(app, services);
  orderRoutes(app, services, onRequest);
  app.get('/hpcserve/v1/devices', { onRequest }, async () => {
    const [devices, engines] = await Promise.all([deviceReports(table), sleeperReports(table)]);
    return { devices, engines };
  });
  app.get('/hpcserve/v1/processes', { onRequest }, async () => services.processes());
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
