import type { HttpAnswerHead } from '../../host/http-answer-parser.ts';
import { requestsAt } from '../../solver/routing/candidate.ts';
import { durationsTaken } from '../../solver/routing/service-time.ts';
import { type BegunAnswer, headers, type MovedAnswer } from '../../spec/wire.ts';
import { cacheScopeOf } from '../keys/cache-scope.ts';
import type { Replica } from '../routing/replica.ts';
import type { ServiceTime } from '../routing/service-times.ts';
import type { SessionLink } from '../session-link.ts';
import type { AttemptSpans } from '../telemetry/request-spans.ts';
import type { AnswerReceiver } from '../upstream/connection.ts';
import type { Call } from '../upstream/pool.ts';
import type { AcceptedRequest } from './accepted-request.ts';
import { type AnswerHeaders, answerHeaders } from './answer-headers.ts';
import type { AttemptResult } from './attempt-result.ts';
import { completingBody, readBegun } from './begun-answer.ts';
import { type BodyPieces, bytesOf } from './body-edits.ts';
import type { ClientAnswer, PassedHead } from './client-answer.ts';
import type { StreamError } from './error-event.ts';
import { type ContinuedRequest, OtherAnswer } from './journal/journal.ts';
import { JsonRelay } from './json-relay.ts';
import { type ReplicaError, readEnvelope } from './replica-error.ts';
import {
  type AttemptFailure,
  connectionFailure,
  type ReplicaRefusal,
  replicaRefusal,
} from './replica-refusal.ts';
import { bodyFor } from './request-body.ts';
import type { StreamRelay } from './stream-relay.ts';

/** A replica may leave its connection open for so long after it has sent the ending of a stream. */
const linger_ms = 2000;
/** Seconds until a request is tried again that was refused in a stream, which says no time. */
const refusedRetryAfter_s = '1';
/** Of what a replica says that does not go on with a stream, so much is read for its code. */
const refusal_bytes_max = 4096;

/** What an attempt is given. */
export interface AttemptTask {
  of: AcceptedRequest;
  replica: Replica<SessionLink>;
  client: ClientAnswer;
  /** The request waits where a batch is full; else another replica is looked for first. */
  may_wait: boolean;
  /** What keys and values are called that were brought to the replica before it; absent: none were. */
  arrived_kv: string | undefined;
  /** What another replica had of an answer that comes whole; absent: the request from its start. */
  begun: BegunAnswer | undefined;
  /** Absent: it is not traced. */
  trace: AttemptSpans | undefined;
  /** The stream that another replica began, and with what to go on; absent: the request from its start. */
  continues: { stream: StreamRelay; request: ContinuedRequest } | undefined;
  /** Begins the stream that the client is sent; it outlives the attempts that feed it. */
  openStream(head: PassedHead): StreamRelay;
  /** The replica has a request less. */
  onRelease(): void;
}

/**
 * One try with one replica: for the whole request, or for what is left of a stream. What the replica sends goes to the
 * client as it comes; how the attempt ended is said once, and it decides nothing.
 *
 * ```
 *   send ─► head ─┬─ an event stream ─► StreamRelay ─┬─ its ending ───────────► streamed, part_streamed
 *                 │                                  └─ an event says it failed, a break, an end too early
 *                 │                                     ├─ the client has some of it ─► broken_stream, stream_error
 *                 │                                     └─ it has nothing ────────────► lost, refused
 *                 ├─ anything else ───► JsonRelay ───┬─ whole ──► answered, or refused where it is an error
 *                 │                                  └─ broken ─► lost, or broken_answer
 *                 └─ the same, where it was to go on with a stream ───────────────► broken_stream
 * ```
 */
