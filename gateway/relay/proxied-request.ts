import { setTimeout as delay } from 'node:timers/promises';
import type { Ledger, RequestRecord } from '../../ledger/index.ts';
import { scopedKeys } from '../../solver/routing/prompt-keys.ts';
import type { RefusedRequest } from '../../spec/device-view.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { printableName } from '../../spec/printable-name.ts';
import { errorEvent, sendError } from '../http-error.ts';
import { cacheScopeOf } from '../keys/cache-scope.ts';
import type { KeyLimits } from '../keys/key-limits.ts';
import type { GatewayLog } from '../log.ts';
import type { GatewayMetrics } from '../metrics.ts';
import type { Replica } from '../routing/replica.ts';
import type { RouteRequest, Router } from '../routing/router.ts';
import type { ServiceTimes } from '../routing/service-times.ts';
import type { SessionLink } from '../session-link.ts';
import type { Defragmenter } from '../sharing/defragmenter.ts';
import type { DemandMeter } from '../workload/demand-meter.ts';
import type { WorkloadMeter } from '../workload/workload-meter.ts';
import { Attempt, type AttemptOwner, midStreamError } from './attempt.ts';
import { Continuations } from './continuations.ts';
import type { AcceptedRequest, Outcome } from './accepted-request.ts';
import type { JournalMemory } from './journal/journal-memory.ts';
import { type AttemptFailure, isMeshRefusal, type ReplicaRefusal } from './replica-refusal.ts';
import { asksContinuousUsage } from './request-body.ts';
import { StreamRelay, type StreamRelayOptions } from './stream-relay.ts';
import type { TokenUsage } from './usage.ts';

/** What the requests of one gateway share. */
export interface ProxyServices {
  router: Router;
  ledger: Ledger;
  metrics: GatewayMetrics;
  log: GatewayLog;
  journals: JournalMemory;
  serviceTimes: ServiceTimes;
  workload: WorkloadMeter;
  keyLimits: KeyLimits;
  demand: DemandMeter;
  defragmenter: Defragmenter;
  /** How long a request may wait for a model that sleeps. */
  wake_wait_s: number;
  /** How long a broken stream waits for a replica that can go on with it. */
  continue_ms: number;
}

/** Further replicas tried after the first that failed. Lower: failures show sooner; higher: a poisonous request does more harm. */
const retries = 2;
/**
 * Replicas that may end under one request before they have a word of its answer. One may have been lost by chance;
 * of two the request is the likelier reason. Lower: a poisonous request does less harm; higher: two losses at once are outlived.
 */
const ended_max = 2;
/** Replicas asked at most, those included that are full: being asked in vain costs each a little. */
const mostAsked = 16;
/** After so many that had no place it waits where the next one has none. Lower: fewer questions; higher: shorter waits. */
const full_max = 4;
const tooManyRequests = 429;
/** A client that takes no bytes for so long is cut off; its replica could compute for others. */
const stall_ms = 60_000;
/** Status of a client that went away, by nginx's custom; only logs and ledger see it. */
const clientGone = 499;
/** Between two looks whether a model that was started answers. */
const wake_look_ms = 100;
/** A replica that did not accept this gateway may know its new session after so long; one that was full may have room. */
const again_ms = 500;
/** After replicas failed: those that died are known as dead by then. */
const retryAfterFailure_s = 2;

/** One request of a client until its answer is in the ledger and sent: over one replica, or several in turn. */
export class ProxiedRequest implements AttemptOwner {
  readonly #of: AcceptedRequest;
  readonly #services: ProxyServices;
  readonly #route: RouteRequest;
  /** Sessions that are not asked again. */
  #tried: string[] = [];
  #attempts = 0;
  readonly #onClose = (): void => this.#clientClosed();
  #attempt: Attempt | undefined;
  #stream: StreamRelay | undefined;
  #continuations: Continuations | undefined;
  #ttft_ms: number | undefined;
  #stall: NodeJS.Timeout | undefined;
  /** The model it counts for as demand. */
  #demanded: string | undefined;
  /** Native replicas whose batches were full when they were asked, by session. */
  readonly #full: string[] = [];
  #waits = false;
  /** Replicas that failed; those that were only full do not count. */
  #failures = 0;
  /** Of those that ended under it. */
  #ended = 0;
  /** Until when it waits for a replica in place of the last one, which was lost; on the monotonic clock. */
  #waits_until_ms: number | undefined;
  /** A replica broke it off to free its device: nobody is too full for it then, though some may have to be waited for. */
  #sentAway = false;
  /** Others were asked to give way to it: once is enough. */
  #askedForRoom = false;
  /** An outcome is decided: being recorded, or sent. */
  #decided = false;

