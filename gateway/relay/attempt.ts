import { requestsAt } from '../../solver/routing/candidate.ts';
import type { RefusedRequest } from '../../spec/device-view.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { headers } from '../../spec/wire.ts';
import { errorCodeHeader, errorEnvelope } from '../http-error.ts';
import { cacheScopeOf } from '../keys/cache-scope.ts';
import type { Replica } from '../routing/replica.ts';
import type { SessionLink } from '../session-link.ts';
import type { AnswerHead } from '../upstream/http-answer-parser.ts';
import type { AnswerReceiver } from '../upstream/connection.ts';
import type { Call } from '../upstream/pool.ts';
import { type AnswerHeaders, answerHeaders } from './answer-headers.ts';
import { bytesOf } from './body-edits.ts';
import type { StreamError } from './error-event.ts';
import type { AcceptedRequest, Outcome } from './accepted-request.ts';
import type { ContinuedRequest } from './journal/journal.ts';
import { JsonRelay } from './json-relay.ts';
import {
  type AttemptFailure,
  connectionFailure,
  isMeshRefusal,
  type ReplicaRefusal,
  replicaRefusal,
} from './replica-refusal.ts';
import { bodyFor } from './request-body.ts';
import type { StreamRelay, StreamRelayOptions } from './stream-relay.ts';
import type { TokenUsage } from './usage.ts';

/** A replica may leave its connection open for so long after it has sent the ending of a stream. */
const linger_ms = 2000;
/** Seconds until a request is tried again that was refused in a stream, which says no time. */
const refusedRetryAfter_s = '1';
/** Of what a replica says that does not go on with a stream, so much is read for its code. */
const refusalBytes = 4096;

/** Whom attempts report to: the request they belong to. */
export interface AttemptOwner {
  readonly of: AcceptedRequest;
  /** The stream that the client is being sent; it outlives the attempts that feed it. */
  readonly stream: StreamRelay | undefined;
  /** The request waits where a batch is full; else another replica is looked for first. */
  readonly may_wait: boolean;
  openStream(attempt: Attempt, options: Pick<StreamRelayOptions, 'onFirst' | 'onReplicaFailed'>): StreamRelay;
  /** The first bytes of an answer are about to go to the client. */
  firstByte(): void;
  paused(resume: () => void): void;
  decide(outcome: Outcome, send: () => void): void;
  /** The attempt could not answer, and nothing of it has reached the client. */
  attemptFailed(attempt: Attempt, error: Error, failure: AttemptFailure): void;
  /**
   * Whether another replica is asked instead, or the refusal comes later by `answerAsItCame`.
   * @param refused what a native replica says that it cannot take now
   */
  retryInstead(attempt: Attempt, refusal: ReplicaRefusal, refused: RefusedRequest | undefined): boolean;
  /** The stream broke after some of it has reached the client. */
  streamBroke(attempt: Attempt, reason: Error, failure: AttemptFailure): void;
  /** The same, where going on elsewhere is out of the question. */
  failStream(attempt: Attempt, reason: Error, why: string): void;
  /** Whether the stream could go on elsewhere if this replica failed now. */
  readonly continuable: boolean;
  /** Tokens that the client has of the stream, as far as its journal knows. */
  readonly progress: TokenUsage | undefined;
}

/** One try with one replica: for the whole request, or for what is left of a stream. */
export class Attempt implements AnswerReceiver {
  readonly replica: Replica<SessionLink>;
  readonly #owner: AttemptOwner;
  readonly #continued: ContinuedRequest | undefined;
  #call: Call | undefined;
  #released = false;
  /** Given up: whatever still comes is of no use. */
  #over = false;
  #status = 0;
  /** The replica says that its error is no reason to ask another. */
  #final = false;
  #answer: AnswerHeaders | undefined;
  #json: JsonRelay | undefined;
  #stream: StreamRelay | undefined;
  /** What a replica says that was asked to go on with a stream and does not. */
  #atOnce = false;
  #refusal: Buffer | undefined;
  /** What it refused the request with inside a stream that had begun, as an answer of its own. */
  #refusedInStream: Buffer | undefined;

  /** @param continued with what to go on with the owner's stream; absent: the request from its start */
  constructor(owner: AttemptOwner, replica: Replica<SessionLink>, continued?: ContinuedRequest) {
    this.#owner = owner;
    this.replica = replica;
    this.#continued = continued;
  }