export class Attempt implements AnswerReceiver {
  readonly #task: AttemptTask;
  readonly #onResult: (result: AttemptResult) => void;
  #call: Call | undefined;
  readonly #goOn = (): void => this.#call?.resume();
  #dispatched_ms = 0;
  /** See `durationsTaken`. */
  #durations = 1;
  /** The replica had to load its weights first. */
  #wakes = false;
  #released = false;
  /** To be told once that its request is there, which the first thing that comes back says. */
  #onHeard: (() => void) | undefined;
  /** It has ended or was cancelled: whatever still comes is of no use. */
  #over = false;
  /** It is not to wait there: where the replica is busy, it has no place in its batch. */
  #atOnce = false;
  #status = 0;
  #answer: AnswerHeaders | undefined;
  #json: JsonRelay | undefined;
  #stream: StreamRelay | undefined;
  /** What a replica says that was asked to go on with a stream and does not. */
  #refusal: Buffer | undefined;

  /** @param onResult called once, unless it is cancelled before */
  constructor(task: AttemptTask, onResult: (result: AttemptResult) => void) {
    this.#task = task;
    this.#onResult = onResult;
  }

  get replica(): Replica<SessionLink> {
    return this.#task.replica;
  }

  dispatch(): void {
    const { of, replica, may_wait, continues, begun, arrived_kv } = this.#task;
    const link = replica.session;
    const whole = begun && completingBody(of.parsed, begun, arrived_kv);
    const body = continues?.request.body ?? whole ?? bodyFor(of.parsed, link.facts.engine);
    // Another gateway may have filled the batch since the replica last said how full it is.
    this.#atOnce = !may_wait && !continues && !begun && hasFreePlace(replica);
    this.#dispatched_ms = performance.now();
    this.#durations = durationsTaken(requestsAt(replica), replica.max_sequences);
    const { asleep = false, device_taken = false, weights } = replica;
    this.#wakes = asleep || device_taken || weights?.resting === true;
    this.#onHeard = replica.asked();
    const path = continues?.request.path ?? of.endpoint.path;
    this.#call = link.requests.send(requestHead(this.#task, path, body, this.#atOnce), body, this);
  }

