import type { IncomingMessage, ServerResponse } from 'node:http';
import type { ApiKey, Ledger, RequestRecord } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { headers } from '../../spec/wire.ts';
import { errorCodeHeader, errorEnvelope, errorEvent, sendError } from '../http-error.ts';
import type { GatewayLog } from '../log.ts';
import type { GatewayMetrics } from '../metrics.ts';
import type { RoutingPolicy } from '../routing/policy.ts';
import type { Replica, RoutingTable } from '../routing/table.ts';
import type { SessionLink } from '../session-link.ts';
import type { AnswerHead } from '../upstream/answer-parser.ts';
import type { AnswerReceiver } from '../upstream/connection.ts';
import type { Call } from '../upstream/pool.ts';
import { type AnswerHeaders, answerHeaders } from './answer-headers.ts';
import type { Endpoint } from './endpoints.ts';
import { JsonRelay } from './json-relay.ts';
import type { ParsedRequest } from './request-body.ts';
import { StreamRelay } from './stream-relay.ts';
import type { TokenUsage } from './usage.ts';

/** What the exchanges of one gateway share. */
export interface ExchangeServices {
  table: RoutingTable<SessionLink>;
  policy: RoutingPolicy;
  ledger: Ledger;
  metrics: GatewayMetrics;
  log: GatewayLog;
  /** Why nobody can answer for a model, and when to try again. */
  explainAbsence(model: string): Promise<{ error: HpcserveError; retry_after_s?: number }>;
}

/** Further replicas tried after the first. Lower: failures show sooner; higher: a poisonous request does more harm. */
const retries = 2;
/** A client that takes no bytes for so long is cut off; its replica could compute for others. */
const stall_ms = 60_000;
/** Status of a client that went away, by nginx's custom; only logs and ledger see it. */
const clientGone = 499;
const retryAfterBusy_s = 2;
/** A replica may leave its connection open for so long after it has sent the ending of a stream. */
const linger_ms = 2000;

export interface ExchangeRequest {
  request: IncomingMessage;
  response: ServerResponse;
  request_id: string;
  key: ApiKey;
  endpoint: Endpoint;
  parsed: ParsedRequest;
  /** Unix ms, and on the monotonic clock. */
  time_ms: number;
  began_ms: number;
}

/** One request of a client until its answer is in the ledger and sent: over one replica, or several in turn. */
export class Exchange {
  readonly #of: ExchangeRequest;
  readonly #services: ExchangeServices;
  readonly #tried: string[] = [];
  readonly #onClose = (): void => this.#clientClosed();
  #attempt: Attempt | undefined;
  #ttft_ms: number | undefined;
  #stall: NodeJS.Timeout | undefined;
  /** An outcome is decided: being recorded, or sent. */
  #decided = false;

  constructor(of: ExchangeRequest, services: ExchangeServices) {
    this.#of = of;
    this.#services = services;
  }

  get of(): ExchangeRequest {
    return this.#of;
  }

  start(): void {
    this.#of.response.on('close', this.#onClose);
    if (!this.#next()) void this.#noReplica();
  }

  /** Sends the request to the best replica not yet tried; false where there is none or none may be tried. */
  #next(): boolean {
    if (this.#tried.length > retries) return false;
    const route = this.#services.table.find(this.#of.parsed.model);
    if (!route) return false;
    const seed = (Math.random() * 0x1_0000_0000) >>> 0;
    const replica = this.#services.policy.choose(route.candidates, this.#tried, seed);
    if (!replica) return false;
    this.#tried.push(replica.session_id);
    this.#attempt = new Attempt(this, replica);
    this.#attempt.dispatch();
    return true;
  }

  async #noReplica(): Promise<void> {
    const route = this.#services.table.find(this.#of.parsed.model);
    if (route && route.candidates.length > 0) {
      const error = new HpcserveError('E_REPLICA_BUSY', {
        what: `all ${route.candidates.length} replicas of ${this.#of.parsed.model} are full`,
      });
      this.fail(error, ['retry-after', String(retryAfterBusy_s)]);
      return;
    }
    const { error, retry_after_s } = await this.#services.explainAbsence(this.#of.parsed.model);
    this.fail(error, retry_after_s === undefined ? [] : ['retry-after', String(retry_after_s)]);
  }

