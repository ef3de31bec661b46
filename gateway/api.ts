import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import { z } from 'zod';
import { type Ledger, usageDimensions } from '../ledger/index.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { headers } from '../spec/wire.ts';
import type { Availability } from './availability.ts';
import { bearerOf, type FrontDoor, keyError, keyOf } from './front-door.ts';
import { errorCodeHeader, errorEnvelope } from './http-error.ts';
import type { GatewayLog } from './log.ts';
import type { GatewayMetrics } from './metrics.ts';
import { requestIdOf } from './request-id.ts';
import type { RoutingTable } from './routing/table.ts';
import type { SessionLink } from './session-link.ts';

export interface ApiServices {
  table: RoutingTable<SessionLink>;
  ledger: Ledger;
  metrics: GatewayMetrics;
  availability: Availability;
  admin_token: string;
  log: GatewayLog;
}

const adminBodyBytes = 64 * 1024;
const keyBody = z.strictObject({ name: z.string().trim().min(1).max(128) });
const usageParameters = z.strictObject({
  by: z.enum(usageDimensions),
  since_ms: z.coerce.number().int().min(0).optional(),
  until_ms: z.coerce.number().int().min(0).optional(),
});

/** Every path but those that go to replicas, on the server that `makeServer` returns. */
export function createApi(
  services: ApiServices,
  door: FrontDoor,
  makeServer: (handler: (request: IncomingMessage, response: ServerResponse) => void) => Server,
  onClientError: (error: Error & { code?: string }, socket: import('node:net').Socket) => void,
): FastifyInstance {
  const app = Fastify({
    serverFactory: (handler) => makeServer(handler),
    clientErrorHandler: onClientError,
    bodyLimit: adminBodyBytes,
    genReqId: (request) => requestIdOf(request.headers['x-request-id']),
    frameworkErrors: (error, request, reply) => answer(request, reply, toHpcserveError(error)),
  });
  app.addHook('onSend', async (request, reply) => {
    reply.header(headers.request_id, request.id);
  });
  app.setErrorHandler((error, request, reply) => {
    const known = toHpcserveError(error);
    if (known.http_status >= 500) {
      services.log.error({ request_id: request.id, code: known.code, error: known.stack }, 'request failed');
    }
    answer(request, reply, known);
  });
  const methods = new Map<string, string[]>();
  app.addHook('onRoute', ({ url, method }) => {
    methods.set(url, [...(methods.get(url) ?? []), ...[method].flat()]);
  });
  app.setNotFoundHandler((request, reply) => {
    const path = request.url.split('?')[0]!;
    const allowed = methods.get(path);
    if (allowed) {
      reply.header('allow', allowed.join(', '));
      const what = `${path} takes ${allowed.join(', ')}, not ${request.method}`;
      answer(request, reply, new HpcserveError('E_REQUEST_METHOD', { what }));
    } else {
      const what = `there is nothing at ${path.slice(0, 256)}`;
      answer(request, reply, new HpcserveError('E_REQUEST_PATH', { what }));
    }
  });
  publicRoutes(app, services, door);
  adminRoutes(app, services);
  return app;
}

function publicRoutes(app: FastifyInstance, services: ApiServices, door: FrontDoor): void {
  const { table, ledger, metrics, availability, admin_token } = services;
  const requireKey = async (request: FastifyRequest): Promise<void> => {
    if (!keyOf(request.raw, ledger)) throw keyError(request.raw);
  };
  app.get('/health', async (_request, reply) => {
    const status = door.draining ? 'draining' : ledger.failure ? 'ledger_failing' : 'ok';
    reply.code(status === 'ok' ? 200 : 503);
    return { status };
  });
  app.get('/v1/models', { onRequest: requireKey }, async () => ({
    object: 'list',
    data: [...table.routes()].filter(({ candidates }) => candidates.length > 0).map(modelEntry),
  }));
  // Names may hold slashes (org/name), which clients send with or without escaping.
  app.get<{ Params: { '*': string } }>('/v1/models/*', { onRequest: requireKey }, async (request) => {
    const name = request.params['*'];
    const route = table.find(name);
    if (route && route.candidates.length > 0) return modelEntry(route);
    throw (await availability.explain(name)).error;
  });
  app.get(
    '/metrics',
    {
      onRequest: async (request) => {
        if (!isAdmin(request.raw, admin_token)) await requireKey(request);
      },
    },
    async (_request, reply) => {
      reply.header('content-type', metrics.contentType);
      return await metrics.render();
    },
  );
}

function adminRoutes(app: FastifyInstance, { table, ledger, admin_token, log }: ApiServices): void {
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
    const { name } = parseWith(keyBody, request.body);
    const { key, secret } = ledger.createKey(name);
    log.info({ key: key.id, name }, 'API key created');
    reply.code(201);
    return { ...key, key: secret };
  });
  app.get('/hpcserve/v1/keys', { onRequest }, async () => ({ keys: ledger.listKeys() }));
  app.delete<{ Params: { id: string } }>('/hpcserve/v1/keys/:id', { onRequest }, async (request) => {
    const key = ledger.revokeKey(request.params.id);
    log.info({ key: key.id, name: key.name }, 'API key revoked');
    return key;
  });
  app.get('/hpcserve/v1/usage', { onRequest }, async (request) => ({
    usage: ledger.usage(parseWith(usageParameters, request.query)),
  }));
  app.get('/hpcserve/v1/table', { onRequest }, async () => ({
    sessions: table.sessions().map(({ record, reachable, replicas }) => ({
      session_id: record.session_id,
      lifecycle: record.lifecycle,
      reachable,
      node: record.metadata.node,
      site: record.metadata.site,
      engine: record.metadata.engine,
      deployment: record.metadata.deployment,
      job_id: record.metadata.job_id,
      devices: record.metadata.devices,
      models: replicas.map(({ served, state, running, waiting, max_sequences, unreported }) => ({
        name: served.name,
        aliases: served.aliases,
        precision: served.precision,
        state,
        running,
        waiting,
        max_sequences,
        unreported,
      })),
    })),
  }));
}

function modelEntry({ name, candidates }: { name: string; candidates: RouteCandidates }): object {
  const first = candidates[0]!;
  return {
    id: name,
    object: 'model',
    created: Math.floor(Math.min(...candidates.map(({ session }) => session.record.started_at_ms)) / 1000),
    owned_by: first.session.record.metadata.provider,
    root: first.served.name,
    max_model_len: Math.min(...candidates.map(({ served }) => served.context_tokens)),
  };
}
type RouteCandidates = NonNullable<ReturnType<RoutingTable<SessionLink>['find']>>['candidates'];

/** Compares hashes, so that the time it takes says nothing about the token. */
function isAdmin(request: IncomingMessage, token: string): boolean {
  const sent = bearerOf(request);
  if (sent === undefined) return false;
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(sent), digest(token));
}

function parseWith<T>(schema: z.ZodType<T>, value: unknown): T {
  const result = schema.safeParse(value ?? {});
  if (result.success) return result.data;
  throw new HpcserveError('E_REQUEST_INVALID', {
    what: 'the request does not have the form that this path takes',
    because: result.error.issues.map(({ path, message }) => `${path.join('.') || 'body'}: ${message}`),
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

function answer(request: FastifyRequest, reply: FastifyReply, error: HpcserveError): void {
  reply
    .code(error.http_status)
    .header('content-type', 'application/json')
    .header(headers.request_id, request.id)
    .header(errorCodeHeader, error.code)
    .send(JSON.stringify(errorEnvelope(error)));
}
