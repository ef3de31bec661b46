/**
 * Passes OpenAI requests on to the engine of a unit and its answer back, unchanged, as fast as the slower side takes
 * it.
 */
import {
  type ClientRequest,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  request,
  type ServerResponse,
} from 'node:http';
import { writeEvents } from '../../host/write-events.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { headers as headerNames, limits, type OpenAiError } from '../../spec/wire.ts';
import { withAgentTime } from '../../spec/worker-timings.ts';
import type { AnswerClock, AnswerTimes } from './answer-times.ts';
import { answerError, openAiError } from './answers.ts';
import { connectionTo } from './engine-request.ts';
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
class Passage {
  readonly #proxied: PassedRequest;
  readonly #passed: ClientRequest;
  readonly #deadlines: DeadlineWatch;
  readonly #unanswered: UnansweredRequest;
  readonly #began_ms = performance.now();
  readonly #timed: AnswerClock | undefined;
  #answer: IncomingMessage | undefined;
  /** 1 while a stream of events is on its way. */
  #streams = 0;
  #paced: ReturnType<Traffic['pace']['join']> | undefined;
  /** Of a stream of events. */
  readonly #boundary = new EventBoundary();
  #handedOver = false;

  constructor(proxied: PassedRequest) {
    this.#proxied = proxied;
    const { incoming, outgoing } = proxied;
    this.#passed = openPassed(proxied);
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
    const passed = this.#passed;
    traffic.unanswered.add(this.#unanswered);
    this.#send();
    passed.once('response', (response) => this.#receive(response));
    // Without a listener Node closes such a connection and says nothing: the client would wait for ever.
    passed.once('upgrade', (_response, socket) => {
      socket.destroy();
      this.#fail('it changed the protocol, which nobody asked for');
    });
    passed.on('error', (error) => this.#fail(error.message));
    const forget = onSessionEnd((error) => this.#endWithSession(error));
    const keep = onHandOver((error) => this.#giveUp(error, openAiError(error, error.http_status)));
    outgoing.once('close', () => {
      this.#deadlines.close();
      traffic.unanswered.delete(this.#unanswered);
      traffic.streams -= this.#streams;
      this.#streams = 0;
      this.#paced?.leave();
      this.#timed?.ended(performance.now(), outgoing.writableFinished && outgoing.statusCode === 200);
      forget();
      keep();
      if (!outgoing.writableFinished) {
        this.#answer?.destroy();
        passed.destroy();
      }
      onEnd();
    });
  }

  /** The body, or what stands in its place. */
  #send(): void {
    const { incoming, outgoing, body } = this.#proxied;
    const passed = this.#passed;
    incoming.once('end', () => {
      this.#unanswered.passed_ms = performance.now();
    });
    let received_bytes = 0;
    incoming.on('data', (chunk: Buffer) => {
      received_bytes += chunk.length;
      if (received_bytes <= limits.body_bytes) return;
      incoming.unpipe(passed);
      passed.destroy();
      if (!outgoing.headersSent) answerError(outgoing, bodyTooLarge(), 413);
      incoming.resume();
    });
    if (body === undefined) incoming.pipe(passed);
    else passed.end(body);
  }

  #receive(response: IncomingMessage): void {
    const { outgoing, traffic, answer_headers } = this.#proxied;
    traffic.unanswered.delete(this.#unanswered);
    this.#answer = response;
    const status = response.statusCode ?? 0;
    if (status < 200 || status > 599) {
      response.destroy();
      this.#fail(`it answered with the impossible status ${status}`);
      return;
    }
    const isStream = String(response.headers['content-type']).startsWith('text/event-stream');
    const timed = isStream ? {} : this.#timings(response.headers);
    outgoing.writeHead(status, { ...passedOn(response.headers), ...timed, ...answer_headers });
    outgoing.flushHeaders();
    if (isStream) this.#passEvents(response);
    else {
      response.on('data', (chunk: Buffer) => {
        traffic.answer_bytes += chunk.length;
      });
      response.pipe(outgoing);
    }
    response.on('aborted', () => this.#cut());
    response.on('error', () => this.#cut());
  }

  /** As a pipe does, with less for each event. */
  #passEvents(response: IncomingMessage): void {
    const { outgoing, traffic } = this.#proxied;
    this.#streams = 1;
    traffic.streams++;
    const isHeld = (): boolean => outgoing.writableNeedDrain;
    response.on('data', (chunk: Buffer) => {
      traffic.answer_bytes += chunk.length;
      // It was given up in a turn in which more came.
      if (this.#streams === 0 || outgoing.writableEnded) return;
      const now_ms = performance.now();
      this.#timed?.began(now_ms);
      if (this.#paced) this.#paced.arrived(now_ms);
      else this.#paced = traffic.pace.join(isHeld, now_ms);
      this.#boundary.push(chunk);
      this.#deadlines.progressed();
      if (writeEvents(outgoing, chunk, true)) return;
      response.pause();
      outgoing.once('drain', () => response.resume());
    });
    response.once('end', () => {
      if (outgoing.writableEnded) return;
      outgoing.addTrailers(this.#timings(response.trailers));
      outgoing.end();
    });
  }

  /** Where the time went, for a gateway that traces this request. */
  #timings(said: NodeJS.Dict<string | string[]>): Record<string, string> {
    if (this.#proxied.incoming.headers[headerNames.timings] === undefined) return {};
    const elapsed_ms = performance.now() - this.#began_ms;
    return { [headerNames.timings]: withAgentTime(said[headerNames.timings], elapsed_ms) };
  }

  /** An engine that hangs keeps its connections open. */
  #endWithSession(error: HpcserveError): void {
    // Where no other can be why, gateways are told to ask nobody else.
    if (isBlamed(error, this.#unanswered))
      this.#refuse(silent(error), isAlone(error) ? { 'x-should-retry': 'false' } : {});
    else this.#fail('its process hangs or has ended');
    this.#passed.destroy();
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
    this.#answer?.unpipe(outgoing);
    if (!outgoing.headersSent) answerError(outgoing, error, undefined, { ...answer_headers, ...more });
    else if (this.#streams > 0 && this.#boundary.isBetween) {
      this.#handedOver = true;
      outgoing.end(`data: ${JSON.stringify(event)}\n\n`);
    } else outgoing.destroy(); // in the middle of an event or a JSON text nothing can be said
    this.#passed.destroy();
  }
}

/** The request to the engine, of which nothing was sent yet. */
function openPassed({ incoming, upstream, body, path }: PassedRequest): ClientRequest {
  const headers: OutgoingHttpHeaders = { ...passedOn(incoming.headers), host: 'localhost' };
  if (body !== undefined) headers['content-length'] = body.length;
  if (upstream.key !== undefined) headers.authorization = `Bearer ${upstream.key}`;
  const { method, url } = incoming;
  const passed = request({ ...connectionTo(upstream), method, path: path ?? url, headers });
  passed.setNoDelay(true);
  return passed;
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

function passedOn(headers: IncomingMessage['headers']): OutgoingHttpHeaders {
  const named = new Set(
    String(headers.connection ?? '')
      .split(',')
      .map((name) => name.trim().toLowerCase()),
  );
  return Object.fromEntries(
    Object.entries(headers).filter(([name]) => !not_passed_on.has(name) && !named.has(name)),
  );
}
