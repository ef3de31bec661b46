import { requestsAt } from '../../solver/routing/candidate.ts';
import type { MovedAnswer } from '../../spec/wire.ts';
import { loadsIn_s } from '../routing/load-time.ts';
import type { Replica } from '../routing/replica.ts';
import type { RouteRequest, Router } from '../routing/router.ts';
import type { SessionLink } from '../session-link.ts';
import type { Waiting } from './proxy-services.ts';
import type { AttemptFailure, ReplicaRefusal } from './replica-refusal.ts';
import type { LinePass } from './waiting-line.ts';
import type { NoPlace } from './waiting-room.ts';

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
/**
 * A replica that did not accept this gateway may know its new session after so long; one that was full may have room,
 * and one that was out of reach may be heard again.
 */
const again_ms = 500;

/** What a request that nobody can begin with now waits for. Replicas that load are seen besides. */
export interface ReplicaExpectation {
  /**
   * Since when a replica is missing that may be back at any moment, on the monotonic clock: it was lost, or a job runs
   * that has not told of it yet. Absent: there is no such.
   */
  lost_ms?: number | undefined;
  /** The model sleeps and is being started. */
  wakes_in_s?: number | undefined;
  /** Sessions that were asked and may be asked once more after a while. */
  again?: readonly string[] | undefined;
  /** Replicas serve, and others wait for them already. */
  behind_others?: boolean | undefined;
}

/** Of one request that waits. */
interface Wait {
  what: ReplicaExpectation;
  /** On the monotonic clock. */
  began_ms: number;
  /** Whether it may wait longer than for one that may be back at any moment. */
  has_place: boolean;
  /** Since when replicas serve and their places are taken, on the monotonic clock. */
  held_ms?: number | undefined;
}

/** Whose request it is, as far as that says how long it may wait. */
export interface WaitingClient {
  key_id: string;
  /** Until when it waits, on the monotonic clock. */
  patient_until_ms: number;
}

