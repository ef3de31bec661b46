import { setTimeout as delay } from 'node:timers/promises';
import {
  admitToTurn,
  type ChangeUnderWay,
  promisedOnTurn,
  type TimedSleeper,
} from '../../solver/sharing/awake-admission.ts';
import { type AwakeTurn, nextAwake } from '../../solver/sharing/awake-turn.ts';
import { type Slo, sloOf, type TimedRequest } from '../../solver/sharing/slo.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ToldSleep } from '../../spec/sleep-report.ts';
import { canSleep } from '../../spec/sleeping-engine.ts';
import type { TurnsReport } from '../../spec/turns-report.ts';
import type { AnswerTimes } from './answer-times.ts';
import type { UnitGroup } from './assign-devices.ts';
import type { AgentLog } from './log.ts';
import type { Waking } from './waking.ts';

/** Where requests wait it is looked this often whether the turn is over. Lower: they wait less; higher: less work. */
const look_ms = 50;
/** What a change is taken for until one was seen, ms. */
const assumed_change_ms = 2000;
/** Refusals of a model are logged together, this often. Lower: reasons are seen sooner; higher: shorter logs. */
const refusals_log_ms = 60_000;
/** Length of the prompt by which a request's level is told: agents do not read prompts. */
const typical_tokens = 512;

/** An engine that takes turns with others on its device. */
export interface TurnTaker {
  readonly unit: string;
  /** Absent: nothing is promised to its requests. */
  readonly slo: Slo | undefined;
  readonly times: Pick<AnswerTimes, 'left_ms' | 'first_token_ms' | 'idle_first_token_ms' | 'answer_ms'>;
  /** Requests that are in the agent for it, those that wait included. */
  in_flight(): number;
  sleep(): Promise<void>;
  wake(): Promise<void>;
  /** It fell asleep or woke. */
  onChange(): void;
}

interface Waiter {
  request: TimedRequest;
  let: () => void;
  refuse: (error: Error) => void;
}

interface Member {
  taker: TurnTaker;
  waiting: Waiter[];
  /** Longest that waking took lately, the sleep before it included. */
  change_ms: number;
  /** What waking took last; undefined: it never slept. */
  wake_ms: number | undefined;
  /** While it is put to sleep or woken. */
  changes: 'falls asleep' | 'wakes' | undefined;
  awake_since_ms: number;
  /** Requests that waited for a turn, and such as were refused for a promise. */
  waited: number;
  refused: number;
  /** Of the refused, those that the log has not, and when it had some last. */
  unlogged: number;
  logged_ms: number;
}

/** A start or a wake, while it lasts. */
interface Change {
  /** Who is awake after it; absent: one that starts. */
  to?: Member;
  /** As long as it is expected to take once nobody is awake. */
  change_ms: number;
  /** When nobody was awake any more; absent: the one that is awake answers what it was given. */
  free_ms?: number;
}

/** What an engine has of its turns. */
export interface TakenTurns {
  readonly asleep: boolean;
  readonly report: TurnsReport;
  told(): ToldSleep;
  /**
   * Before a request is passed on: undefined where it can be now.
   * @param isCertain it is let in whatever was promised
   * @throws HpcserveError E_SLO_REFUSED by rejection: by its turn a promise would be broken
   */
  enter(isCertain: boolean): Waking | undefined;
  leave(): void;
}

/**
 * Wrapped engines on one device, of which one is awake (vLLM's sleep mode, level 1): it has the device's memory, the
 * others' weights wait in host memory. Who is woken for waiting requests is decided by `nextAwake`; an engine sleeps
 * only when it has answered what it was given, and takes nothing new from when its turn is over. Engines start one
 * after the other, for each takes the device's memory as it starts.
 *
 *     request ──► awake, its turn? ──yes──► passed on
 *                   │ no
 *                   ▼
 *                 waits ──► nextAwake ──► the awake one answers what it has ──► sleeps ──► the next wakes ──► passed on
 */
