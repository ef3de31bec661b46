import type { IncomingMessage, ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import { setTimeout as wait } from 'node:timers/promises';
import type { ApiKey, KeyFinder, Ledger } from '../ledger/index.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { systemMessage } from '../spec/errors/system-error.ts';
import { printableName, quoteName } from '../spec/printable-name.ts';
import { headers } from '../spec/wire.ts';
import { type CollectedAnswer, CollectedResponse, type InnerRequest } from './batches/collected-response.ts';
import { bearerOf } from './bearer.ts';
import { type BodyHold, type BodyMemory, smallBody_bytes } from './body-memory.ts';
import { countTokens } from './count-tokens.ts';
import { type Members, objectOf } from './dialects/chat-form.ts';
import type { Dialect, KeptResponse } from './dialects/dialect.ts';
import { dialects } from './dialects/index.ts';
import { TranslatedResponse, type TranslationClient } from './dialects/translated-response.ts';
import { sendError, sendErrorOpen } from './http-error.ts';
import type { KeptForKeys } from './kept/kept-for-keys.ts';
import { ResponseStore } from './kept/response-store.ts';
import { held_tokens_max } from './keys/key-limits.ts';
import type { KnownProviders } from './keys/known-providers.ts';
import { RouteFilters } from './keys/route-filters.ts';
import type { Login } from './login/login.ts';
import type { AcceptedRequest } from './relay/accepted-request.ts';
import { announcedBytes } from './relay/body-reader.ts';
import type { ClientResponse } from './relay/client-response.ts';
import { endpoints } from './relay/endpoints.ts';
import { encodingOf, readUnpackedBody } from './relay/packed-body.ts';
import { ProxiedRequest } from './relay/proxied-request.ts';
import type { ProxyServices } from './relay/proxy-services.ts';
import { type ParsedRequest, parseRequest } from './relay/request-body.ts';
import { RequestScan } from './relay/request-scan.ts';
import { ScanQueue } from './relay/scan-queue.ts';
import { requestIdOf } from './request-id.ts';

/** JSON, a format built on it (RFC 6839), or what `fetch` calls every string; whatever parameters follow. */
const json = /^\s*(application\/([\w.+-]+\+)?json|text\/plain)\s*(;|$)/i;

/**
 * A client that is refused before its body is read may send it on for so long, so that it sees why: a reset would take
 * the answer along.
 */
const linger_ms = 2000;

/** Of a request in another API, which is read at once and not in turns, so that it must not hold up the others. */
const translated_bytes_max = 8 * 1024 * 1024;

/**
 * The end of an answer waits so long until it is kept. Lower: a filesystem that hangs delays answers less; higher: one
 * that is slow keeps more answers before their clients ask for them.
 */
const keptWithin_ms = 2000;

/** A request whose key is known and whose body is not. */
type Arrival = Pick<
  AcceptedRequest,
  'request' | 'response' | 'request_id' | 'endpoint' | 'key' | 'time_ms' | 'began_ms'
> & { translation: Translation | undefined };
/** What a request in another API needs; its own response is for engines that speak it themselves. */
interface Translation {
  dialect: Dialect;
  client: TranslationClient;
  response: TranslatedResponse;
}
/** One that its key's limits let in, and what it holds of the gateway's memory. */
type Admitted = Arrival & Pick<AcceptedRequest, 'reservation'> & { hold: BodyHold };
/** One that was read and understood, and how many tokens it may use. */
interface Opened {
  of: AcceptedRequest;
  tokens: number;
}

/** What says whose request it is. */
export interface KeyServices {
  keys: KeyFinder;
  /** Sessions of the dashboard, where people may sign in to it. */
  login?: Login | undefined;
}

export interface OpenAiHandlerServices extends ProxyServices, KeyServices {
  /** Why nothing can be recorded, where it cannot. */
  ledger: Pick<Ledger, 'failure'>;
  providers: KnownProviders;
  bodies: BodyMemory;
  kept: KeptForKeys;
  /** Largest body that is read, whatever the key. */
  body_bytes_max: number;
}

/**
 * The way of requests that go to replicas. It stands beside fastify, on the same server: every such request
 * passes here, and what a framework does for each request would cost more than all the rest.
 */
export class OpenAiHandler {
  readonly #services: OpenAiHandlerServices;
  readonly #scans = new ScanQueue();
  readonly #filters: RouteFilters;
  #draining = false;

  constructor(services: OpenAiHandlerServices) {
    this.#services = services;
    this.#filters = new RouteFilters(services.providers);
  }

  /** From now on new requests are refused; those inside go on. */
  drain(): void {
    this.#draining = true;
  }

  get draining(): boolean {
    return this.#draining;
  }

  /** Whether replicas serve the path of a request. */
  serves({ url = '' }: IncomingMessage): boolean {
    const path = pathOf(url);
    return dialects.has(path) || endpoints.has(path);
  }

  /** Takes a request for a path that replicas serve; false for any other. */
  take(request: IncomingMessage, client: ServerResponse): boolean {
    const path = pathOf(request.url ?? '');
    const dialect = dialects.get(path);
    const endpoint = endpoints.get(path) ?? (dialect && { path, dialect: 'none', computes: true });
    if (!endpoint) return false;
    const request_id = requestIdOf(request.headers['x-request-id']);
    const translation = dialect && translationOf(dialect, client, request_id);
    const response = translation?.response ?? client;
    if (request.method !== 'POST') {
      const error = new HpcserveError('E_REQUEST_METHOD', {
        what: `${path} takes POST, not ${request.method}`,
      });
      sendError(response, error, request_id, ['allow', 'POST']);
      return true;
    }
    this.#handle({ request, response, request_id, endpoint, translation });
    return true;
  }

  /** Answers a request that no connection brought. @param path of an endpoint */
  answer(
    key: ApiKey,
    path: string,
    { body, request_id, signal }: InnerRequest,
  ): Promise<CollectedAnswer | undefined> {
    const collected = new CollectedResponse();
    const dialect = dialects.get(path);
    const translation = dialect && translationOf(dialect, collected, request_id);
    const response = translation?.response ?? collected;
    const headers = { 'content-type': 'application/json', 'content-length': String(body.length) };
    // All that is read of a request: its header, and its bytes as they come.
    const request = Object.assign(Readable.from([body]), {
      headers,
      complete: true,
    }) as unknown as IncomingMessage;
    const known = { request, response, request_id, endpoint: endpoints.get(path)!, translation };
    const refusal = this.#refusal();
    if (refusal) sendError(response, refusal, request_id);
    else this.#receive(grown(known, { key, time_ms: Date.now(), began_ms: performance.now() }));
    const giveUp = (): void => collected.destroy();
    signal.addEventListener('abort', giveUp);
    return collected.answer.finally(() => signal.removeEventListener('abort', giveUp));
  }

  #handle(known: Pick<Arrival, 'request' | 'response' | 'request_id' | 'endpoint' | 'translation'>): void {
    const { request, response, request_id } = known;
    const time_ms = Date.now();
    const began_ms = performance.now();
    const refusal = this.#refusal();
    if (refusal) {
      sendError(response, refusal, request_id, ['connection', 'close', 'retry-after', '5']);
      return;
    }
    const key = keyOf(request, this.#services.keys);
    if (key) {
      this.#receive(grown(known, { key, time_ms, began_ms }));
      return;
    }
    // Another gateway may just have made it. Until that is known, the body is not read.
    // Who has no key must not make the gateway work: the body is never read, so the connection ends.
    const refuse = (error: HpcserveError): void => {
      if (!response.destroyed) sendError(response, error, request_id, ['connection', 'close']);
    };
    lookForKey(request, this.#services).then(
      (found) => {
        if (!found) refuse(keyError(request));
        else if (!response.destroyed) this.#receive(grown(known, { key: found, time_ms, began_ms }));
      },
      (thrown: unknown) => refuse(HpcserveError.from(thrown)),
    );
  }

  /** Of a request with a valid key: everything that can be said without its body comes before its body. */
  #receive(arrival: Arrival): void {
    const { request, response, endpoint, key } = arrival;
    const { limits, bodies } = this.#services;
    const type = request.headers['content-type'];
    if (type !== undefined && !json.test(type)) {
      const what = `${endpoint.path} takes JSON, and the request says it is ${printableName(type)}`;
      this.#refuse(arrival, new HpcserveError('E_REQUEST_MEDIA_TYPE', { what }));
      return;
    }
    if (encodingOf(request) === undefined) {
      const what = `the body comes as ${printableName(request.headers['content-encoding']!)}, and is read as it is or as gzip`;
      this.#refuse(arrival, new HpcserveError('E_REQUEST_MEDIA_TYPE', { what }));
      return;
    }
    const isSmall = (announcedBytes(request) ?? Number.POSITIVE_INFINITY) <= smallBody_bytes;
    limits.admit(key, isSmall, (refusal, reservation) => {
      if (response.destroyed) limits.release(reservation);
      else if (refusal) this.#refuse(arrival, refusal);
      else this.#readBody(grown(arrival, { reservation, hold: bodies.hold(key.id) }));
    });
  }

  #readBody(admitted: Admitted): void {
    const { request, response, hold, reservation, key } = admitted;
    const { limits, bodies, body_bytes_max } = this.#services;
    const giveBack = (): void => {
      hold.release();
      limits.release(reservation);
    };
    const refuse = (error: HpcserveError): void => {
      response.off('close', giveBack);
      giveBack();
      this.#refuse(admitted, error);
    };
    response.once('close', giveBack);
    const bytes_max = Math.min(
      body_bytes_max,
      bodies.body_bytes_max,
      key.settings.body_bytes_max ?? body_bytes_max,
      admitted.translation ? translated_bytes_max : body_bytes_max,
    );
    readUnpackedBody(request, hold, bytes_max, (unread, body) => {
      if (response.destroyed) return;
      if (unread) {
        refuse(unread);
        return;
      }
      const orRefused = <T>(make: () => T): T | undefined => {
        try {
          return make();
        } catch (thrown) {
          refuse(HpcserveError.from(thrown));
          return undefined;
        }
      };
      const scanned = (bytes: Buffer, then: (scan: RequestScan) => void): void => {
        const scan = new RequestScan(bytes);
        this.#scans.read(scan, (wrong) => {
          if (response.destroyed) return;
          if (wrong) refuse(wrong);
          else then(scan);
        });
      };
      const start = (understood: Admitted, scan: RequestScan): void => {
        const opened = orRefused(() => this.#open(understood, scan));
        if (!opened) return;
        this.#reserve(opened, (refusal) => {
          if (response.destroyed) return;
          response.off('close', giveBack);
          if (refusal) refuse(refusal);
          else this.#relay(opened.of);
        });
      };
      scanned(body, (scan) => {
        const { translation } = admitted;
        if (!translation) {
          start(admitted, scan);
          return;
        }
        this.#translated(admitted, translation, body).then(
          (said) => {
            if (response.destroyed) return;
            if (said.body === body) start(said.admitted, scan);
            else scanned(said.body, (again) => start(said.admitted, again));
          },
          (thrown: unknown) => {
            if (!response.destroyed) refuse(HpcserveError.from(thrown));
          },
        );
      });
    });
  }

  /** A request in another API as replicas understand it; where all of its model's do anyway, as it is. */
  async #translated(
    admitted: Admitted,
    { dialect, client, response }: Translation,
    body: Buffer,
  ): Promise<{ admitted: Admitted; body: Buffer }> {
    const asked = objectOf(JSON.parse(body.toString()), 'body');
    const { router, kept } = this.#services;
    const store = dialect.kept && kept.responses && new ResponseStore(kept.responses, admitted.key.id);
    const earlier_id = store && dialect.kept!.earlierOf(asked);
    const isKept = store !== undefined && dialect.kept!.isKept(asked);
    const engines = router.enginesOf(String(asked.model));
    const isSpoken =
      dialect.isSpokenBy && engines.length > 0 && engines.every((one) => dialect.isSpokenBy!(one));
    if (isSpoken && !isKept && earlier_id === undefined)
      return { admitted: Object.assign({}, admitted, { response: client }), body };
    const earlier =
      earlier_id === undefined ? undefined : await store!.find(earlier_id, 'previous_response_id');
    const context = {
      context_tokens: router.contextOf(String(asked.model)),
      count: (chat: Members) => this.#count(admitted, chat),
      earlier,
      keep: isKept ? (one: KeptResponse) => this.#keep(store, one) : undefined,
    };
    const { endpoint, body: said, answer } = await dialect.read(asked, context);
    response.answerBy(answer);
    return { admitted: Object.assign({}, admitted, { endpoint }), body: Buffer.from(JSON.stringify(said)) };
  }

  /** Tokens of a chat's prompt, by a replica that the key may use; undefined where none tells. */
  async #count({ key, request }: Arrival, chat: Members): Promise<number | undefined> {
    const model = String(chat.model);
    requireModel(key, model);
    const filter = this.#filters.of(key.settings, request.headers);
    const [replica] = this.#services.router.candidates({ model, filter });
    return replica && countTokens(replica, chat);
  }

  /** The answer is good without it, and does not wait for long. */
  async #keep(store: ResponseStore, kept: KeptResponse): Promise<void> {
    const waits = new AbortController();
    const keeping = store.keep(kept).catch((error: Error) => {
      this.#services.log.error({ reason: systemMessage(error) }, 'a response could not be kept');
    });
    await Promise.race([keeping, wait(keptWithin_ms, undefined, waits).catch(() => undefined)]);
    waits.abort();
  }

  /** @throws what is wrong with the request, or what its key does not allow */
  #open(admitted: Admitted, scan: RequestScan): Opened {
    const { key, endpoint, request, hold } = admitted;
    const parsed = parseRequest(scan, endpoint.dialect);
    requireModel(key, parsed.model);
    const filter = this.#filters.of(key.settings, request.headers);
    const prompt_tokens = endpoint.computes ? this.#promptLength_tokens(parsed) : 0;
    const answers_tokens = endpoint.computes ? this.#answerLength_tokens(parsed) : 0;
    const tokens = Math.min(prompt_tokens + answers_tokens, held_tokens_max);
    const counts_only = request.headers[headers.usage] === 'counts';
    const release = (): void => hold.release();
    const known = { parsed, filter, prompt_tokens_max: prompt_tokens, counts_only, release };
    return { of: grown(admitted, known), tokens };
  }

  #relay(accepted: AcceptedRequest): void {
    this.#tellLimits(accepted);
    new ProxiedRequest(accepted, this.#services).start();
  }

  #reserve({ of, tokens }: Opened, then: (refusal: HpcserveError | undefined) => void): void {
    if (of.reservation) this.#services.limits.reserve(of.key, of.reservation, tokens, then);
    else then(undefined);
  }

  /** About four bytes of text are a token; no prompt is longer than the context. */
  #promptLength_tokens({ scan, model }: ParsedRequest): number {
    return Math.min(Math.ceil(scan.bytes.length / 4), this.#services.router.contextOf(model));
  }

  /** As long as the request allows, or else as long as nearly all answers of the model are. */
  #answerLength_tokens({ model, max_tokens, choices }: ParsedRequest): number {
    const { workload, router } = this.#services;
    const longest = max_tokens ?? workload.longAnswer(router.modelOf(model));
    return choices * Math.min(longest, router.contextOf(model));
  }

  /** Says why a request is not taken in. What of its body is still to come is thrown away. */
  #refuse({ request, response, request_id, key }: Arrival, error: HpcserveError): void {
    this.#services.metrics.refused(error.code);
    this.#tellLimits({ key, response });
    const again = retryAfterHeaders(error);
    if (request.complete || (announcedBytes(request) ?? Number.POSITIVE_INFINITY) <= smallBody_bytes) {
      sendError(response, error, request_id, again);
      request.resume();
      return;
    }
    refuseUnread(request, response, error, request_id, again);
  }

  #tellLimits({ key, response }: Pick<Arrival, 'key' | 'response'>): void {
    for (const [name, value] of this.#services.limits.rateHeaders(key)) response.setHeader(name, value);
  }

  #refusal(): HpcserveError | undefined {
    if (this.#draining) return new HpcserveError('E_GATEWAY_DRAINING', { what: 'this gateway is stopping' });
    return this.#services.ledger.failure;
  }
}

