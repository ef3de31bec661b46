/**
 * Passes OpenAI requests on to the engine of a unit and its answer back, unchanged, as fast as the slower side takes
 * it.
 */
import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http';
import type { HttpAnswerHead } from '../../host/http-answer-parser.ts';
import { writeEvents } from '../../host/write-events.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { headers as headerNames, limits, type OpenAiError } from '../../spec/wire.ts';
import { withAgentTime } from '../../spec/worker-timings.ts';
import type { AnswerClock, AnswerTimes } from './answer-times.ts';
import { answerError, openAiError } from './answers.ts';
import { type EngineBody, EngineCall, type EngineReceiver, type EngineRequest } from './engine-call.ts';
import { EventBoundary } from './event-boundary.ts';
import { bodyTooLarge } from './read-whole.ts';
import { DeadlineWatch, type RequestDeadlines } from './request-deadlines.ts';
import type { Traffic, UnansweredRequest, Upstream } from './serving-process.ts';

/** Headers of one connection, not of the message (RFC 9110 §7.6.1), and those the agent answers for itself. */
const not_passed_on = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'authorization',
  'host',
  'expect',
]);

export interface PassedRequest {
  incoming: IncomingMessage;
  outgoing: ServerResponse;
  upstream: Upstream;
  deadlines: RequestDeadlines;
  /** What came of this and other answers, for whoever watches the engine. */
  traffic: Traffic;
  /** Where it counts how long this answer takes; absent: it is none that is computed token by token. */
  times?: AnswerTimes | undefined;
  /** Of the engine, where that is another than the request's. */
  path?: string | undefined;
  /** What to pass on in place of the body; absent: the body as it comes. */
  body?: Buffer;
  /** Headers added to the answer. */
  answer_headers: OutgoingHttpHeaders;
  /**
   * Tells when the engine's session is over, and why, whatever its connections say; returns the removal of the
   * callback.
   */
  onSessionEnd(callback: (error: HpcserveError) => void): () => void;
  /** Tells when the answer is to end before its time; returns the removal of the callback. */
  onHandOver(callback: HandOver): () => void;
  /** Runs once, when both sides are done with each other. */
  onEnd(): void;
}

/** Ends an answer in a way that lets a gateway have it continued by another replica. */
export type HandOver = (error: HpcserveError) => void;

/**
 * A client that goes away ends the engine's work on its request; an engine that ends in the middle of an answer
 * ends the client's connection, so that nobody takes half an answer for a whole one.
 */
export function proxyRequest(proxied: PassedRequest): void {
  const { incoming, outgoing, onEnd } = proxied;
  if (Number(incoming.headers['content-length'] ?? 0) <= limits.body_bytes) {
    new Passage(proxied).begin();
    return;
  }
  answerError(outgoing, bodyTooLarge(), 413);
  incoming.resume();
  onEnd();
}

