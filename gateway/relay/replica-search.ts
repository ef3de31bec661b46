import { setTimeout as delay } from 'node:timers/promises';
import type { Replica } from '../routing/replica.ts';
import type { RouteRequest, Router } from '../routing/router.ts';
import type { SessionLink } from '../session-link.ts';
import type { Waiting } from './proxy-services.ts';
import type { AttemptFailure, ReplicaRefusal } from './replica-refusal.ts';

/**
 * Further replicas tried after the first that failed. Lower: failures show sooner; higher: a poisonous request does
 * more harm.
 */
const retries_max = 2;
/**
 * Replicas that may end under one request before they have a word of its answer. One may have been lost by chance;
 * of two the request is the likelier reason. Lower: a poisonous request does less harm; higher: two losses at once are
 * outlived.
 */
const ended_max = 2;
/** Replicas asked at most, those included that are full: being asked in vain costs each a little. */
const asked_max = 16;
/**
 * After so many that had no place it waits where the next one has none. Lower: fewer questions; higher: shorter waits.
 */
const full_max = 4;
/** Between two looks for a replica that is expected. */
const look_ms = 100;
/**
 * A replica that did not accept this gateway may know its new session after so long; one that was full may have room.
 */
const again_ms = 500;

/**
 * Which replica one request may be sent to next. It counts who was asked and what came of it, and ends the search where
 * the request may be what harms replicas:
 *
 * | of those that were asked     |                                                                  |
 * |------------------------------|------------------------------------------------------------------|
 * | could not be reached         | cost nothing                                                     |
 * | were full                    | `full_max`, then it waits where the next one is full             |
 * | failed                       | `retries_max` after the first                                    |
 * | ended under it               | `ended_max`, then it is given to no other                        |
 * | sent it away (moved)         | all the others may be asked again, those included that were full |
 * | all together                 | `asked_max`                                                      |
 */
export class ReplicaSearch {
  readonly #router: Router;
  readonly #route: RouteRequest;
  readonly #waiting: Waiting;
  /** Sessions that are not asked again. */
  #tried: string[] = [];
  #asked = 0;
  /** Native replicas whose batches were full when they were asked, by session. */
  readonly #full: string[] = [];
  #waits = false;
  #failures = 0;
  #ended = 0;
  #sentAway = false;
  /** Since when it waits for a replica in place of the last one, which was lost; on the monotonic clock. */
  #waits_since_ms: number | undefined;
  #over = false;

  constructor(router: Router, route: RouteRequest, waiting: Waiting) {
    this.#router = router;
    this.#route = route;
    this.#waiting = waiting;
  }

  /** Replicas that were asked. */
  get asked(): number {
    return this.#asked;
  }

  get tried(): readonly string[] {
    return this.#tried;
  }

  /** Of those that were asked, the ones that ended under it. */
  get ended(): number {
    return this.#ended;
  }

  /** It waits where a batch is full; else another replica is looked for first. */
  get may_wait(): boolean {
    return this.#waits || this.#full.length >= full_max;
  }

  /**
   * A replica broke it off to free its device: nobody is too full for it then, though some may have to be waited for.
   */
  get sentAway(): boolean {
    return this.#sentAway;
  }

  /** Whether so many replicas ended under it that it goes to no other. */
  get stopsReplicas(): boolean {
    return this.#ended >= ended_max;
  }

  wasFull(session_id: string): boolean {
    return this.#full.includes(session_id);
  }

  /** The best replica not yet tried; undefined where there is none, or none may be tried. */
  next(): Replica<SessionLink> | undefined {
    return this.#mayAsk ? this.#router.choose(this.#route, this.#tried) : undefined;
  }

  /** Where all batches were full: one of them, in whose queue it waits. */
  nextToWait(): Replica<SessionLink> | undefined {
    if (this.#waits || this.#full.length === 0) return undefined;
    this.#waits = true;
    this.mayBeAsked(this.#full);
    return this.next();
  }

  /** The request is sent to this one. */
  ask({ session_id }: Replica<SessionLink>): void {
    this.#asked++;
    this.#tried.push(session_id);
  }

  /** The one that was asked last could not answer. Whoever had nothing of the request was not harmed by it. */
  noteLost(failure: AttemptFailure): void {
    if (failure === 'ended') this.#ended++;
    if (failure !== 'unreached') this.#failures++;
  }

  /** It answered with an error. @param full its batch had no place */
  noteRefused({ session_id }: Replica<SessionLink>, refusal: ReplicaRefusal, full: boolean): void {
    if (refusal === 'ended') this.#ended++;
    if (refusal === 'failed') this.#failures++;
    if (refusal === 'moved') {
      this.#sentAway = true;
      this.#tried = [session_id];
    }
    if (full) this.#full.push(session_id);
  }

  mayBeAsked(sessions: readonly string[]): void {
    this.#tried = this.#tried.filter((session_id) => !sessions.includes(session_id));
  }

  /** Whoever waits for a replica gets none any more. */
  end(): void {
    this.#over = true;
  }

  /**
   * Waits for a replica in place of one that was lost and has computed nothing of the request: workers are started
   * again, jobs come back, weights are loaded. Streams that broke wait as long.
   * @param since_ms on the monotonic clock
   * @param again sessions that may be asked once more after a while
   * @returns undefined where nobody came, or the search ended
   */
  async replacement(
    since_ms: number,
    again: readonly string[] = [],
  ): Promise<Replica<SessionLink> | undefined> {
    const { continue_ms, load_wait_ms, room } = this.#waiting;
    this.#waits_since_ms ??= since_ms;
    const began_ms = performance.now();
    const leave = room.enter();
    while (!this.#over) {
      const now_ms = performance.now();
      if (now_ms - began_ms > again_ms) this.mayBeAsked(again);
      const next = this.next();
      const waited_ms = now_ms - this.#waits_since_ms;
      const waits_ms = leave && this.#comes ? load_wait_ms : continue_ms;
      if (next || waited_ms > waits_ms) {
        leave?.();
        return next;
      }
      await delay(look_ms);
    }
    leave?.();
    return undefined;
  }

  /** A replica loads that it may be sent to. */
  get #comes(): boolean {
    return this.#mayAsk && this.#router.coming(this.#route).length > 0;
  }

  get #mayAsk(): boolean {
    return this.#failures <= retries_max && !this.stopsReplicas && this.#asked < asked_max;
  }

  /**
   * Waits for a model that is being started, where that is expected within the time that requests may wait.
   * @returns undefined where it does not come in time, or the search ended
   */
  async awakened(wakes_in_s: number, wait_max_s: number): Promise<Replica<SessionLink> | undefined> {
    if (wakes_in_s > wait_max_s) return undefined;
    const until_ms = performance.now() + 1000 * wait_max_s;
    while (!this.#over && performance.now() < until_ms) {
      const next = this.#router.candidates(this.#route).length > 0 ? this.next() : undefined;
      if (next) return next;
      await delay(look_ms);
    }
    return undefined;
  }
}