/**
 * A request of which more is known now. It is the same object: V8 gives each `{ ...request, more }` a hidden class of
 * its own, so that wherever such an object is read its members are looked up by name: a quarter of a request's time.
 */
function grown<T extends object, M extends object>(request: T, more: M): T & M {
  return Object.assign(request, more);
}

function translationOf(dialect: Dialect, client: TranslationClient, request_id: string): Translation {
  return { dialect, client, response: new TranslatedResponse(client, dialect, request_id) };
}

/** The valid API key a request carries; undefined where it carries none. */
function keyOf(request: IncomingMessage, keys: KeyFinder): ApiKey | undefined {
  const secret = bearerOf(request);
  return secret === undefined ? undefined : keys.find(secret);
}

/**
 * The same, also where another gateway made the key a moment ago; without one, the key as which a session of the
 * dashboard acts.
 *
 * @throws E_LOGIN_SESSION, E_LOGIN_ORIGIN
 */
export async function lookForKey(
  request: IncomingMessage,
  { keys, login }: KeyServices,
): Promise<ApiKey | undefined> {
  const known = keyOf(request, keys);
  if (known) return known;
  if (bearerOf(request) === undefined) return login?.keyOf(request);
  await keys.lookForNew();
  return keyOf(request, keys);
}

/** Whether a key may be used for a model, by the name that a request has for it. */
export function allowsModel({ settings }: ApiKey, model: string): boolean {
  return settings.models === undefined || settings.models.includes(model);
}