/**
 * Which replica one request may be sent to next. It counts who was asked and what came of it, and ends the search where
 * the request may be what harms replicas:
 *
 * | of those that were asked     |                                                                  |
 * |------------------------------|------------------------------------------------------------------|
 * | could not be reached         | cost nothing, and may be asked again after a while               |
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
  readonly #client: WaitingClient;
  /** Sessions that are not asked again. */
  #tried: string[] = [];
  #asked = 0;
  /** Native replicas whose batches were full when they were asked, by session. */
  readonly #full: string[] = [];
  #waits = false;
  #failures = 0;
  #ended = 0;
  /** Sessions that had nothing of it. */
  readonly #unreached: string[] = [];
  #sentAway = false;
  /** Where a replica has brought what it had of the answer. */
  #moved: MovedAnswer | undefined;
  /** Since when it waits for a replica, on the monotonic clock. */
  #waits_since_ms: number | undefined;
  /** Since when none is there that may be back at any moment, on the monotonic clock. */
  #lost_ms = Number.NEGATIVE_INFINITY;
  #over = false;
  #turnedAway: NoPlace | undefined;

  constructor(router: Router, route: RouteRequest, waiting: Waiting, client: WaitingClient) {
    this.#router = router;
    this.#route = route;
    this.#waiting = waiting;
    this.#client = client;
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

  /** Of those that were asked, the ones that had nothing of it: they may only have been out of reach for a while. */
  get unreached(): readonly string[] {
    return this.#unreached;
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

  /** Why it waits no longer for a replica that comes: the places for that are taken. */
  get turnedAway(): NoPlace | undefined {
    return this.#turnedAway;
  }

  wasFull(session_id: string): boolean {
    return this.#full.includes(session_id);
  }

  /** The best replica not yet tried; undefined where there is none, or none may be tried. */
  next(): Replica<SessionLink> | undefined {
    if (!this.#mayAsk) return undefined;
    return this.#expected ?? this.#router.choose(this.#route, this.#tried);
  }

  get #expected(): Replica<SessionLink> | undefined {
    const session_id = this.#moved?.session;
    if (session_id === undefined || this.#tried.includes(session_id)) return undefined;
    return this.#router.candidates(this.#route).find((replica) => replica.session_id === session_id);
  }

  /** What keys and values are called that a replica has brought to this one; undefined where none has. */
  kvAt({ session_id }: Replica<SessionLink>): string | undefined {
    return this.#moved?.session === session_id ? this.#moved.kv : undefined;
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
  noteLost({ session_id }: Replica<SessionLink>, failure: AttemptFailure): void {
    if (failure === 'ended') this.#ended++;
    if (failure !== 'unreached') this.#failures++;
    else if (!this.#unreached.includes(session_id)) this.#unreached.push(session_id);
  }

  /**
   * It answered with an error.
   * @param full its batch had no place
   * @param moved where it has brought what there was of the answer
   */
  noteRefused(
    { session_id }: Replica<SessionLink>,
    refusal: ReplicaRefusal,
    full: boolean,
    moved?: MovedAnswer,
  ): void {
    this.#moved = moved;
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
   * Waits for a replica while nobody has begun to answer: one was lost and is started again, its weights are loaded,
   * its job comes back, the model is woken. As long as its client and the gateway's settings allow, and not at all
   * where what is known of the start says that this is not enough. Streams that broke wait as long.
   * @returns undefined where nobody came, or the search ended
   */
  async expected(what: ReplicaExpectation): Promise<Replica<SessionLink> | undefined> {
    const began_ms = performance.now();
    this.#waits_since_ms ??= began_ms;
    if (what.lost_ms !== undefined) this.#lost_ms = Math.max(this.#lost_ms, what.lost_ms);
    const { room, line } = this.#waiting;
    const place = room.enter(this.#client.key_id);
    if (typeof place === 'string' && what.behind_others) {
      this.#turnedAway = place;
      return undefined;
    }
    const wait: Wait = { what, began_ms, has_place: typeof place !== 'string' };
    try {
      const look = (pass: LinePass) => this.#look(wait, pass);
      const { replica } = await line.until(look, what.behind_others !== true);
      // Its place was kept until now, when its own attempt counts.
      if (replica) replica.unreported--;
      if (replica === undefined && typeof place === 'string' && this.#comesInTime(performance.now(), what))
        this.#turnedAway = place;
      return replica;
    } finally {
      this.#hold(wait, undefined);
      if (typeof place !== 'string') place.leave();
    }
  }

  /** @returns undefined where it waits on; no replica where that is over */
  #look(wait: Wait, pass: LinePass): { replica?: Replica<SessionLink> } | undefined {
    if (this.#over) return {};
    const { what, began_ms, has_place, held_ms } = wait;
    const now_ms = performance.now();
    if (what.again && now_ms - began_ms > again_ms) this.mayBeAsked(what.again);
    const heldLongEnough = now_ms > this.#heldUntil_ms(held_ms ?? now_ms);
    const route = this.#route;
    if (held_ms !== undefined && !heldLongEnough && pass.isFull(route)) return undefined;
    const replica = this.next();
    if (replica && (!has_place || heldLongEnough || requestsAt(replica) < replica.max_sequences)) {
      // Those behind it look in the same moment.
      replica.unreported++;
      return { replica };
    }
    this.#hold(wait, replica && (held_ms ?? now_ms));
    if (replica) {
      // Who was refused by some may find those full that others have not asked yet.
      if (this.#tried.length === 0) pass.noteFull(route);
      return undefined;
    }
    return now_ms > this.#waitsUntil_ms(now_ms, has_place, what) ? {} : undefined;
  }

  /** @param since_ms undefined: no replica serves whose place it waits for */
  #hold(wait: Wait, since_ms: number | undefined): void {
    const { line } = this.#waiting;
    if (wait.held_ms === undefined && since_ms !== undefined) line.changeHeld(this.#route.model, 1);
    if (wait.held_ms !== undefined && since_ms === undefined) line.changeHeld(this.#route.model, -1);
    wait.held_ms = since_ms;
  }

  /** It is given to the replica that has least to do then, and waits there. */
  #heldUntil_ms(held_ms: number): number {
    return Math.min(held_ms + this.#waiting.held_ms, this.#client.patient_until_ms);
  }

  /** @param hasPlace whether it may wait longer than for one that may be back at any moment */
  #waitsUntil_ms(now_ms: number, hasPlace: boolean, what: ReplicaExpectation): number {
    const loaded_ms = this.#loadedUntil_ms(now_ms);
    // One that fails to load may be started again, as one that is lost.
    if (hasPlace && loaded_ms !== undefined) this.#lost_ms = now_ms;
    let until_ms = this.#lost_ms + this.#waiting.continue_ms;
    if (hasPlace) until_ms = Math.max(until_ms, loaded_ms ?? 0, this.#wokenUntil_ms(what) ?? 0);
    return Math.min(until_ms, this.#client.patient_until_ms);
  }

  /** Whether it would wait on if it had a place. */
  #comesInTime(now_ms: number, what: ReplicaExpectation): boolean {
    return now_ms <= Math.max(this.#loadedUntil_ms(now_ms) ?? 0, this.#wokenUntil_ms(what) ?? 0);
  }

  /** Until when it waits for its model to wake; undefined where it does not, or not in time. */
  #wokenUntil_ms({ wakes_in_s }: ReplicaExpectation): number | undefined {
    if (wakes_in_s === undefined) return undefined;
    const longest_ms = this.#atLongest_ms(this.#waiting.wake_wait_ms);
    return this.#waits_since_ms! + 1000 * wakes_in_s <= longest_ms ? longest_ms : undefined;
  }

  /** The same for one that loads. */
  #loadedUntil_ms(now_ms: number): number | undefined {
    const loads_in_ms = this.#loadsIn_ms;
    if (loads_in_ms === undefined) return undefined;
    const longest_ms = this.#atLongest_ms(this.#waiting.load_wait_ms);
    return now_ms + loads_in_ms <= longest_ms ? longest_ms : undefined;
  }

  #atLongest_ms(wait_ms: number): number {
    return Math.min(this.#waits_since_ms! + wait_ms, this.#client.patient_until_ms);
  }

  /** When the first replica serves that loads now; undefined where none does that it may be sent to. */
  get #loadsIn_ms(): number | undefined {
    if (!this.#mayAsk) return undefined;
    const coming = this.#router.coming(this.#route);
    if (coming.length === 0) return undefined;
    const unix_ms = Date.now();
    return Math.min(...coming.map(({ served }) => 1000 * (loadsIn_s(served, unix_ms) ?? 0)));
  }

  get #mayAsk(): boolean {
    return this.#failures <= retries_max && !this.stopsReplicas && this.#asked < asked_max;
  }
}
