import type { RequestRecord } from '../../ledger/index.ts';
import { scopedKeys } from '../../solver/routing/prompt-keys.ts';
import type { RefusedRequest } from '../../spec/device-view.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { printableName } from '../../spec/printable-name.ts';
import { errorEvent } from '../http-error.ts';
import { cacheScopeOf } from '../keys/cache-scope.ts';
import type { Replica } from '../routing/replica.ts';
import type { RouteRequest } from '../routing/router.ts';
import type { SessionLink } from '../session-link.ts';
import type { RequestSpans } from '../telemetry/request-spans.ts';
import type { AcceptedRequest, Outcome } from './accepted-request.ts';
import { Attempt } from './attempt.ts';
import type { AttemptResult } from './attempt-result.ts';
import { type BegunElsewhere, completes } from './begun-answer.ts';
import { ClientAnswer, type PassedHead } from './client-answer.ts';
import { clientPatience_ms } from './client-patience.ts';
import { type Continuation, Continuations } from './continuations.ts';
import type { Charge } from './device-charge.ts';
import type { ContinuedRequest } from './journal/journal.ts';
import { PromptUse } from './prompt-use.ts';
import type { ProxyServices } from './proxy-services.ts';
import { midStreamError, passedError, type ReplicaError } from './replica-error.ts';
import { type AttemptFailure, isMeshRefusal } from './replica-refusal.ts';
import { ReplicaSearch } from './replica-search.ts';
import type { ClosedRequest } from './request-accounts.ts';
import { answersEach, answersOf, asksContinuousUsage } from './request-body.ts';
import { StreamRelay } from './stream-relay.ts';
import { UsedTokens } from './used-tokens.ts';
import type { NoPlace } from './waiting-room.ts';

type Result<K extends AttemptResult['kind']> = Extract<AttemptResult, { kind: K }>;

/** Status of a client that went away, by nginx's custom; only logs and ledger see it. */
const clientGone = 499;
/** After replicas failed: those that died are known as dead by then. */
const retryAfterFailure_s = 2;

/**
 * One request of a client until its answer is in the ledger and sent: over one replica, or several in turn.
 *
 * ```
 *  start ─► ReplicaSearch: who is next? ── nobody ─► waits for one that is expected, else fails
 *             ▲      │ a replica
 *             │      ▼
 *             │   Attempt ─── bytes, as they come ─► StreamRelay or JsonRelay ─► ClientAnswer ─► client
 *             │      │ one AttemptResult
 *             │      ▼
 *  elsewhere ─┴── refused, lost            nobody left: the refusal as it came, or an error
 *  goes on ◄───── broken_stream, part_…    Continuations find who; nobody: the stream ends with an error event
 *  done ◄──────── answered, streamed, stream_error, unreadable_stream, broken_answer, or the client is gone
 *    │
 *    └─► decide, once: metrics, measured load, the key's budget, ledger ─ committed ─► last bytes to the client
 * ```
 */
export class ProxiedRequest {
  readonly #of: AcceptedRequest;
  readonly #services: ProxyServices;
  readonly #route: RouteRequest;
  readonly #client: ClientAnswer;
  readonly #search: ReplicaSearch;
  readonly #prompt: PromptUse;
  readonly #used: UsedTokens;
  readonly #trace: RequestSpans | undefined;
  readonly #charge: Charge;
  readonly #onClose = (): void => this.#clientClosed();
  /** The last one, which may have ended. */
  #attempt: Attempt | undefined;
  #stream: StreamRelay | undefined;
  #begun: BegunElsewhere | undefined;
  #continuations: Continuations | undefined;
  /** The model it counts for as demand. */
  #demanded: string | undefined;
  /** Others were asked to give way to it: once is enough. */
  #askedForRoom = false;
  /** While nobody goes on with the stream. */
  #comments: NodeJS.Timeout | undefined;
  /** An outcome is decided: being recorded, or sent. */
  #decided = false;