export class DeviceTurns {
  readonly #log: AgentLog;
  readonly #members: Member[] = [];
  #awake: Member | undefined;
  /** The awake one gets nothing new: its turn is over, or another starts. */
  #isOver = false;
  /** Somebody starts, or a change is under way: others that want to begin one wait for it. */
  #line: Promise<void> = Promise.resolve();
  #changes = 0;
  /** The one that is under way. */
  #change_now: Change | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(log: AgentLog) {
    this.#log = log;
  }

  /**
   * The device is the caller's to start an engine on, as soon as nobody is awake on it.
   * @param usual_ms what its start is expected to take
   * @returns to be called once the engine serves and has joined, or has ended
   * @throws what `signal` was aborted with
   */
  async start(signal: AbortSignal, usual_ms: number): Promise<() => void> {
    const change: Change = { change_ms: usual_ms };
    const end = await this.#begin(change);
    try {
      await this.#layDown(change, signal);
      return end;
    } catch (error) {
      end();
      throw error;
    }
  }

  /** An engine that serves, and is awake. */
  join(taker: TurnTaker): TakenTurns {
    const own: Member = {
      taker,
      waiting: [],
      change_ms: assumed_change_ms,
      wake_ms: undefined,
      changes: undefined,
      awake_since_ms: performance.now(),
      waited: 0,
      refused: 0,
      unlogged: 0,
      logged_ms: Number.NEGATIVE_INFINITY,
    };
    this.#members.push(own);
    this.#awake = own;
    const turns = this;
    return {
      get asleep() {
        return turns.#awake !== own;
      },
      get report() {
        return reportOf(own);
      },
      told: () => {
        const { waiting, wake_ms, changes = turns.#awake === own ? 'awake' : 'asleep' } = own;
        return { state: changes, waiting: waiting.length, wake_ms, turns: reportOf(own) };
      },
      enter: (isCertain) => this.#enter(own, isCertain),
      leave: () => this.#leave(own),
    };
  }

  #enter(own: Member, isCertain: boolean): Waking | undefined {
    const canPass = this.#awake === own && !this.#isOver;
    const isFree = canPass && this.#members.every(({ waiting }) => waiting.length === 0);
    const request = this.#requestOf(own, canPass);
    if (own.taker.slo !== undefined && !isCertain && !isFree) {
      const refusal = this.#validate(own, request);
      if (refusal) return { awake: Promise.reject(refusal), withdraw: () => undefined };
    }
    if (canPass) return undefined;
    own.waited++;
    let withdraw = (): void => undefined;
    const awake = new Promise<void>((resolve, reject) => {
      const waiter: Waiter = { request, let: resolve, refuse: reject };
      own.waiting.push(waiter);
      withdraw = () => giveUp(own, waiter);
    });
    this.#look();
    return { awake, withdraw };
  }

  #requestOf({ taker, change_ms }: Member, awake: boolean): TimedRequest {
    const level = sloOf(taker.slo ?? {}, typical_tokens);
    const { idle_first_token_ms } = taker.times;
    return {
      arrival_ms: performance.now(),
      output_tokens: 0,
      service_level: taker.slo ? promisedOnTurn(level, { awake, change_ms }, idle_first_token_ms) : level,
    };
  }

  /** @returns why it may not wait for its turn; undefined: it may */
  #validate(own: Member, request: TimedRequest): HpcserveError | undefined {
    const now_ms = request.arrival_ms;
    const { unit } = own.taker;
    const id = String(this.#members.indexOf(own));
    const verdict = admitToTurn(this.#timed(now_ms), id, request, now_ms, this.#underWay(now_ms));
    if (verdict.admit) return undefined;
    const { because, retry_after_ms } = verdict;
    own.refused++;
    own.unlogged++;
    if (now_ms - own.logged_ms >= refusals_log_ms) {
      const requests = own.unlogged;
      this.#log.info({ unit, requests, because }, 'requests are refused: each would break a promise');
      own.unlogged = 0;
      own.logged_ms = now_ms;
    }
    return new HpcserveError('E_SLO_REFUSED', {
      what: `${unit} cannot take this request within its service level now`,
      because,
      details: { retry_after_s: Math.max(1, Math.ceil(retry_after_ms / 1000)) },
    });
  }

  #timed(now_ms: number): TimedSleeper[] {
    return this.#members.map(({ taker, waiting, change_ms, awake_since_ms }, at) => ({
      id: String(at),
      awake: this.#members[at] === this.#awake,
      promised: taker.slo !== undefined,
      waiting: waiting.map(({ request }) => request),
      change_ms,
      awake_since_ms,
      left_ms: taker.times.left_ms(now_ms),
      first_token_ms: taker.times.first_token_ms,
      answer_ms: taker.times.answer_ms,
    }));
  }

  #underWay(now_ms: number): ChangeUnderWay | undefined {
    if (!this.#change_now) return undefined;
    const { to, change_ms, free_ms = now_ms } = this.#change_now;
    const elapsed_ms = now_ms - free_ms;
    // What takes longer than it was expected to is taken to be half over.
    const left_ms = elapsed_ms < change_ms ? change_ms - elapsed_ms : elapsed_ms;
    return { id: to && String(this.#members.indexOf(to)), left_ms };
  }

  #leave(own: Member): void {
    const at = this.#members.indexOf(own);
    if (at >= 0) this.#members.splice(at, 1);
    if (this.#awake === own) this.#awake = undefined;
    refuseAll(own, `the engine of ${own.taker.unit} has ended`);
    this.#look();
  }

  /** Whose turn it is now. */
  #look(): void {
    clearTimeout(this.#timer);
    // Who is at it looks again when it is over.
    if (this.#changes > 0) return;
    const now_ms = performance.now();
    const sleepers = this.#timed(now_ms).map((one, at) => {
      const { taker, waiting } = this.#members[at]!;
      return { ...one, running: taker.in_flight() - waiting.length };
    });
    const turn = nextAwake(sleepers, now_ms);
    if (!turn) return;
    const next = this.#members[Number(turn.id)]!;
    if (next !== this.#awake) {
      void this.#change(next, turn);
      return;
    }
    this.#isOver = false;
    letAll(next);
    if (this.#members.some(({ waiting }) => waiting.length > 0))
      this.#timer = setTimeout(() => this.#look(), look_ms).unref();
  }

  async #change(next: Member, { because }: AwakeTurn): Promise<void> {
    const change: Change = { to: next, change_ms: next.change_ms };
    const end = await this.#begin(change);
    try {
      if (!this.#members.includes(next)) return;
      await this.#layDown(change);
      const woken_ms = performance.now();
      next.changes = 'wakes';
      await next.taker.wake();
      this.#awake = next;
      next.awake_since_ms = performance.now();
      next.change_ms = Math.max(next.awake_since_ms - change.free_ms!, next.change_ms / 2);
      next.changes = undefined;
      next.wake_ms = Math.round(next.awake_since_ms - woken_ms);
      next.taker.onChange();
      const { unit } = next.taker;
      this.#log.info({ unit, wake_ms: next.wake_ms, because }, 'it is awake: its turn on the device');
      letAll(next);
    } catch (error) {
      refuseAll(next, (error as Error).message);
    } finally {
      next.changes = undefined;
      end();
    }
  }

  /** The awake one answers what it was given, and sleeps. */
  async #layDown(change: Change, signal?: AbortSignal): Promise<void> {
    const awake = this.#awake;
    this.#isOver = true;
    while (awake && this.#awake === awake && awake.taker.in_flight() > awake.waiting.length)
      await delay(look_ms, undefined, { signal, ref: false });
    change.free_ms = performance.now();
    if (!awake || this.#awake !== awake) return;
    // From here on it counts as asleep: to wake one that is awake does no harm.
    this.#awake = undefined;
    awake.changes = 'falls asleep';
    try {
      await awake.taker.sleep();
    } catch (error) {
      // Whether it sleeps now, nobody knows: whoever is woken next finds out.
      const { unit } = awake.taker;
      this.#log.warn({ unit, reason: (error as Error).message }, 'it was not put to sleep');
    } finally {
      awake.changes = undefined;
    }
    awake.taker.onChange();
  }

  /** One start or change at a time. */
  async #begin(change: Change): Promise<() => void> {
    this.#changes++;
    const before = this.#line;
    let end = (): void => undefined;
    this.#line = new Promise((resolve) => {
      end = resolve;
    });
    await before;
    this.#change_now = change;
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      this.#changes--;
      this.#change_now = undefined;
      this.#isOver = false;
      end();
      this.#look();
    };
  }
}