  dispatch(): void {
    const { parsed, endpoint, request, request_id, key } = this.#owner.of;
    const scope = cacheScopeOf(key);
    const link = this.replica.session;
    const body = this.#continued?.body ?? bodyFor(parsed, link.facts.engine);
    // Another gateway may have filled the batch since the replica last said how full it is.
    this.#atOnce = !this.#owner.may_wait && !this.#continued && hasFreePlace(this.replica);
    this.replica.unreported++;
    const { traceparent } = request.headers;
    const asksTokens = parsed.stream && endpoint.dialect === 'completions' && link.facts.engine === 'native';
    const head =
      `POST ${endpoint.path} HTTP/1.1\r\nhost: ${link.host}\r\ncontent-type: application/json\r\n` +
      `content-length: ${bytesOf(body)}\r\n${headers.request_id}: ${request_id}\r\n` +
      `${headers.model}: ${this.replica.modelField}\r\n` +
      `${parsed.stream ? 'accept: text/event-stream\r\n' : ''}` +
      `${asksTokens ? `${headers.token_ids}: 1\r\n` : ''}` +
      `${this.#atOnce ? `${headers.at_once}: 1\r\n` : ''}` +
      `${scope === undefined ? '' : `${headers.cache_scope}: ${scope}\r\n`}` +
      `${isTraceparent(traceparent) ? `traceparent: ${traceparent}\r\n` : ''}\r\n`;
    this.#call = link.requests.send(head, body, this);
  }

  /** It was not to wait there: where the replica was busy, it had no place in its batch. */
  get wasAtOnce(): boolean {
    return this.#atOnce;
  }

  /** Of the answer; 0 before there is one. */
  get status(): number {
    return this.#status;
  }

  abort(): void {
    this.#over = true;
    this.#release();
    this.#call?.abort();
  }

