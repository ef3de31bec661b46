import type { MovedAnswer } from '../../spec/wire.ts';
import type { Replica } from '../routing/replica.ts';
import type { RouteRequest, Router } from '../routing/router.ts';
import type { SessionLink } from '../session-link.ts';
import { continuingReplica } from './continuing-replica.ts';
import type { ContinuedRequest, StreamJournal } from './journal/journal.ts';
import type { JournalMemory } from './journal/journal-memory.ts';
import { type CompletionsPath, continuesText } from './journal/text-continuation.ts';
import { TokenJournal } from './journal/token-journal.ts';
import { WrappedJournal } from './journal/wrapped-journal.ts';
import type { AttemptFailure } from './replica-refusal.ts';
import { answersOf, type ParsedRequest, type StreamDialect } from './request-body.ts';

/**
 * How often one stream may change its replica. Lower: a poisonous stream does less harm; higher: long answers outlive
 * more nodes.
 */
const continuations_max = 8;
/**
 * Replicas that may end in turn before one adds a word. Lower: a poisonous stream does less harm; higher: more losses
 * at once are outlived.
 */
const ended_max = 2;
/** A replica is looked for so often while there is none. */
const look_ms = 50;
/** Whether a job is to bring one is asked again after this time. Lower: the shared filesystem is read more often. */
const ask_jobs_ms = 2000;
/**
 * Only the connection may have broken and not the replica, or it may have been full: after this time since the last
 * failure all may be asked again. Whether a process lives is known by then, since its watch stream would have ended.
 */
const again_ms = 1000;

interface Stream {
  /** Who began it. */
  replica: Replica<SessionLink>;
  parsed: ParsedRequest;
  route: RouteRequest;
  path: string;
  dialect: StreamDialect;
  /** Where the prompt's tokens are of use: see `WrappedJournal`. */
  onTokens: ((token_ids: Int32Array) => void) | undefined;
}

interface Services {
  journals: JournalMemory;
  router: Router;
  /** How long to wait for a replica that can go on, and for one that loads or whose job is to bring it. */
  wait_ms: number;
  load_wait_ms: number;
}

/** Who goes on, and with what. */
export interface Continuation {
  replica: Replica<SessionLink>;
  request: ContinuedRequest;
}

/** Finds the replicas that go on with one stream, each time that one breaks. */
export class Continuations {
  /** Absent where the engine that began the stream cannot go on with what another began. */
  readonly journal: StreamJournal | undefined;
  readonly #stream: Stream;
  readonly #services: Services;
  #timer: NodeJS.Timeout | undefined;
  #used = 0;
  /** Replicas that ended since then before they added a word. */
  #ended = 0;
  #events_sent = -1;
  /** Replicas that failed since the stream last moved on. */
  #failed: string[] = [];
  #broke_ms = 0;
  #failed_ms = 0;
  /** When it is asked again whether a job is to bring a replica; on the monotonic clock. */
  #ask_jobs_at_ms = 0;
  #released = false;
  /** Where the replica that had it last has brought keys and values of it. */
  #moved: MovedAnswer | undefined;

  constructor(stream: Stream, services: Services) {
    this.#stream = stream;
    this.#services = services;
    this.journal = this.#newJournal();
  }

  /** Whether to try at all; that there is a replica is another matter. */
  get possible(): boolean {
    return this.journal !== undefined && this.#used < continuations_max;
  }

  /**
   * Calls back with who goes on, as soon as there is somebody, or with why nobody does. Not called after `release`.
   *
   * @param failed where the stream broke
   * @param failure what became of that replica
   * @param events_sent to the client so far: whether it has moved on since it last broke
   * @param moved where the replica has brought keys and values of it
   */
  next(
    failed: Replica<SessionLink>,
    failure: AttemptFailure,
    events_sent: number,
    found: (continuation: Continuation | string) => void,
    moved?: MovedAnswer,
  ): void {
    this.#moved = moved;
    this.#failed_ms = performance.now();
    if (events_sent !== this.#events_sent) {
      this.#events_sent = events_sent;
      this.#failed = [];
      this.#broke_ms = this.#failed_ms;
      this.#ended = 0;
    } else if (failure === 'ended') this.#ended++;
    this.#failed.push(failed.session_id);
    if (!this.journal) {
      found(`the engine ${this.#stream.replica.session.facts.engine ?? ''} cannot`);
      return;
    }
    if (failure === 'stopped' || this.#ended >= ended_max) {
      found('replicas end when they are asked to, and it is given to no more of them');
      return;
    }
    if (this.#used >= continuations_max) {
      found(`${this.#used} were asked to already`);
      return;
    }
    this.#used++;
    this.#look(found);
  }