/** For engines that can sleep and are on one device with others: whose turn it is there. */
export function turnsOf(groups: readonly UnitGroup[], log: AgentLog): Map<UnitGroup, DeviceTurns> {
  const sleepers = groups.filter(({ units }) => units.every(({ engine, model }) => canSleep(engine, model)));
  const found = new Map<UnitGroup, DeviceTurns>();
  for (const group of sleepers) {
    const beside = sleepers.filter(
      (other) => other !== group && other.devices.some((device) => group.devices.includes(device)),
    );
    if (beside.length === 0) continue;
    const known = beside.map((other) => found.get(other)).find((turns) => turns !== undefined);
    found.set(group, known ?? new DeviceTurns(log));
  }
  return found;
}

function reportOf({ waiting, waited, refused, change_ms }: Member): TurnsReport {
  return { waiting: waiting.length, waited, refused, change_ms: Math.round(change_ms) };
}

function giveUp({ waiting }: Member, waiter: Waiter): void {
  const at = waiting.indexOf(waiter);
  if (at < 0) return;
  waiting.splice(at, 1);
  waiter.refuse(new Error('it waits for no turn any more'));
}

function letAll(member: Member): void {
  for (const { let: pass } of member.waiting.splice(0)) pass();
}

function refuseAll(member: Member, because: string): void {
  const what = `the engine of ${member.taker.unit} sleeps and does not wake`;
  for (const { refuse } of member.waiting.splice(0))
    refuse(new HpcserveError('E_AGENT_NOT_READY', { what, because }));
}