  onHead({ status, fields }: AnswerHead): void {
    this.#status = status;
    this.#answer = answerHeaders(fields);
    this.#final = this.#answer.shouldRetry === 'false';
    const { response, parsed } = this.#owner.of;
    if (status < 300 && parsed.stream && this.#answer.contentType.startsWith('text/event-stream')) {
      if (this.#continued) {
        this.#stream = this.#owner.stream!;
        this.#stream.resume(this.#continued.rewrite);
        return;
      }
      this.#stream = this.#owner.openStream(this, {
        onFirst: () => {
          this.#owner.firstByte();
          this.#writeHead(undefined);
        },
        onReplicaFailed: (error) => this.#replicaFailed(error),
      });
    } else if (this.#continued) {
      this.#refusal = Buffer.alloc(0);
    } else {
      this.#json = new JsonRelay(response, (length) => {
        this.#owner.firstByte();
        this.#writeHead(length);
      });
    }
  }

  onBody(chunk: Buffer): boolean {
    if (this.#over) return true;
    let flowing = true;
    if (this.#refusal) {
      if (this.#refusal.length < refusalBytes) this.#refusal = Buffer.concat([this.#refusal, chunk]);
    } else if (this.#json) flowing = this.#json.push(chunk);
    else if (this.#stream) {
      try {
        flowing = this.#stream.push(chunk);
      } catch (error) {
        this.abort();
        this.#notAStream(error as Error);
        return true;
      }
    }
    if (!flowing) this.#owner.paused(() => this.#call?.resume());
    return flowing;
  }

  onEnd(): void {
    this.#release();
    if (this.#over) return;
    if (this.#stream) this.#streamEnded(this.#stream);
    else if (this.#refusal) this.#notContinued(this.#refusal);
    else if (this.#json) this.#jsonComplete(this.#json);
  }

  onError(error: Error): void {
    this.#release();
    if (this.#over || this.#stream?.ended) return;
    // One that has begun to answer has got over the request itself.
    const failure = this.#json?.begun ? 'failed' : connectionFailure(error);
    if (this.#stream || this.#json?.passing || this.#continued) this.#brokeOff(error, failure);
    else this.#owner.attemptFailed(this, error, failure);
  }

  /** Nobody else takes the request: this replica's refusal is the answer after all. */
  answerAsItCame(): void {
    this.#answerError(this.#json?.body() ?? this.#refusedInStream!);
  }

  /** The ending of the stream has come: puts it into the ledger and then sends it. */
  complete(stream: StreamRelay): void {
    const { finishReason, error } = stream;
    const usage = stream.usage ?? this.#owner.progress;
    const failed = error && { status: 502, error_code: error.code };
    const status = this.#continued ? this.#owner.of.response.statusCode : this.#status;
    this.#owner.decide({ status, usage, finish_reason: finishReason, ...failed }, () => {
      stream.finish();
      // The replica's own end normally came along with the ending; one that never ends must not hold a connection.
      if (!this.#released) setTimeout(() => this.abort(), linger_ms).unref();
    });
  }

  /** An event says that the replica failed. True: the client need not see it. */
  #replicaFailed({ message, code }: StreamError): boolean {
    const { headersSent } = this.#owner.of.response;
    if (headersSent && !this.#owner.continuable) return false;
    this.abort();
    const refusal = replicaRefusal(503, code);
    if (headersSent || refusal === 'failed') {
      this.#brokeOff(new Error(message), refusal);
      return true;
    }
    // Its stream had begun, and nothing of an answer was in it: to the client it is a refusal as any other.
    this.#status = 503;
    this.#answer!.pairs = ['content-type', 'application/json', 'retry-after', refusedRetryAfter_s];
    this.#refusedInStream = Buffer.from(
      JSON.stringify({ error: { message, type: 'server_error', param: null, code } }),
    );
    if (!this.#owner.retryInstead(this, refusal, undefined)) this.answerAsItCame();
    return true;
  }

  #streamEnded(stream: StreamRelay): void {
    if (stream.ended) return;
    if (stream.error) {
      // The engine has said what is wrong and ended its stream with that: so does this one.
      const { code } = stream.error;
      this.#owner.decide({ status: 502, error_code: code, usage: stream.usage }, () => stream.finish());
    } else if (stream.upstreamEnded() === 'broken')
      this.#brokeOff(new Error('its stream ended too early'), 'ended');
  }

  #jsonComplete(json: JsonRelay): void {
    const status = this.#status;
    if (status >= 400 && !json.passing) {
      const refusal = replicaRefusal(status, readEnvelope(json.body())?.code, this.#final);
      if (refusal !== 'final' && this.#owner.retryInstead(this, refusal, this.#answer!.refused)) return;
      this.#answerError(json.body());
      return;
    }
    const { usage, finishReason } = json;
    this.#owner.firstByte();
    this.#owner.decide({ status, usage, finish_reason: finishReason }, () => json.finish());
  }

  /** Asked to go on with a stream, the replica answered with something else. */
  #notContinued(refusal: Buffer): void {
    // What it said may hold some of the prompt, and goes into the log: its length must do.
    const reason = new Error(
      `asked to go on, it answered with status ${this.#status} and ${refusal.length}${refusal.length < refusalBytes ? '' : ' or more'} bytes`,
    );
    const code = readEnvelope(refusal)?.code;
    this.#brokeOff(reason, this.#status < 300 ? 'failed' : replicaRefusal(this.#status, code, this.#final));
  }

  #notAStream(reason: Error): void {
    if (this.#owner.of.response.headersSent)
      this.#owner.failStream(this, reason, 'what it sent could not be read');
    else this.#owner.attemptFailed(this, reason, 'failed');
  }

  /** The answer cannot be completed here; where nothing has been sent yet, another replica may do it all. */
  #brokeOff(reason: Error, failure: AttemptFailure): void {
    const { response, parsed } = this.#owner.of;
    if (!response.headersSent) {
      this.#owner.attemptFailed(this, reason, failure);
      return;
    }
    if (this.#stream || this.#continued) {
      this.#owner.streamBroke(this, reason, failure);
      return;
    }
    const error = midStreamError(this.replica, parsed.model, [reason.message]);
    this.#owner.decide({ status: error.http_status, error_code: error.code }, () => response.destroy());
  }

  /** An error of the engine in OpenAI's envelope passes unchanged; anything else is put into one. */
  #answerError(body: Buffer): void {
    const upstream = readEnvelope(body);
    if (upstream && !isMeshRefusal(this.#status)) {
      const { response } = this.#owner.of;
      this.#owner.decide({ status: this.#status, error_code: upstream.code }, () => {
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
    this.#owner.decide({ status, error_code: error.code }, () => {
      const text = Buffer.from(JSON.stringify(errorEnvelope(error)));
      const { response, request_id } = this.#owner.of;
      response.writeHead(status, [
        'content-type',
        'application/json',
        'content-length',
        String(text.length),
        headers.request_id,
        request_id,
        errorCodeHeader,
        error.code,
        ...this.replica.answerHeaders,
      ]);
      response.end(text);
    });
  }

  #writeHead(contentLength: number | undefined): void {
    const { response, request_id } = this.#owner.of;
    const pairs = this.#answer!.pairs;
    pairs.push(headers.request_id, request_id, ...this.replica.answerHeaders);
    if (contentLength !== undefined) pairs.push('content-length', String(contentLength));
    response.writeHead(this.#status, pairs);
  }

  #release(): void {
    if (this.#released) return;
    this.#released = true;
    this.replica.unreported--;
  }
}

export function midStreamError(
  replica: Replica<SessionLink>,
  model: string,
  because: readonly string[],
): HpcserveError {
  return new HpcserveError('E_REPLICA_BROKE_OFF', {
    what: `the replica of ${model} on ${replica.session.facts.node} ended in the middle of its answer`,
    because: [...because],
  });
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

/** As far as this gateway knows, a native replica computes one sequence more at once. */
function hasFreePlace(replica: Replica<SessionLink>): boolean {
  return replica.native && requestsAt(replica) < replica.max_sequences;
}
