import type { IncomingMessage, ServerResponse } from 'node:http';
import type { ApiKey, KeyStore } from '../ledger/index.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { sendError } from './http-error.ts';
import { RouteFilters } from './keys/route-filters.ts';
import { readBody } from './relay/body-reader.ts';
import { type Endpoint, endpoints } from './relay/endpoints.ts';
import { Exchange, type ExchangeServices } from './relay/exchange.ts';
import type { ExchangeRequest } from './relay/exchange-request.ts';
import { parseRequest } from './relay/request-body.ts';
import { requestIdOf } from './request-id.ts';

const bearer = 'Bearer ';
/** JSON, a format built on it (RFC 6839), or what `fetch` calls every string; whatever parameters follow. */
const json = /^\s*(application\/([\w.+-]+\+)?json|text\/plain)\s*(;|$)/i;

/** A request whose key is known and whose body is not. */
type Arrival = Pick<ExchangeRequest, 'request_id' | 'endpoint' | 'key' | 'time_ms' | 'began_ms'>;

/**
 * The way of requests that go to replicas. It stands beside fastify, on the same server: every such request
 * passes here, and what a framework does for each request would cost more than all the rest.
 */
export class FrontDoor {
  readonly #services: ExchangeServices & { keys: KeyStore };
  readonly #filters = new RouteFilters();
  #draining = false;

  constructor(services: ExchangeServices & { keys: KeyStore }) {
    this.#services = services;
  }

  /** From now on new requests are refused; those inside go on. */
  drain(): void {
    this.#draining = true;
  }

  get draining(): boolean {
    return this.#draining;
  }

  /** Takes a request for an OpenAI path that replicas serve; false for any other. */
  take(request: IncomingMessage, response: ServerResponse): boolean {
    const endpoint = endpoints.get(pathOf(request.url ?? ''));
    if (!endpoint) return false;
    if (request.method !== 'POST') {
      const error = new HpcserveError('E_REQUEST_METHOD', {
        what: `${endpoint.path} takes POST, not ${request.method}`,
      });
      sendError(response, error, requestIdOf(request.headers['x-request-id']), ['allow', 'POST']);
      return true;
    }
    this.#handle(request, response, endpoint);
    return true;
  }

  #handle(request: IncomingMessage, response: ServerResponse, endpoint: Endpoint): void {
    const time_ms = Date.now();
    const began_ms = performance.now();
    const request_id = requestIdOf(request.headers['x-request-id']);
    const refusal = this.#refusal();
    if (refusal) {
      sendError(response, refusal, request_id, ['connection', 'close', 'retry-after', '5']);
      return;
    }
    const key = keyOf(request, this.#services.keys);
    if (key) {
      this.#read(request, response, { request_id, endpoint, key, time_ms, began_ms });
      return;
    }
    // Another gateway may just have made it. Until that is known, the body is not read.
    void lookForKey(request, this.#services.keys).then((found) => {
      if (response.destroyed) return;
      if (found) this.#read(request, response, { request_id, endpoint, key: found, time_ms, began_ms });
      // Who has no key must not make the gateway work: the body is never read, so the connection ends.
      else sendError(response, keyError(request), request_id, ['connection', 'close']);
    });
  }

  /** Of a request with a valid key. */
  #read(request: IncomingMessage, response: ServerResponse, arrival: Arrival): void {
    const { request_id, endpoint } = arrival;
    const type = request.headers['content-type'];
    if (type !== undefined && !json.test(type)) {
      const what = `${endpoint.path} takes JSON, and the request says it is ${type.slice(0, 128)}`;
      sendError(response, new HpcserveError('E_REQUEST_MEDIA_TYPE', { what }), request_id, [
        'connection',
        'close',
      ]);
      return;
    }
    readBody(request, (tooLarge, body) => {
      if (tooLarge) {
        sendError(response, tooLarge, request_id, ['connection', 'close']);
        return;
      }
      let admitted: ExchangeRequest;
      try {
        admitted = this.#admit(request, response, arrival, body);
      } catch (thrown) {
        const error = HpcserveError.from(thrown);
        this.#services.metrics.refused(error.code);
        sendError(response, error, request_id, comeBack(error));
        return;
      }
      new Exchange(admitted, this.#services).start();
    });
  }

  /** @throws what is wrong with the request, or what its key does not allow */
  #admit(
    request: IncomingMessage,
    response: ServerResponse,
    { request_id, endpoint, key, time_ms, began_ms }: Arrival,
    body: Buffer,
  ): ExchangeRequest {
    const parsed = parseRequest(body, endpoint.dialect);
    requireModel(key, parsed.model);
    const filter = this.#filters.of(key.settings, request.headers);
    const reservation = this.#services.keyLimits.admit(key, () => this.#expectedTokens(parsed.model, body));
    return { request, response, request_id, key, endpoint, parsed, filter, reservation, time_ms, began_ms };
  }

  /** Where no answer of the model is known yet, the prompt is: about four bytes of text a token. */
  #expectedTokens(model: string, body: Buffer): number {
    const { workload, router } = this.#services;
    return workload.expectedTokens(router.modelOf(model)) || body.length / 4;
  }

  #refusal(): HpcserveError | undefined {
    if (this.#draining) return new HpcserveError('E_GATEWAY_DRAINING', { what: 'this gateway is stopping' });
    return this.#services.ledger.failure;
  }
}