  /** Called when an attempt could not answer and nothing of it has reached the client. */
  attemptFailed(attempt: Attempt, error: Error): void {
    if (this.#decided) return;
    this.#services.log.warn(
      { request_id: this.#of.request_id, session: attempt.replica.session_id, reason: error.message },
      'replica failed before its answer',
    );
    this.#services.metrics.retried(attempt.replica.served.name);
    if (this.#next()) return;
    this.fail(
      new HpcserveError('E_REPLICA_FAILED', {
        what: `${this.#tried.length} replica(s) of ${this.#of.parsed.model} were tried and none answered`,
        because: error.message,
      }),
      ['retry-after', String(retryAfterBusy_s)],
    );
  }

  /** Whether an answer with this status is to be asked of another replica instead; starts that where there is one. */
  retryInstead(attempt: Attempt, status: number): boolean {
    if (this.#decided || !this.#next()) return false;
    this.#services.log.warn(
      { request_id: this.#of.request_id, session: attempt.replica.session_id, status },
      'replica answered with an error; asked another',
    );
    this.#services.metrics.retried(attempt.replica.served.name);
    return true;
  }

  /** The first bytes of an answer are about to go to the client. */
  firstByte(): void {
    this.#ttft_ms ??= performance.now() - this.#of.began_ms;
  }

  /** Puts an outcome into the ledger, and then sends it. */
  decide(outcome: Outcome, send: () => void): void {
    if (this.#decided) return;
    this.#decided = true;
    this.#clearStall();
    const { ledger, metrics } = this.#services;
    const record = this.#record(outcome);
    metrics.answered(record);
    ledger.record(record, (error) => {
      this.#of.response.off('close', this.#onClose);
      if (this.#of.response.destroyed) return;
      if (error) this.#answerUnrecorded(error);
      else send();
    });
  }

  /** Answers with an error of the gateway's own. */
  fail(error: HpcserveError, extra: readonly string[] = []): void {
    this.decide({ status: error.http_status, error_code: error.code }, () => {
      const { response, request_id } = this.#of;
      if (response.headersSent) {
        if (this.#of.parsed.stream) response.end(errorEvent(error));
        else response.destroy();
      } else sendError(response, error, request_id, extra);
    });
  }

  /** The replica is paused until the client has taken what was written. */
  paused(resume: () => void): void {
    const { response } = this.#of;
    this.#stall = setTimeout(() => response.destroy(), stall_ms);
    response.once('drain', () => {
      this.#clearStall();
      resume();
    });
  }

  #clearStall(): void {
    clearTimeout(this.#stall);
  }

  /** What was computed cannot be recorded: it is not given out as if it had been. */
  #answerUnrecorded(error: HpcserveError): void {
    const { response, request_id, parsed } = this.#of;
    if (!response.headersSent) sendError(response, error, request_id, ['retry-after', '10']);
    else if (parsed.stream) response.end(errorEvent(error));
    else response.destroy();
  }

  #clientClosed(): void {
    if (this.#decided) return;
    const tokens = this.#attempt?.progress() ?? {};
    this.#attempt?.abort();
    this.decide({ status: clientGone, error_code: 'client_closed', ...tokens }, () => {});
  }

  #record(outcome: Outcome): RequestRecord {
    const { request_id, time_ms, began_ms, key, endpoint, parsed } = this.#of;
    const record: RequestRecord = {
      request_id,
      time_ms,
      key_id: key.id,
      endpoint: endpoint.path,
      model: parsed.model,
      served_model: undefined,
      session: undefined,
      status: outcome.status,
      stream: parsed.stream,
      attempts: this.#tried.length,
      prompt_tokens: outcome.usage?.prompt_tokens,
      completion_tokens: outcome.usage?.completion_tokens,
      cached_tokens: outcome.usage?.cached_tokens,
      reasoning_tokens: outcome.usage?.reasoning_tokens,
      ttft_ms: this.#ttft_ms,
      duration_ms: performance.now() - began_ms,
      finish_reason: outcome.finish_reason,
      error_code: outcome.error_code,
    };
    const replica = this.#attempt?.replica;
    if (replica) {
      record.served_model = replica.served.name;
      record.session = replica.session.facts;
    }
    return record;
  }
}

interface Outcome {
  status: number;
  usage?: TokenUsage | undefined;
  finish_reason?: string | undefined;
  error_code?: string | undefined;
}

/** One try with one replica. */
class Attempt implements AnswerReceiver {
  readonly replica: Replica<SessionLink>;
  readonly #exchange: Exchange;
  #call: Call | undefined;
  #released = false;
  #status = 0;
  #answer: AnswerHeaders | undefined;
  #json: JsonRelay | undefined;
  #stream: StreamRelay | undefined;

  constructor(exchange: Exchange, replica: Replica<SessionLink>) {
    this.#exchange = exchange;
    this.replica = replica;
  }

  dispatch(): void {
    const { parsed, endpoint, request, request_id } = this.#exchange.of;
    const link = this.replica.session;
    this.replica.unreported++;
    const { traceparent } = request.headers;
    const head =
      `POST ${endpoint.path} HTTP/1.1\r\nhost: ${link.host}\r\ncontent-type: application/json\r\n` +
      `content-length: ${parsed.body.length}\r\n${headers.request_id}: ${request_id}\r\n` +
      `${headers.model}: ${this.replica.modelField}\r\n` +
      `${isTraceparent(traceparent) ? `traceparent: ${traceparent}\r\n` : ''}\r\n`;
    this.#call = link.requests.send(head, parsed.body, this);
  }

  abort(): void {
    this.#release();
    this.#call?.abort();
  }

  /** What is known of an answer that was broken off: a chunk of a stream carries a token, or a few. */
  progress(): Partial<Outcome> {
    if (!this.#stream) return {};
    return { usage: this.#stream.usage ?? { completion_tokens: this.#stream.events_sent } };
  }

  onHead({ status, fields }: AnswerHead): void {
    this.#status = status;
    this.#answer = answerHeaders(fields);
    const { response, parsed, endpoint } = this.#exchange.of;
    if (status < 300 && parsed.stream && this.#answer.contentType.startsWith('text/event-stream')) {
      this.#stream = new StreamRelay(response, {
        passUsage: parsed.wantsUsage,
        ending: endpoint.dialect === 'responses' ? 'responses' : 'done',
        onFirst: () => {
          this.#exchange.firstByte();
          this.#writeHead(undefined);
        },
        onEnding: () => this.#streamComplete(),
      });
    } else {
      this.#json = new JsonRelay(response, (length) => {
        this.#exchange.firstByte();
        this.#writeHead(length);
      });
    }
  }

  onBody(chunk: Buffer): boolean {
    let flowing = true;
    if (this.#json) flowing = this.#json.push(chunk);
    else if (this.#stream) {
      try {
        flowing = this.#stream.push(chunk);
      } catch (error) {
        this.abort();
        this.#brokeOff(error as Error);
        return true;
      }
    }
    if (!flowing) this.#exchange.paused(() => this.#call?.resume());
    return flowing;
  }

  onEnd(): void {
    this.#release();
    if (this.#stream) {
      if (this.#stream.upstreamEnded() === 'broken') this.#brokeOff(new Error('its stream ended too early'));
    } else if (this.#json) this.#jsonComplete(this.#json);
  }

  onError(error: Error): void {
    this.#release();
    if (this.#stream?.ended) return;
    if (this.#stream || this.#json?.passing) this.#brokeOff(error);
    else this.#exchange.attemptFailed(this, error);
  }

  #jsonComplete(json: JsonRelay): void {
    const status = this.#status;
    if (mayRetry(status) && !json.passing && this.#exchange.retryInstead(this, status)) return;
    if (status >= 400 && !json.passing) {
      this.#answerError(json.body());
      return;
    }
    const { usage, finishReason } = json;
    this.#exchange.firstByte();
    this.#exchange.decide({ status, usage, finish_reason: finishReason }, () => json.finish());
  }

  #streamComplete(): void {
    const stream = this.#stream!;
    this.#exchange.decide(
      { status: this.#status, usage: stream.usage, finish_reason: stream.finishReason },
      () => {
        stream.finish();
        // The replica's own end normally came along with the ending; one that never ends must not hold a connection.
        if (!this.#released) setTimeout(() => this.abort(), linger_ms).unref();
      },
    );
  }

  /** The stream cannot be completed; where nothing has been sent yet, another replica may do it. */
  #brokeOff(reason: Error): void {
    const { response, parsed } = this.#exchange.of;
    if (!response.headersSent) {
      this.#exchange.attemptFailed(this, reason);
      return;
    }
    const error = new HpcserveError('E_REPLICA_BROKE_OFF', {
      what: `the replica of ${parsed.model} on ${this.replica.session.facts.node} ended in the middle of its answer`,
      because: reason.message,
    });
    this.#exchange.decide({ status: error.http_status, error_code: error.code, ...this.progress() }, () => {
      if (this.#stream) this.#stream.fail(errorEvent(error));
      else response.destroy();
    });
  }

  /** An error of the engine in OpenAI's envelope passes unchanged; anything else is put into one. */
  #answerError(body: Buffer): void {
    const upstream = readEnvelope(body);
    if (upstream && !isMeshRefusal(this.#status)) {
      const { response } = this.#exchange.of;
      this.#exchange.decide({ status: this.#status, error_code: upstream.code }, () => {
        this.#writeHead(body.length);
        response.end(body);
      });
      return;
    }
    const error = new HpcserveError('E_REPLICA_FAILED', {
      what: `the replica on ${this.replica.session.facts.node} answered with status ${this.#status}`,
      because: body.length > 0 ? `it said: ${body.toString('utf8', 0, 500)}` : 'it said nothing more',
    });
    const status = isMeshRefusal(this.#status) ? error.http_status : this.#status;
    this.#exchange.decide({ status, error_code: error.code }, () => {
      const text = Buffer.from(JSON.stringify(errorEnvelope(error)));
      const { response, request_id } = this.#exchange.of;
      response.writeHead(status, [
        'content-type',
        'application/json',
        'content-length',
        String(text.length),
        headers.request_id,
        request_id,
        errorCodeHeader,
        error.code,
        ...this.replica.session.answerHeaders,
      ]);
      response.end(text);
    });
  }

  #writeHead(contentLength: number | undefined): void {
    const { response, request_id } = this.#exchange.of;
    const pairs = this.#answer!.pairs;
    pairs.push(headers.request_id, request_id, ...this.replica.session.answerHeaders);
    if (contentLength !== undefined) pairs.push('content-length', String(contentLength));
    response.writeHead(this.#status, pairs);
  }

  #release(): void {
    if (this.#released) return;
    this.#released = true;
    this.replica.unreported--;
  }
}

/** Failures of the replica, not of the request: another replica may do better. */
function mayRetry(status: number): boolean {
  return status >= 500 || status === 429 || isMeshRefusal(status);
}

/** The session did not accept this gateway; the client's key has nothing to do with it. */
function isMeshRefusal(status: number): boolean {
  return status === 401 || status === 403 || status === 421;
}

/** W3C trace context, version 00. */
function isTraceparent(value: unknown): value is string {
  return typeof value === 'string' && /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/.test(value);
}

function readEnvelope(body: Buffer): { code: string } | undefined {
  try {
    const { error } = JSON.parse(body.toString()) as { error?: unknown };
    if (typeof error !== 'object' || error === null || !('message' in error)) return undefined;
    const code = 'code' in error ? error.code : undefined;
    return { code: typeof code === 'string' ? code.slice(0, 64) : 'upstream_error' };
  } catch {
    return undefined;
  }
}