/** Whether a key may be used for everything that is there: only such a one is told of all of it. */
export function isUnrestricted({ settings }: ApiKey): boolean {
  return settings.models === undefined && settings.providers === undefined;
}

/** @throws E_KEY_MODEL */
export function requireModel(key: ApiKey, model: string): void {
  if (allowsModel(key, model)) return;
  throw new HpcserveError('E_KEY_MODEL', {
    what: `the key ${key.name} may not be used for ${quoteName(model)}`,
    because: `it may be used for ${key.settings.models!.join(', ')}`,
    details: { param: 'model' },
  });
}

/**
 * Answers a request whose body is not read, and reads on for a while so that the answer is not lost with the
 * connection.
 */
function refuseUnread(
  request: IncomingMessage,
  response: ClientResponse,
  error: HpcserveError,
  request_id: string,
  extra: readonly string[],
): void {
  const end = sendErrorOpen(response, error, request_id, ['connection', 'close', ...extra]);
  const timer = setTimeout(end, linger_ms);
  request.once('end', end);
  response.once('close', () => clearTimeout(timer));
  request.removeAllListeners('data');
  request.resume();
}

/** When to come back with a key whose limits are reached; clients must not try again by themselves before. */
function retryAfterHeaders(error: HpcserveError): string[] {
  const { retry_after_s } = error.details;
  const pairs: string[] = [];
  if (typeof retry_after_s === 'number') pairs.push('retry-after', String(retry_after_s));
  if (error.code === 'E_KEY_BUDGET') pairs.push('x-should-retry', 'false');
  return pairs;
}

export function keyError(request: IncomingMessage): HpcserveError {
  return new HpcserveError('E_REQUEST_KEY', {
    what:
      bearerOf(request) === undefined
        ? 'the request carries no API key'
        : 'the API key of the request is not valid: unknown, expired, blocked or revoked',
  });
}

function pathOf(url: string): string {
  const query = url.indexOf('?');
  return query === -1 ? url : url.slice(0, query);
}
