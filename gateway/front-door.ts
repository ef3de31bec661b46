import type { IncomingMessage, ServerResponse } from 'node:http';
import type { ApiKey, Ledger } from '../ledger/index.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { sendError } from './http-error.ts';
import { readBody } from './relay/body-reader.ts';
import { type Endpoint, endpoints } from './relay/endpoints.ts';
import { Exchange, type ExchangeServices } from './relay/exchange.ts';
import { parseRequest } from './relay/request-body.ts';
import { requestIdOf } from './request-id.ts';

const bearer = 'Bearer ';
/** JSON, a format built on it (RFC 6839), or what `fetch` calls every string; whatever parameters follow. */
const json = /^\s*(application\/([\w.+-]+\+)?json|text\/plain)\s*(;|$)/i;

/**
 * The way of requests that go to replicas. It stands beside fastify, on the same server: every such request
 * passes here, and what a framework does for each request would cost more than all the rest.
 */
export class FrontDoor {
  readonly #services: ExchangeServices;
  #draining = false;

  constructor(services: ExchangeServices) {
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
    const key = refusal ? undefined : keyOf(request, this.#services.ledger);
    if (!key) {
      // The body is not read: who has no key must not make the gateway work. So the connection ends.
      const error = refusal ?? keyError(request);
      sendError(response, error, request_id, [
        'connection',
        'close',
        ...(refusal ? ['retry-after', '5'] : []),
      ]);
      return;
    }
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
      let parsed: ReturnType<typeof parseRequest>;
      try {
        parsed = parseRequest(body, endpoint.dialect);
      } catch (error) {
        sendError(response, HpcserveError.from(error), request_id);
        return;
      }
      new Exchange(
        { request, response, request_id, key, endpoint, parsed, time_ms, began_ms },
        this.#services,
      ).start();
    });
  }

  #refusal(): HpcserveError | undefined {
    if (this.#draining) return new HpcserveError('E_GATEWAY_DRAINING', { what: 'this gateway is stopping' });
    return this.#services.ledger.failure;
  }
}

/** The valid API key a request carries; undefined where it carries none. */
export function keyOf(request: IncomingMessage, ledger: Ledger): ApiKey | undefined {
  const secret = bearerOf(request);
  return secret === undefined ? undefined : ledger.findKey(secret);
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