  constructor(of: AcceptedRequest, services: ProxyServices) {
    this.#of = of;
    this.#services = services;
    const { parsed, filter, key } = of;
    this.#prompt = new PromptUse(of, services.prompts);
    this.#used = new UsedTokens(of, services.log);
    this.#route = {
      model: parsed.model,
      filter,
      prompt: scopedKeys(parsed.prompt, cacheScopeOf(key)),
      blocks: this.#prompt.blocks,
      prompt_tokens_max: of.prompt_tokens_max,
      names: key.settings.models,
    };
    this.#trace = services.tracing?.begin(of);
    this.#charge = services.accounts.charge();
    this.#client = new ClientAnswer(of, services.waiting.stall_ms, () => this.#prompt.began());
    const patient_until_ms = of.began_ms + clientPatience_ms(of.request.headers, filter?.qos);
    const client = { key_id: key.id, patient_until_ms };
    this.#search = new ReplicaSearch(services.router, this.#route, services.waiting, client);
  }

  start(): void {
    this.#of.response.on('close', this.#onClose);
    const replica = this.#search.next();
    if (!replica) void this.#noReplica();
    else if (this.#services.waiting.line.held(this.#route.model) > 0) void this.#waitBehindOthers();
    else this.#begin(replica);
  }

  // --- attempts ----------------------------------------------------------------------------------------------

  /** @param request with which this replica goes on with the stream; absent: the request from its start */
  #begin(replica: Replica<SessionLink>, request?: ContinuedRequest): void {
    if (this.#search.asked === 0 && this.#of.endpoint.computes) {
      this.#services.workload.arrived(replica.served.name);
      this.#demand(replica.served.name);
    }
    this.#search.ask(replica);
    this.#prompt.send(replica, this.#client.begun);
    if (this.#of.endpoint.computes) this.#charge.begin(replica.session);
    const begun = request ? undefined : this.#begunFor(replica);
    if (begun) {
      const told = { request_id: this.#of.request_id, session: replica.session_id };
      this.#services.log.info(told, 'a replica completes the answer of another');
      this.#services.metrics.continued(replica.served.name);
    }
    const task = {
      of: this.#of,
      replica,
      client: this.#client,
      may_wait: this.#search.may_wait,
      arrived_kv: request ? undefined : this.#search.kvAt(replica),
      begun: begun?.answer,
      trace: this.#trace?.attempt(replica),
      continues: request && { stream: this.#stream!, request },
      openStream: (head: PassedHead) => this.#openStream(replica, head),
      onRelease: () => this.#services.waiting.line.wake(),
    };
    const attempt = new Attempt(task, (result) => this.#attemptEnded(attempt, result));
    this.#attempt = attempt;
    attempt.dispatch();
  }

  #openStream(replica: Replica<SessionLink>, head: PassedHead): StreamRelay {
    const { response, parsed, endpoint } = this.#of;
    const { journals, router, waiting } = this.#services;
    this.#continuations?.release();
    const { path, dialect } = endpoint;
    const { onTokens } = this.#prompt;
    const continuations = new Continuations(
      { replica, parsed, route: this.#route, path, dialect, onTokens },
      { journals, router, wait_ms: waiting.continue_ms, load_wait_ms: waiting.load_wait_ms },
    );
    this.#continuations = continuations;
    this.#stream = new StreamRelay(response, {
      status: head.status,
      writeHead: () => this.#client.writeHead(head),
      isContinuable: () => continuations.possible,
      passUsage: parsed.wantsUsage,
      continuousUsage: asksContinuousUsage(parsed, replica.session.facts.engine),
      ending: endpoint.dialect === 'responses' ? 'responses' : 'done',
      choices: answersOf(parsed.scan),
      choices_each: answersEach(parsed.scan),
      journal: continuations.journal,
    });
    return this.#stream;
  }

  /** The one place where what came of an attempt is turned into what follows. */
  #attemptEnded(attempt: Attempt, result: AttemptResult): void {
    if (this.#decided) return;
    this.#charge.end();
    switch (result.kind) {
      case 'answered':
        this.#answered(attempt, result);
        break;
      case 'streamed':
        this.#streamed(attempt, this.#stream!);
        break;
      case 'part_streamed':
        attempt.cancelSoon();
        this.#continuations!.rest(this.#goOnFrom(attempt, result.reason));
        break;
      case 'stream_error':
        this.#streamEndedWith(result, this.#stream!);
        break;
      case 'refused':
        this.#refused(attempt.replica, result);
        break;
      case 'lost':
        this.#lost(attempt.replica, result);
        break;
      case 'broken_stream':
        this.#streamBroke(attempt, result);
        break;
      case 'unreadable_stream':
        this.#failStream(attempt, result.reason, 'what it sent could not be used');
        break;
      case 'broken_answer':
        this.#breakOff(attempt.replica, result);
        break;
      default:
        result satisfies never;
    }
  }

  #answered({ replica }: Attempt, { status, answer }: Result<'answered'>): void {
    this.#client.firstByte();
    answer.prepare();
    const told = { status, usage: this.#used.ofAnswer(replica, answer), finish_reason: answer.finishReason };
    this.#decide(this.#asTold(told), () => answer.finish());
  }

  /** The client may speak an API in which this outcome cannot be told: then it gets an error. */
  #asTold(outcome: Outcome): Outcome {
    const { untold } = this.#of.response;
    return untold === undefined ? outcome : { ...outcome, status: 502, error_code: untold };
  }

  /** The stream has its ending, perhaps behind an error of the engine that the client has. */
  #streamed(attempt: Attempt, stream: StreamRelay): void {
    const { finishReason, error } = stream;
    const outcome: Outcome = {
      status: error ? 502 : stream.status,
      usage: this.#progress(),
      finish_reason: finishReason,
      error_code: error?.code,
    };
    this.#decide(error ? outcome : this.#asTold(outcome), () => {
      stream.finish();
      attempt.cancelSoon();
    });
  }

  /** The engine has said what is wrong and ended its stream with that: so does this one. */
  #streamEndedWith({ error }: Result<'stream_error'>, stream: StreamRelay): void {
    const outcome = { status: 502, error_code: error.code, usage: this.#progress() };
    this.#decide(outcome, () => stream.finish());
  }

  /** Only breaking the connection tells the client. */
  #breakOff(replica: Replica<SessionLink>, { reason }: Result<'broken_answer'>): void {
    const error = midStreamError(replica, this.#of.parsed.model, [reason.message]);
    const outcome = { status: error.http_status, error_code: error.code };
    this.#decide(outcome, () => this.#of.response.destroy());
  }

  // --- another replica ---------------------------------------------------------------------------------------

  #lost(replica: Replica<SessionLink>, { failure, reason }: Result<'lost'>): void {
    this.#services.log.warn(
      { request_id: this.#of.request_id, session: replica.session_id, reason: reason.message },
      'replica failed before its answer',
    );
    this.#services.metrics.retried(replica.served.name);
    this.#search.noteLost(replica, failure);
    if (this.#stopsReplicas(failure, reason.message)) return;
    const next = this.#search.next();
    if (next) this.#begin(next);
    else if (failure === 'unreached')
      void this.#replacedOr(() => this.#noneAnswered(reason), this.#search.unreached);
    else this.#noneAnswered(reason);
  }

  #refused(replica: Replica<SessionLink>, result: Result<'refused'>): void {
    const { refusal, error, full, refused, moved, begun } = result;
    if (error.status === 400 && this.#begunFor(replica)) {
      // What it does not complete, such as a prompt that became another one, it may compute.
      this.#begun = undefined;
      this.#begin(replica);
      return;
    }
    const { name: model, precision } = replica.served;
    if (begun) this.#begun = { answer: begun, model, precision };
    if (refusal === 'final') {
      this.#passOn(replica, error);
      return;
    }
    this.#search.noteRefused(replica, refusal, full, moved);
    if (this.#stopsReplicas(refusal, 'its node agent says that its engine did not answer any more')) return;
    const next = this.#search.next() ?? this.#search.nextToWait();
    // Before an instance more is made for it, or nobody takes it (LLM-Mesh §4).
    if (refused && !this.#askedForRoom && (!next || next.weights?.resting === true)) {
      this.#askedForRoom = true;
      void this.#makeRoom(replica, error, refused);
    } else if (next) this.#retry(replica, error.status, next);
    else if (refusal === 'uncomputed' || this.#search.sentAway) this.#askAgain(replica, error);
    else this.#passOn(replica, error);
  }

  /** What another replica had of an answer that comes whole, where this one can complete it. */
  #begunFor(replica: Replica<SessionLink>): BegunElsewhere | undefined {
    return this.#begun && completes(this.#begun, replica) ? this.#begun : undefined;
  }

  /** Where the request may be what ends replicas, it fails here. @returns whether it did */
  #stopsReplicas(failure: AttemptFailure, because: string): boolean {
    if (failure !== 'stopped' && !this.#search.stopsReplicas) return false;
    const model = printableName(this.#of.parsed.model);
    const what =
      failure === 'stopped'
        ? `a replica of ${model} stopped while it worked on this request alone; it is given to no other`
        : `${this.#search.ended} replicas of ${model} ended while they worked on this request; it is given to no other`;
    this.#fail(new HpcserveError('E_REQUEST_STOPS_REPLICA', { what, because }), ['x-should-retry', 'false']);
    return true;
  }

  /**
   * The last replica took nothing of the request: it was ending, does not know this gateway any more, or has no room
   * yet.
   */
  #askAgain(replica: Replica<SessionLink>, error: ReplicaError): void {
    const accepted = !isMeshRefusal(error.status);
    const again = this.#search.sentAway ? this.#search.tried : accepted ? [] : [replica.session_id];
    void this.#replacedOr(() => this.#passOn(replica, error), again);
  }

  /** @param nobody what to do where no other replica comes in time */
  async #replacedOr(nobody: () => void, again?: readonly string[]): Promise<void> {
    const next = await this.#search.expected({ lost_ms: performance.now(), again });
    if (this.#decided) return;
    if (next) this.#begin(next);
    else if (this.#search.turnedAway) await this.#turnAway(this.#search.turnedAway);
    else nobody();
  }

  /** It would wait for a replica that comes, and all places for that are taken. */
  async #turnAway(why: NoPlace): Promise<void> {
    const { router, waiting } = this.#services;
    const { error, retry_after_s } = await router.refusal(this.#route);
    if (this.#decided) return;
    const refusal = waiting.room.refusal(why, this.#of.key.id, [error.message, ...error.because]);
    this.#fail(refusal, ['retry-after', String(retry_after_s ?? retryAfterFailure_s)]);
  }

  /**
   * Has a smaller neighbour give way to it on one of the devices that refused it, where that one's requests are taken
   * elsewhere.
   */
  async #makeRoom(
    replica: Replica<SessionLink>,
    error: ReplicaError,
    refused: RefusedRequest,
  ): Promise<void> {
    const { defragmenter } = this.#services;
    const freed = await defragmenter.makeRoom(replica.served.name, refused, this.#search.tried);
    if (this.#decided) return;
    if (freed !== undefined) this.#search.mayBeAsked([freed]);
    const next = this.#search.next();
    if (next) this.#retry(replica, error.status, next);
    else this.#passOn(replica, error);
  }

  #retry({ session_id, served }: Replica<SessionLink>, status: number, next: Replica<SessionLink>): void {
    // That a batch was full is no failure, nor that the prompt is computed and the answer is to be decoded elsewhere.
    const goesOn = this.#begunFor(next) !== undefined || this.#search.kvAt(next) !== undefined;
    if (!goesOn && !this.#search.wasFull(session_id)) {
      this.#services.log.warn(
        { request_id: this.#of.request_id, session: session_id, status },
        'replica answered with an error; asked another',
      );
      this.#services.metrics.retried(served.name);
    }
    this.#begin(next);
  }

  /** Replicas serve, and who came before it waits for their places. */
  async #waitBehindOthers(): Promise<void> {
    if (this.#of.endpoint.computes) this.#demand(this.#services.router.modelOf(this.#route.model));
    const next = await this.#search.expected({ behind_others: true });
    if (this.#decided) return;
    if (next) this.#begin(next);
    else if (this.#search.turnedAway) await this.#turnAway(this.#search.turnedAway);
    else await this.#noReplica();
  }

  /** Nobody could be asked at all. */
  async #noReplica(): Promise<void> {
    const { router } = this.#services;
    let refusal = await router.refusal(this.#route);
    if (this.#decided) return;
    const absent = refusal.error.code === 'E_MODEL_NO_REPLICA';
    const { computes } = this.#of.endpoint;
    const wanted = computes && (absent || refusal.error.code === 'E_REPLICA_BUSY');
    const model = router.modelOf(this.#route.model);
    if (wanted) this.#demand(model);
    if (absent) {
      const { comes_soon } = refusal;
      const wakes_in_s = computes ? refusal.wakes_in_s : undefined;
      const lost_ms = comes_soon ? performance.now() : router.lostAt_ms(this.#route.model);
      const next = await this.#search.expected({ lost_ms, wakes_in_s });
      if (this.#decided) return;
      if (next) {
        this.#begin(next);
        return;
      }
      if (this.#search.turnedAway) {
        if (wanted) this.#countRefused(model);
        await this.#turnAway(this.#search.turnedAway);
        return;
      }
      // What holds it up may be another thing by now, and comes at another time.
      refusal = await router.refusal(this.#route);
      if (this.#decided) return;
    }
    if (wanted) this.#countRefused(model);
    const { error, retry_after_s } = refusal;
    this.#fail(error, retry_after_s === undefined ? [] : ['retry-after', String(retry_after_s)]);
  }

  #countRefused(model: string): void {
    const { workload } = this.#services;
    workload.arrived(model);
    workload.refused(model);
  }

  /** Counts once a request, from when it is known to be for a model that is deployed until it is decided. */
  #demand(model: string): void {
    if (this.#demanded !== undefined) return;
    this.#demanded = model;
    this.#services.demand.began(model);
  }

  // --- the rest of a stream ----------------------------------------------------------------------------------

  #streamBroke(attempt: Attempt, { failure, reason, moved }: Result<'broken_stream'>): void {
    const { replica } = attempt;
    const { events_sent } = this.#stream!;
    const told = { request_id: this.#of.request_id, session: replica.session_id, events_sent };
    if (moved)
      this.#services.log.info({ ...told, to: moved.session }, 'the replica has brought its KV elsewhere');
    else
      this.#services.log.warn(
        { ...told, reason: reason.message },
        'replica failed in the middle of its stream',
      );
    const goOn = this.#goOnFrom(attempt, reason);
    const found = (continuation: Continuation | string): void => {
      if (typeof continuation !== 'string' && !this.#decided)
        this.#services.metrics.continued(replica.served.name);
      goOn(continuation);
    };
    this.#continuations!.next(replica, failure, events_sent, found, moved);
  }

  /** What follows when it is known who goes on with the stream; until then the client is told that it lives. */
  #goOnFrom(attempt: Attempt, reason: Error): (found: Continuation | string) => void {
    const { waiting, log } = this.#services;
    this.#comments = setInterval(() => this.#stream!.keepAlive(), waiting.comment_ms);
    return (found) => {
      clearInterval(this.#comments);
      if (this.#decided) return;
      if (typeof found === 'string') {
        this.#failStream(attempt, reason, found);
        return;
      }
      const { session_id } = found.replica;
      log.info({ request_id: this.#of.request_id, session: session_id }, 'a replica goes on with the stream');
      this.#begin(found.replica, found.request);
    };
  }

  #failStream(attempt: Attempt, reason: Error, why: string): void {
    const stream = this.#stream!;
    // What came after the last whole event is worth nothing; where its finish reason is out, nothing is missing.
    stream.resume();
    if (!stream.ended && stream.upstreamEnded() === 'complete') {
      this.#streamed(attempt, stream);
      return;
    }
    const error = midStreamError(attempt.replica, this.#of.parsed.model, [
      reason.message,
      `no other replica could go on with it: ${why}`,
    ]);
    const usage = this.#progress();
    this.#decide({ status: error.http_status, error_code: error.code, usage }, () =>
      stream.fail(errorEvent(error)),
    );
  }

  // --- the end -----------------------------------------------------------------------------------------------

  /** Nobody else takes the request: this replica's error is the answer after all. */
  #passOn(replica: Replica<SessionLink>, error: ReplicaError): void {
    const { status, error_code, send } = passedError(error, replica);
    this.#decide({ status, error_code }, () => send(this.#client));
  }

  #noneAnswered(reason: Error): void {
    const error = new HpcserveError('E_REPLICA_FAILED', {
      what: `${this.#search.asked} replica(s) of ${printableName(this.#of.parsed.model)} were tried and none answered`,
      because: reason.message,
    });
    this.#fail(error, ['retry-after', String(retryAfterFailure_s)]);
  }

  /** Ends with an error of the gateway's own. */
  #fail(error: HpcserveError, extra: readonly string[]): void {
    this.#decide({ status: error.http_status, error_code: error.code }, () =>
      this.#client.endWith(error, extra),
    );
  }

  #clientClosed(): void {
    if (this.#decided) return;
    this.#attempt?.cancel();
    const usage = this.#attempt && this.#usedSoFar(this.#attempt.replica);
    this.#decide({ status: clientGone, error_code: 'client_closed', usage }, () => {});
  }

  /** The only way out: puts an outcome into the ledger, and then sends it. */
  #decide(outcome: Outcome, send: () => void): void {
    if (this.#decided) return;
    this.#decided = true;
    this.#charge.end();
    this.#search.end();
    clearInterval(this.#comments);
    this.#client.endStall();
    const record = this.#record(outcome);
    if (this.#attempt) this.#charge.enter(record);
    this.#continuations?.release();
    this.#trace?.end(record);
    this.#prompt.end(outcome);
    this.#of.release();
    const { reservation, endpoint } = this.#of;
    const closed: ClosedRequest = {
      record,
      reservation,
      charge: this.#charge,
      computes: endpoint.computes,
      demanded: this.#demanded,
      service: this.#attempt?.service(record.ttft_ms),
    };
    this.#services.accounts.close(closed, (error) => {
      const { response } = this.#of;
      response.off('close', this.#onClose);
      if (response.destroyed) return;
      // What was computed cannot be recorded: it is not given out as if it had been.
      if (error) this.#client.endWith(error, ['retry-after', '10']);
      else send();
      this.#client.watchRest();
    });
  }

  /** Of an answer that its client does not wait for: it costs what it has cost, as far as that is known. */
  #usedSoFar(replica: Replica<SessionLink>): Outcome['usage'] {
    return { prompt_tokens: this.#used.promptOf(replica), ...this.#progress() };
  }

  /** What the stream has cost so far, where there is one. */
  #progress(): Outcome['usage'] {
    const { journal } = this.#continuations ?? {};
    return this.#stream && this.#used.ofStream(this.#attempt!.replica, this.#stream, journal);
  }

  #record(outcome: Outcome): RequestRecord {
    const { request_id, time_ms, began_ms, key, endpoint, parsed, counts_only } = this.#of;
    const { user = key.name, project, usage } = key.settings;
    const replica = this.#attempt?.replica;
    const isCounted = usage === 'counts' || counts_only;
    const { tracer } = this.#services;
    return {
      request_id,
      time_ms,
      key_id: key.id,
      limits_key_id: key.parent_id,
      user,
      project,
      endpoint: endpoint.path,
      model: replica ? parsed.model : printableName(parsed.model),
      served_model: replica?.served.name,
      precision: replica?.served.precision,
      session: replica?.session.facts,
      status: outcome.status,
      stream: parsed.stream,
      attempts: this.#search.asked,
      prompt_tokens: outcome.usage?.prompt_tokens,
      completion_tokens: outcome.usage?.completion_tokens,
      cached_tokens: outcome.usage?.cached_tokens,
      reasoning_tokens: outcome.usage?.reasoning_tokens,
      ttft_ms: this.#client.ttft_ms,
      duration_ms: performance.now() - began_ms,
      finish_reason: outcome.finish_reason,
      // What devices did is entered by whoever counts it.
      device_s: undefined,
      energy_j: undefined,
      energy_estimated: false,
      error_code: outcome.error_code,
      counts_only: isCounted,
      trace: replica && !isCounted && endpoint.computes ? tracer?.traceOf(parsed) : undefined,
    };
  }
}