  constructor(of: AcceptedRequest, services: ProxyServices) {
    this.#of = of;
    this.#services = services;
    const { parsed, filter, key } = of;
    this.#route = {
      model: parsed.model,
      filter,
      prompt: scopedKeys(parsed.prompt, cacheScopeOf(key)),
      names: key.settings.models,
    };
  }

  get of(): AcceptedRequest {
    return this.#of;
  }

  get stream(): StreamRelay | undefined {
    return this.#stream;
  }

  get continuable(): boolean {
    return this.#continuations?.possible ?? false;
  }

  get may_wait(): boolean {
    return this.#waits || this.#full.length >= full_max;
  }

  get progress(): TokenUsage | undefined {
    return this.#continuations?.journal?.progress;
  }

  start(): void {
    this.#of.response.on('close', this.#onClose);
    if (!this.#next()) void this.#noReplica();
  }

  /** Sends the request to the best replica not yet tried; false where there is none or none may be tried. */
  #next(): boolean {
    const replica = this.#choose();
    if (!replica) return false;
    if (this.#attempts === 0) {
      this.#services.workload.arrived(replica.served.name);
      this.#demand(replica.served.name);
    }
    this.#begin(new Attempt(this, replica));
    return true;
  }

  #choose(): Replica<SessionLink> | undefined {
    if (this.#failures > retries || this.#ended >= ended_max || this.#attempts >= mostAsked) return undefined;
    return this.#services.router.choose(this.#route, this.#tried);
  }

  /** Where all batches were full: one of them, in whose queue it waits. */
  #chooseToWait(): Replica<SessionLink> | undefined {
    if (this.#waits || this.#full.length === 0) return undefined;
    this.#waits = true;
    this.#mayBeAsked(this.#full);
    return this.#choose();
  }

  #begin(attempt: Attempt): void {
    this.#attempts++;
    this.#tried.push(attempt.replica.session_id);
    this.#attempt = attempt;
    attempt.dispatch();
  }

  async #noReplica(): Promise<void> {
    const { router, workload } = this.#services;
    const { error, retry_after_s, wakes_in_s, comes_soon } = await router.refusal(this.#route);
    if (this.#decided) return;
    if (error.code === 'E_MODEL_NO_REPLICA') {
      const lost_ms = comes_soon ? performance.now() : router.lostAt_ms(this.#route.model);
      if (lost_ms !== undefined && (await this.#replaced(lost_ms)) !== 'none') return;
    }
    if (error.code === 'E_REPLICA_BUSY' || error.code === 'E_MODEL_NO_REPLICA') {
      const model = router.modelOf(this.#route.model);
      this.#demand(model);
      if (wakes_in_s !== undefined && (await this.#awake(wakes_in_s))) return;
      if (this.#decided) return;
      workload.arrived(model);
      workload.refused(model);
    }
    this.fail(error, retry_after_s === undefined ? [] : ['retry-after', String(retry_after_s)]);
  }

  /** Counts once a request, from when it is known to be for a model that is deployed until it is decided. */
  #demand(model: string): void {
    if (this.#demanded !== undefined) return;
    this.#demanded = model;
    this.#services.demand.began(model);
  }

  /**
   * Waits for a replica in place of one that was lost and has computed nothing of the request: workers are started
   * again, jobs come back. Streams that broke wait as long.
   * @param since_ms on the monotonic clock
   * @param again sessions that may be asked once more after a while
   * @returns 'found' where a replica has the request now, 'decided' where it is over, 'none' where nobody came
   */
  async #replaced(since_ms: number, again: readonly string[] = []): Promise<'found' | 'decided' | 'none'> {
    this.#waits_until_ms ??= since_ms + this.#services.continue_ms;
    const began_ms = performance.now();
    while (!this.#decided) {
      if (performance.now() - began_ms > again_ms) this.#mayBeAsked(again);
      if (this.#next()) return 'found';
      if (performance.now() > this.#waits_until_ms) return 'none';
      await delay(wake_look_ms);
    }
    return 'decided';
  }

  #mayBeAsked(sessions: readonly string[]): void {
    this.#tried = this.#tried.filter((session_id) => !sessions.includes(session_id));
  }

  /**
   * Waits for a model that is being started, where that is expected within the time that requests may wait.
   * @returns whether a replica has the request now
   */
  async #awake(wakes_in_s: number): Promise<boolean> {
    const { router, wake_wait_s } = this.#services;
    if (wakes_in_s > wake_wait_s) return false;
    const until_ms = performance.now() + 1000 * wake_wait_s;
    while (!this.#decided && performance.now() < until_ms) {
      if (router.candidates(this.#route).length > 0 && this.#next()) return true;
      await delay(wake_look_ms);
    }
    return false;
  }

  openStream(
    { replica }: Attempt,
    options: Pick<StreamRelayOptions, 'onFirst' | 'onReplicaFailed'>,
  ): StreamRelay {
    const { response, parsed, endpoint } = this.#of;
    const { journals, router, continue_ms } = this.#services;
    this.#continuations?.release();
    this.#continuations = new Continuations(
      { replica, parsed, route: this.#route, path: endpoint.path, dialect: endpoint.dialect },
      { journals, router, wait_ms: continue_ms },
    );
    this.#stream = new StreamRelay(response, {
      ...options,
      passUsage: parsed.wantsUsage,
      continuousUsage: asksContinuousUsage(parsed, replica.session.facts.engine),
      ending: endpoint.dialect === 'responses' ? 'responses' : 'done',
      onEnding: () => this.#attempt!.complete(this.#stream!),
      journal: this.#continuations.journal,
    });
    return this.#stream;
  }

  attemptFailed(attempt: Attempt, error: Error, failure: AttemptFailure): void {
    if (this.#decided) return;
    this.#services.log.warn(
      { request_id: this.#of.request_id, session: attempt.replica.session_id, reason: error.message },
      'replica failed before its answer',
    );
    this.#services.metrics.retried(attempt.replica.served.name);
    // Who could not be reached was not harmed by the request.
    const unreached = failure === 'unreached';
    if (this.#stopsReplicas(failure, error.message)) return;
    if (!unreached) this.#failures++;
    if (this.#next()) return;
    void (unreached ? this.#replaced(performance.now()) : Promise.resolve('none')).then((outcome) => {
      if (outcome === 'none') this.#noneAnswered(error);
    });
  }

  /** Counts replicas that ended under the request. @returns whether it goes to no other, and is over */
  #stopsReplicas(failure: AttemptFailure, because: string): boolean {
    if (failure === 'ended') this.#ended++;
    if (failure !== 'stopped' && this.#ended < ended_max) return false;
    const { model } = this.#of.parsed;
    const what =
      failure === 'stopped'
        ? `a replica of ${printableName(model)} stopped while it worked on this request alone; it is given to no other`
        : `${this.#ended} replicas of ${printableName(model)} ended while they worked on this request; it is given to no other`;
    this.fail(new HpcserveError('E_REQUEST_STOPS_REPLICA', { what, because }), ['x-should-retry', 'false']);
    return true;
  }

  #noneAnswered(error: Error): void {
    this.fail(
      new HpcserveError('E_REPLICA_FAILED', {
        what: `${this.#attempts} replica(s) of ${printableName(this.#of.parsed.model)} were tried and none answered`,
        because: error.message,
      }),
      ['retry-after', String(retryAfterFailure_s)],
    );
  }

  retryInstead(attempt: Attempt, refusal: ReplicaRefusal, refused: RefusedRequest | undefined): boolean {
    if (this.#decided) return false;
    if (this.#stopsReplicas(refusal, 'its node agent says that its engine did not answer any more'))
      return true;
    if (refusal === 'failed') this.#failures++;
    if (refusal === 'moved') {
      this.#sentAway = true;
      this.#tried = [attempt.replica.session_id];
    }
    if (attempt.wasAtOnce && attempt.status === 429) this.#full.push(attempt.replica.session_id);
    const next = this.#choose() ?? this.#chooseToWait();
    // Before an instance more is made for it, or nobody takes it (LLM-Mesh §4).
    if (refused && !this.#askedForRoom && (!next || next.weights?.resting === true)) {
      this.#askedForRoom = true;
      void this.#makeRoom(attempt, refused);
      return true;
    }
    if (next) this.#retry(attempt, next);
    else if (refusal === 'uncomputed' || this.#sentAway) void this.#askedAgain(attempt);
    else return false;
    return true;
  }

  /** The last replica took nothing of the request: it was ending, does not know this gateway any more, or has no room yet. */
  async #askedAgain(attempt: Attempt): Promise<void> {
    const again = this.#sentAway
      ? this.#tried
      : isMeshRefusal(attempt.status)
        ? [attempt.replica.session_id]
        : [];
    if ((await this.#replaced(performance.now(), again)) === 'none') attempt.answerAsItCame();
  }

  /** Has a smaller neighbour give way to it on one of the devices that refused it, where that one's requests are taken elsewhere. */
  async #makeRoom(attempt: Attempt, refused: RefusedRequest): Promise<void> {
    const { defragmenter } = this.#services;
    const freed = await defragmenter.makeRoom(attempt.replica.served.name, refused, this.#tried);
    if (this.#decided) return;
    if (freed !== undefined) this.#mayBeAsked([freed]);
    const next = this.#choose();
    if (next) this.#retry(attempt, next);
    else attempt.answerAsItCame();
  }

  #retry(attempt: Attempt, next: Replica<SessionLink>): void {
    const { session_id, served } = attempt.replica;
    // That a batch was full is no failure.
    if (!this.#full.includes(session_id)) {
      this.#services.log.warn(
        { request_id: this.#of.request_id, session: session_id, status: attempt.status },
        'replica answered with an error; asked another',
      );
      this.#services.metrics.retried(served.name);
    }
    this.#begin(new Attempt(this, next));
  }

  streamBroke(attempt: Attempt, reason: Error, failure: AttemptFailure): void {
    if (this.#decided) return;
    const { replica } = attempt;
    const events_sent = this.#stream!.events_sent;
    this.#services.log.warn(
      { request_id: this.#of.request_id, session: replica.session_id, events_sent, reason: reason.message },
      'replica failed in the middle of its stream',
    );
    this.#continuations!.next(replica, failure, events_sent, (found) => {
      if (this.#decided) return;
      if (typeof found === 'string') {
        this.failStream(attempt, reason, found);
        return;
      }
      this.#services.metrics.continued(replica.served.name);
      this.#services.log.info(
        { request_id: this.#of.request_id, session: found.replica.session_id },
        'another replica goes on with the stream',
      );
      this.#begin(new Attempt(this, found.replica, found.request));
    });
  }

  failStream({ replica }: Attempt, reason: Error, why: string): void {
    const stream = this.#stream!;
    // What came after the last whole event is worth nothing; where its finish reason is out, nothing is missing.
    stream.resume();
    if (!stream.ended && stream.upstreamEnded() === 'complete') return;
    const error = midStreamError(replica, this.#of.parsed.model, [
      reason.message,
      `no other replica could go on with it: ${why}`,
    ]);
    const usage = this.#progress();
    this.decide({ status: error.http_status, error_code: error.code, usage }, () =>
      stream.fail(errorEvent(error)),
    );
  }

  firstByte(): void {
    this.#ttft_ms ??= performance.now() - this.#of.began_ms;
  }

  /** Puts an outcome into the ledger, and then sends it. */
  decide(outcome: Outcome, send: () => void): void {
    if (this.#decided) return;
    this.#decided = true;
    this.#clearStall();
    const { ledger, metrics, serviceTimes, workload, keyLimits } = this.#services;
    const record = this.#record(outcome);
    this.#continuations?.release();
    metrics.answered(record);
    if (record.status < 300 && record.served_model !== undefined) {
      serviceTimes.answered(record.served_model, record);
      workload.answered(record.served_model, record);
    } else if (record.status === tooManyRequests && record.served_model !== undefined)
      workload.refused(record.served_model);
    if (this.#demanded !== undefined) this.#services.demand.ended(this.#demanded);
    keyLimits.settle(this.#of.reservation, record);
    this.#of.release();
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
    this.#clearStall();
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
    this.#attempt?.abort();
    const usage = this.#attempt && this.#usedSoFar();
    this.decide({ status: clientGone, error_code: 'client_closed', usage }, () => {});
  }

  /** Of an answer that its client does not wait for: it costs what it has cost, as far as that is known. */
  #usedSoFar(): TokenUsage {
    const { prompt_tokens_max } = this.#of;
    const context = this.#attempt!.replica.served.context_tokens;
    return { prompt_tokens: Math.min(prompt_tokens_max, context), ...this.#progress() };
  }

  /** What is known of an answer that was broken off: a chunk of a stream carries a token, or a few. */
  #progress(): TokenUsage | undefined {
    if (!this.#stream) return undefined;
    return this.#stream.usage ?? this.progress ?? { completion_tokens: this.#stream.events_sent };
  }

  #record(outcome: Outcome): RequestRecord {
    const { request_id, time_ms, began_ms, key, endpoint, parsed } = this.#of;
    const record: RequestRecord = {
      request_id,
      time_ms,
      key_id: key.id,
      endpoint: endpoint.path,
      model: this.#attempt ? parsed.model : printableName(parsed.model),
      served_model: undefined,
      session: undefined,
      status: outcome.status,
      stream: parsed.stream,
      attempts: this.#attempts,
      prompt_tokens: outcome.usage?.prompt_tokens,
      completion_tokens: outcome.usage?.completion_tokens,
      cached_tokens: outcome.usage?.cached_tokens,
      reasoning_tokens: outcome.usage?.reasoning_tokens,
      ttft_ms: this.#ttft_ms,
      duration_ms: performance.now() - began_ms,
      finish_reason: outcome.finish_reason,
      error_code: outcome.error_code,
    };
    const replica: Replica<SessionLink> | undefined = this.#attempt?.replica;
    if (replica) {
      record.served_model = replica.served.name;
      record.session = replica.session.facts;
    }
    return record;
  }
}