/** A request on its way to the engine, and its answer on the way back. */
class Passage implements EngineReceiver {
  readonly #proxied: PassedRequest;
  #call: EngineCall | undefined;
  readonly #deadlines: DeadlineWatch;
  readonly #unanswered: UnansweredRequest;
  readonly #began_ms = performance.now();
  readonly #timed: AnswerClock | undefined;
  /** 1 while a stream of events is on its way. */
  #streams = 0;
  #paced: ReturnType<Traffic['pace']['join']> | undefined;
  /** Of a stream of events. */
  readonly #boundary = new EventBoundary();
  #handedOver = false;
  /** The client is behind, and its `drain` is waited for: one read may bring many events more. */
  #isHeld = false;
  readonly #goOn = (): void => {
    this.#isHeld = false;
    this.#call?.resume();
  };

  constructor(proxied: PassedRequest) {
    this.#proxied = proxied;
    const { incoming, outgoing } = proxied;
    this.#timed = proxied.times?.pass(this.#began_ms);
    this.#unanswered = { id: String(incoming.headers[headerNames.request_id] ?? '') };
    this.#deadlines = new DeadlineWatch(
      proxied.deadlines,
      String(incoming.headers.accept).includes('text/event-stream'),
      () => outgoing.writableNeedDrain,
      (kind, error) => {
        const event = openAiError(error, error.http_status);
        if (kind === 'replica') this.#giveUp(error, event);
        // Of a kind that no gateway takes for the replica's failure: another would need as long.
        else
          this.#giveUp(
            error,
            { error: { ...event.error, type: 'timeout_error' } },
            { 'x-should-retry': 'false' },
          );
      },
    );
  }

  begin(): void {
    const { outgoing, traffic, onSessionEnd, onHandOver, onEnd } = this.#proxied;
    traffic.passed++;
    traffic.unanswered.add(this.#unanswered);
    const forget = onSessionEnd((error) => this.#endWithSession(error));
    const keep = onHandOver((error) => this.#giveUp(error, openAiError(error, error.http_status)));
    outgoing.once('close', () => {
      this.#deadlines.close();
      traffic.passed--;
      traffic.unanswered.delete(this.#unanswered);
      traffic.streams -= this.#streams;
      this.#streams = 0;
      this.#paced?.leave();
      const isWhole = outgoing.writableFinished && outgoing.statusCode === 200 && !this.#handedOver;
      this.#timed?.ended(performance.now(), isWhole);
      forget();
      keep();
      if (!outgoing.writableFinished) this.#call?.destroy();
      onEnd();
    });
    this.#call = new EngineCall(this.#proxied.upstream, requestOf(this.#proxied), this);
  }

  /** The body is on its way from here on. */
  onConnect(): void {
    const { incoming, outgoing, body } = this.#proxied;
    const passed = (): void => {
      this.#unanswered.passed_ms = performance.now();
    };
    if (body !== undefined) {
      passed();
      return;
    }
    incoming.once('end', passed);
    let received_bytes = 0;
    incoming.on('data', (chunk: Buffer) => {
      received_bytes += chunk.length;
      if (received_bytes <= limits.body_bytes) return;
      incoming.unpipe();
      this.#call!.destroy();
      if (!outgoing.headersSent) answerError(outgoing, bodyTooLarge(), 413);
      incoming.resume();
    });
  }

  onHead({ status, fields }: HttpAnswerHead): void {
    const { outgoing, traffic, answer_headers } = this.#proxied;
    traffic.unanswered.delete(this.#unanswered);
    const isStream = firstOf(fields, 'content-type')?.startsWith('text/event-stream') === true;
    const timed = isStream ? {} : this.#timings(fields);
    outgoing.writeHead(status, { ...headersOf(fields), ...timed, ...answer_headers });
    outgoing.flushHeaders();
    if (!isStream) return;
    this.#streams = 1;
    traffic.streams++;
  }

  onBody(bytes: Buffer): void {
    const { outgoing, traffic } = this.#proxied;
    traffic.answer_bytes += bytes.length;
    if (outgoing.destroyed || outgoing.writableEnded) return;
    const isTaken = this.#streams > 0 ? this.#passEvents(bytes) : outgoing.write(Buffer.from(bytes));
    if (isTaken || this.#isHeld) return;
    this.#isHeld = true;
    this.#call!.pause();
    outgoing.once('drain', this.#goOn);
  }

  onEnd(trailers: readonly string[]): void {
    const { incoming, outgoing } = this.#proxied;
    // One that answers before it has the whole request gets no more of it.
    incoming.unpipe().resume();
    if (outgoing.writableEnded) return;
    if (this.#streams > 0) outgoing.addTrailers(this.#timings(trailers));
    outgoing.end();
  }

  onError(error: Error): void {
    this.#fail(error.message);
  }

  #passEvents(bytes: Buffer): boolean {
    const { outgoing, traffic } = this.#proxied;
    const now_ms = performance.now();
    this.#timed?.began(now_ms);
    if (this.#paced) this.#paced.arrived(now_ms);
    else this.#paced = traffic.pace.join(() => outgoing.writableNeedDrain, now_ms);
    this.#boundary.push(bytes);
    this.#deadlines.progressed();
    return writeEvents(outgoing, bytes, true, true);
  }

  /** Where the time went, for a gateway that traces this request. */
  #timings(said: readonly string[]): Record<string, string> {
    if (this.#proxied.incoming.headers[headerNames.timings] === undefined) return {};
    const elapsed_ms = performance.now() - this.#began_ms;
    return { [headerNames.timings]: withAgentTime(firstOf(said, headerNames.timings), elapsed_ms) };
  }

  /** An engine that hangs keeps its connections open. */
  #endWithSession(error: HpcserveError): void {
    // Where no other can be why, gateways are told to ask nobody else.
    if (isBlamed(error, this.#unanswered))
      this.#refuse(silent(error), isAlone(error) ? { 'x-should-retry': 'false' } : {});
    else this.#fail('its process hangs or has ended');
    this.#call?.destroy();
  }

  #fail(because: string): void {
    const what = 'the engine of this session did not answer';
    this.#refuse(new HpcserveError('E_AGENT_UPSTREAM', { what, because }));
  }

  #refuse(error: HpcserveError, more: OutgoingHttpHeaders = {}): void {
    const { outgoing, answer_headers } = this.#proxied;
    // Cut off in the middle: no proper end may follow.
    if (outgoing.headersSent) this.#cut();
    else if (!outgoing.destroyed) answerError(outgoing, error, undefined, { ...answer_headers, ...more });
  }

  #cut(): void {
    if (!this.#handedOver) this.#proxied.outgoing.destroy();
  }

  /** @param event what a stream that has begun ends with */
  #giveUp(error: HpcserveError, event: OpenAiError, more: OutgoingHttpHeaders = {}): void {
    const { outgoing, answer_headers } = this.#proxied;
    if (outgoing.destroyed || outgoing.writableEnded) return;
    if (!outgoing.headersSent) answerError(outgoing, error, undefined, { ...answer_headers, ...more });
    else if (this.#streams > 0 && this.#boundary.isBetween) {
      this.#handedOver = true;
      outgoing.end(`data: ${JSON.stringify(event)}\n\n`);
    } else outgoing.destroy(); // in the middle of an event or a JSON text nothing can be said
    this.#call?.destroy();
  }
}

/** What the engine is asked. */
function requestOf({ incoming, upstream, body, path }: PassedRequest): EngineRequest {
  const fields = passedOn(incoming.headers);
  fields.push(['host', 'localhost']);
  if (upstream.key !== undefined) fields.push(['authorization', `Bearer ${upstream.key}`]);
  return {
    method: incoming.method ?? 'GET',
    path: path ?? incoming.url ?? '/',
    fields,
    body: body === undefined ? bodyOf(incoming) : { kind: 'whole', bytes: body },
  };
}

function bodyOf(incoming: IncomingMessage): EngineBody {
  if (incoming.headers['transfer-encoding'] !== undefined) return { kind: 'chunks', from: incoming };
  const bytes = Number(incoming.headers['content-length'] ?? 0);
  return bytes > 0 ? { kind: 'length', bytes, from: incoming } : { kind: 'none' };
}

/** Whether the engine fell silent when it may have been reading this request. */
function isBlamed({ code, details }: HpcserveError, { id }: UnansweredRequest): boolean {
  if (code !== 'E_REPLICA_SILENT' || id === '') return false;
  return Array.isArray(details.requests) && details.requests.includes(id);
}

/** Whether one request alone was being read. */
function isAlone({ details }: HpcserveError): boolean {
  return Array.isArray(details.requests) && details.requests.length === 1;
}

function silent({ because }: HpcserveError): HpcserveError {
  const what = 'the replica fell silent while it read this request, and was ended';
  return new HpcserveError('E_REPLICA_SILENT', { what, because });
}

/** Fields of a request that are for the engine, too. */
function passedOn(headers: IncomingMessage['headers']): [name: string, value: string][] {
  const named = namedBy(headers.connection);
  return Object.entries(headers)
    .filter(([name]) => name !== 'content-length' && isPassedOn(name, named))
    .flatMap(([name, value]) => [value ?? []].flat().map((one): [string, string] => [name, one]));
}

/** Those of an answer that are for whoever asked. */
function headersOf(fields: readonly string[]): OutgoingHttpHeaders {
  const named = namedBy(firstOf(fields, 'connection'));
  const headers: OutgoingHttpHeaders = {};
  for (let at = 0; at < fields.length; at += 2) {
    const name = fields[at]!;
    if (!isPassedOn(name, named)) continue;
    const before = headers[name];
    if (before === undefined) headers[name] = fields[at + 1]!;
    else if (!single.has(name)) headers[name] = [before as string | string[], fields[at + 1]!].flat();
  }
  return headers;
}

/** Of these the first counts. */
const single = new Set(['content-type', 'content-length']);

function isPassedOn(name: string, named: ReadonlySet<string>): boolean {
  return !not_passed_on.has(name) && !named.has(name);
}

/** Fields that belong to the connection because it says so. */
function namedBy(connection = ''): ReadonlySet<string> {
  return new Set(connection.split(',').map((name) => name.trim().toLowerCase()));
}

/** The first of that name. @param fields names in lower case, each followed by its value */
function firstOf(fields: readonly string[], name: string): string | undefined {
  for (let at = 0; at < fields.length; at += 2) if (fields[at] === name) return fields[at + 1];
  return undefined;
}