  /** The same for the rest of a stream of which a part was asked for, and has come: nobody failed. */
  rest(found: (continuation: Continuation | string) => void): void {
    this.#failed = [];
    this.#broke_ms = performance.now();
    this.#look(found);
  }

  /** Gives the journal's memory back, and stops looking. */
  release(): void {
    this.#released = true;
    clearTimeout(this.#timer);
    this.journal?.release();
  }

  #look(found: (continuation: Continuation | string) => void): void {
    const now_ms = performance.now();
    const waited_ms = now_ms - this.#broke_ms;
    const { wait_ms } = this.#services;
    const replica =
      this.#choose(this.#failed) ?? (now_ms - this.#failed_ms > again_ms ? this.#choose([]) : undefined);
    if (replica) void this.#prepare(replica, found);
    else if (waited_ms < wait_ms || this.#waitsForLoad(waited_ms) || now_ms < this.#ask_jobs_at_ms)
      this.#timer = setTimeout(() => this.#look(found), look_ms);
    else void this.#askJobs(waited_ms, found);
  }

  /** No session of one is known. A job may start, or run and be about to tell of it. */
  async #askJobs(waited_ms: number, found: (continuation: Continuation | string) => void): Promise<void> {
    const { router, load_wait_ms } = this.#services;
    const { name } = this.#stream.replica.served;
    const comes_in_s = await router.jobComesIn_s(name, waited_ms / 1000);
    if (this.#released) return;
    if (comes_in_s === undefined || waited_ms + 1000 * comes_in_s >= load_wait_ms) {
      found(`none was there within ${Math.round(waited_ms / 1000)} s`);
      return;
    }
    this.#ask_jobs_at_ms = performance.now() + ask_jobs_ms;
    this.#look(found);
  }

  async #prepare(
    replica: Replica<SessionLink>,
    found: (continuation: Continuation | string) => void,
  ): Promise<void> {
    let request: ContinuedRequest | string;
    try {
      const kv = this.#moved?.session === replica.session_id ? this.#moved.kv : undefined;
      request = await this.journal!.continued(this.#stream.parsed, continuingReplica(replica), kv);
    } catch (error) {
      // Engines say what they like: what cannot be made sense of ends this stream, and not the gateway.
      request = `what it was sent cannot be read: ${(error as Error).message}`;
    }
    if (this.#released) return;
    found(typeof request === 'string' ? request : { replica, request });
  }

  #choose(failed: readonly string[]): Replica<SessionLink> | undefined {
    const { replica, route } = this.#stream;
    return this.#services.router.chooseToContinue(
      route,
      replica.served.name,
      this.#accepts,
      failed,
      this.#moved?.session,
    );
  }

  /**
   * One that can go on is loading its weights; what that takes is nothing that this stream could hurry. Of which
   * precision they are, a native replica says once it has opened its file: where it is another, the wait ends then.
   */
  #waitsForLoad(waited_ms: number): boolean {
    if (waited_ms >= this.#services.load_wait_ms) return false;
    const { replica, route } = this.#stream;
    const { name, precision } = replica.served;
    return this.#services.router
      .coming(route)
      .some(
        ({ served, session }) =>
          served.name === name && this.journal!.accepts(session.facts.engine, precision),
      );
  }

  readonly #accepts = ({ session, served }: Replica<SessionLink>): boolean =>
    this.journal!.accepts(session.facts.engine, served.precision);

  #newJournal(): StreamJournal | undefined {
    const { replica, parsed, path, dialect } = this.#stream;
    const { engine } = replica.session.facts;
    if (dialect !== 'completions') return undefined;
    const { journals } = this.#services;
    const { precision } = replica.served;
    if (engine === 'native') return new TokenJournal(journals, precision, answersOf(parsed.scan));
    const of = path as CompletionsPath;
    if (!continuesText(engine, of)) return undefined;
    return new WrappedJournal(journals, of, parsed, { engine: engine!, precision }, this.#stream.onTokens);
  }
}