/** The valid API key a request carries; undefined where it carries none. */
function keyOf(request: IncomingMessage, keys: KeyStore): ApiKey | undefined {
  const secret = bearerOf(request);
  return secret === undefined ? undefined : keys.find(secret);
}

/** The same, also where another gateway made the key a moment ago. */
export async function lookForKey(request: IncomingMessage, keys: KeyStore): Promise<ApiKey | undefined> {
  const known = keyOf(request, keys);
  if (known || bearerOf(request) === undefined) return known;
  await keys.lookForNew();
  return keyOf(request, keys);
}

/** Whether a key may be used for a model, by the name that a request has for it. */
export function allowsModel({ settings }: ApiKey, model: string): boolean {
  return settings.models === undefined || settings.models.includes(model);
}

/** @throws E_KEY_MODEL */
export function requireModel(key: ApiKey, model: string): void {
  if (allowsModel(key, model)) return;
  throw new HpcserveError('E_KEY_MODEL', {
    what: `the key ${key.name} may not be used for ${JSON.stringify(model.slice(0, 256))}`,
    because: `it may be used for ${key.settings.models!.join(', ')}`,
    details: { param: 'model' },
  });
}

/** When to come back with a key whose limits are reached; clients must not try again by themselves before. */
function comeBack(error: HpcserveError): string[] {
  if (error.http_status !== 429) return [];
  const { retry_after_s } = error.details;
  return [
    ...(typeof retry_after_s === 'number' ? ['retry-after', String(retry_after_s)] : []),
    ...(error.code === 'E_KEY_BUDGET' ? ['x-should-retry', 'false'] : []),
  ];
}

/** The token of an `authorization: Bearer` header; the scheme's name is case-insensitive (RFC 9110 §11.1). */
export function bearerOf(request: IncomingMessage): string | undefined {
  const { authorization } = request.headers;
  if (authorization === undefined) return undefined;
  if (authorization.startsWith(bearer)) return authorization.slice(bearer.length).trim();
  return /^bearer +(\S+) *$/i.exec(authorization)?.[1];
}

export function keyError(request: IncomingMessage): HpcserveError {
  return new HpcserveError('E_REQUEST_KEY', {
    what:
      bearerOf(request) === undefined
        ? 'the request carries no API key'
        : 'the API key of the request is not valid: unknown or revoked',
  });
}

function pathOf(url: string): string {
  const query = url.indexOf('?');
  return query === -1 ? url : url.slice(0, query);
}