  /**
   * How long the replica worked for it, without its wait behind others there; undefined where that is not known: the
   * replica was to come to itself first, or another one did some of it.
   *
   * @param ttft_ms of the answer, since the request arrived
   */
  service(ttft_ms: number | undefined): ServiceTime | undefined {
    const { continues, arrived_kv, begun } = this.#task;
    if (this.#wakes || continues || begun || arrived_kv !== undefined) return undefined;
    const arrived_ms = this.#task.of.began_ms;
    return {
      duration_ms: (performance.now() - this.#dispatched_ms) / this.#durations,
      is_estimate: this.#durations > 1,
      // How much of it was waiting is not known.
      ttft_ms:
        ttft_ms === undefined || this.#durations > 1 ? undefined : arrived_ms + ttft_ms - this.#dispatched_ms,
    };
  }

  /** Gives it up without a result. */
  cancel(): void {
    this.#task.trace?.end(undefined);
    this.#stop();
  }

  /** The client has the end of its stream. A replica that never ends its own must not hold a connection. */
  cancelSoon(): void {
    // Normally it came along with the ending.
    if (!this.#released) setTimeout(() => this.cancel(), linger_ms).unref();
  }

  onHead({ status, fields }: HttpAnswerHead): void {
    const { of, replica, client, continues, openStream } = this.#task;
    this.#heard();
    this.#status = status;
    this.#answer = answerHeaders(fields);
    const head = { status, pairs: this.#answer.pairs, answeredBy: replica.answerHeaders };
    if (status < 300 && of.parsed.stream && this.#answer.contentType.startsWith('text/event-stream')) {
      this.#stream = continues?.stream ?? openStream(head);
      if (continues) this.#stream.resume(continues.request.rewrite);
    } else if (continues) this.#refusal = Buffer.alloc(0);
    else this.#json = new JsonRelay(client.response, (length) => client.writeHead(head, length));
  }

  onBody(chunk: Buffer): boolean {
    if (this.#over) return true;
    let flowing = true;
    if (this.#refusal) {
      if (this.#refusal.length < refusal_bytes_max) this.#refusal = Buffer.concat([this.#refusal, chunk]);
    } else if (this.#json) flowing = this.#json.push(chunk);
    else if (this.#stream) flowing = this.#pushToStream(this.#stream, chunk);
    if (!flowing) this.#task.client.whenTaken(this.#goOn);
    return flowing;
  }

  onEnd(trailers: readonly string[]): void {
    this.#release();
    this.#task.trace?.computed(this.#answer?.timings ?? answerHeaders(trailers).timings);
    if (this.#over) return;
    if (this.#stream) this.#streamEnded(this.#stream);
    else if (this.#refusal) this.#notContinued(this.#refusal);
    else if (this.#json) this.#jsonEnded(this.#json);
  }

  onError(error: Error): void {
    this.#release();
    // One that has begun to answer has got over the request itself.
    if (!this.#over) this.#broke(error, this.#json?.begun ? 'failed' : connectionFailure(error));
  }

  #pushToStream(stream: StreamRelay, chunk: Buffer): boolean {
    let flowing: boolean;
    try {
      flowing = stream.push(chunk);
    } catch (error) {
      this.#unreadable(error as Error);
      return true;
    }
    if (stream.ended) this.#end({ kind: 'streamed' });
    else if (stream.partEnded)
      this.#end({ kind: 'part_streamed', reason: new Error('it had sent what it was asked for') });
    else if (stream.replicaError) this.#replicaFailed(stream.replicaError);
    return flowing;
  }

  /** An event says that the replica failed, and the client need not see it. */
  #replicaFailed({ message, code, moved }: StreamError): void {
    const refusal = replicaRefusal(503, code);
    this.#stop();
    if (this.#task.client.begun || refusal === 'failed') {
      this.#broke(new Error(message), refusal, moved);
      return;
    }
    // Its stream had begun, and nothing of an answer was in it: to the client it is a refusal as any other.
    const pairs = ['content-type', 'application/json', 'retry-after', refusedRetryAfter_s];
    const body = Buffer.from(JSON.stringify({ error: { message, type: 'server_error', param: null, code } }));
    this.#refused(refusal, { status: 503, pairs, body, code }, { moved });
  }

  #streamEnded(stream: StreamRelay): void {
    const missing = stream.missingEnd;
    if (missing) this.#pushToStream(stream, missing);
    if (this.#over) return;
    if (stream.error) this.#end({ kind: 'stream_error', error: stream.error });
    else if (stream.upstreamEnded() === 'complete') this.#end({ kind: 'streamed' });
    else this.#broke(new Error('its stream ended too early'), 'ended');
  }

  #jsonEnded(json: JsonRelay): void {
    const status = this.#status;
    if (status < 400 || json.passing) {
      this.#end({ kind: 'answered', status, answer: json });
      return;
    }
    const { pairs, refused, moved } = this.#answer!;
    const { body, begun: told } = readBegun(json.body());
    // Nobody else was asked for it.
    const begun = mayMoveWhole(this.#task) ? told : undefined;
    const code = readEnvelope(body)?.code;
    const refusal = replicaRefusal(status, code, this.#isFinal);
    this.#refused(refusal, { status, pairs, body, code }, { refused, moved, begun });
  }

  /** Asked to go on with a stream, the replica answered with something else. */
  #notContinued(refusal: Buffer): void {
    const status = this.#status;
    // What it said may hold some of the prompt, and goes into the log: its length must do.
    const bytes = `${refusal.length}${refusal.length < refusal_bytes_max ? '' : ' or more'} bytes`;
    const reason = new Error(`asked to go on, it answered with status ${status} and ${bytes}`);
    const code = readEnvelope(refusal)?.code;
    this.#broke(reason, status < 300 ? 'failed' : replicaRefusal(status, code, this.#isFinal));
  }

  #unreadable(reason: Error): void {
    this.#stop();
    if (reason instanceof OtherAnswer) this.#end({ kind: 'part_streamed', reason });
    else if (this.#task.client.begun) this.#end({ kind: 'unreadable_stream', reason });
    else this.#end({ kind: 'lost', failure: 'failed', reason });
  }

  /** The answer cannot be completed here; where nothing has been sent yet, another replica may do it all. */
  #broke(reason: Error, failure: AttemptFailure, moved?: MovedAnswer): void {
    const { client, continues } = this.#task;
    if (!client.begun) this.#end({ kind: 'lost', failure, reason });
    else if (this.#stream || continues) this.#end({ kind: 'broken_stream', failure, reason, moved });
    else this.#end({ kind: 'broken_answer', reason });
  }

  #refused(
    refusal: ReplicaRefusal,
    error: ReplicaError,
    told: Pick<AttemptResult & { kind: 'refused' }, 'refused' | 'moved' | 'begun'>,
  ): void {
    const full = this.#atOnce && error.status === 429;
    this.#end({ kind: 'refused', refusal, error, full, ...told });
  }

  #end(result: AttemptResult): void {
    this.#over = true;
    this.#task.trace?.end(result);
    this.#onResult(result);
  }

  #stop(): void {
    this.#over = true;
    this.#release();
    this.#call?.abort();
  }

  /** The replica says that its error is no reason to ask another. */
  get #isFinal(): boolean {
    return this.#answer!.shouldRetry === 'false';
  }

  #release(): void {
    if (this.#released) return;
    this.#released = true;
    this.#heard();
    this.replica.unreported--;
    this.#task.onRelease();
  }

  #heard(): void {
    this.#onHeard?.();
    this.#onHeard = undefined;
  }
}

/** Request line and fields, the empty line included. */
function requestHead(task: AttemptTask, path: string, body: BodyPieces, atOnce: boolean): string {
  const { parsed, endpoint, request, request_id, key } = task.of;
  const { session, modelField } = task.replica;
  const { continues, arrived_kv, begun, trace } = task;
  const scope = cacheScopeOf(key);
  const traceparent = trace?.traceparent ?? request.headers.traceparent;
  const asksTokens = parsed.stream && isOurs(endpoint, session);
  return (
    `POST ${path} HTTP/1.1\r\nhost: ${session.host}\r\ncontent-type: application/json\r\n` +
    `content-length: ${bytesOf(body)}\r\n${headers.request_id}: ${request_id}\r\n` +
    `${headers.model}: ${modelField}\r\n` +
    `${parsed.stream ? 'accept: text/event-stream\r\n' : ''}` +
    `${asksTokens ? `${headers.token_ids}: 1\r\n` : ''}` +
    `${mayMoveWhole(task) ? `${headers.may_move}: 1\r\n` : ''}` +
    `${arrived_kv === undefined || begun ? '' : `${headers.arrived_kv}: ${arrived_kv}\r\n`}` +
    `${atOnce ? `${headers.at_once}: 1\r\n` : ''}` +
    `${continues || begun ? `${headers.continues}: 1\r\n` : ''}` +
    `${trace ? `${headers.timings}: 1\r\n` : ''}` +
    `${scope === undefined ? '' : `${headers.cache_scope}: ${scope}\r\n`}` +
    `${isTraceparent(traceparent) ? `traceparent: ${traceparent}\r\n` : ''}\r\n`
  );
}

/** A native replica that may give the answer away before its end, and says what there is of it. */
function mayMoveWhole({ of: { parsed, endpoint }, replica: { session } }: AttemptTask): boolean {
  return !parsed.stream && isOurs(endpoint, session);
}

function isOurs({ dialect }: AcceptedRequest['endpoint'], { facts }: SessionLink): boolean {
  return dialect === 'completions' && facts.engine === 'native';
}

/** W3C trace context, version 00. */
function isTraceparent(value: unknown): value is string {
  return typeof value === 'string' && /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/.test(value);
}

/** As far as this gateway knows, a native replica computes one sequence more at once. */
function hasFreePlace(replica: Replica<SessionLink>): boolean {
  return replica.native && requestsAt(replica) < replica.max_sequences;
}
