import { setTimeout as delay } from 'node:timers/promises';
import { type AwakeTurn, nextAwake } from '../../solver/sharing/awake-turn.ts';
import { type Slo, sloOf, type TimedRequest } from '../../solver/sharing/slo.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { canSleep } from '../../spec/sleeping-engine.ts';
import type { UnitGroup } from './assign-devices.ts';
import type { AgentLog } from './log.ts';

/** Where requests wait it is looked this often whether the turn is over. Lower: they wait less; higher: less work. */
const look_ms = 50;
/** What a change is taken for until one was seen, ms. */
const assumed_change_ms = 2000;
/** Length of the prompt by which a request's level is told: agents do not read prompts. */
const typical_tokens = 512;

/** An engine that takes turns with others on its device. */
export interface TurnTaker {
  readonly unit: string;
  readonly slo: Slo;
  /** Requests that are in the agent for it, those that wait included. */
  in_flight(): number;
  sleep(): Promise<void>;
  wake(): Promise<void>;
  /** It fell asleep or woke. */
  onChange(): void;
}

interface Member {
  taker: TurnTaker;
  waiting: { request: TimedRequest; let: () => void; refuse: (error: Error) => void }[];
  /** Longest that waking took lately, the sleep before it included. */
  change_ms: number;
  awake_since_ms: number;
}

/** What an engine has of its turns. */
export interface TakenTurns {
  readonly asleep: boolean;
  /** Before a request is passed on: undefined where it can be now, else resolves once it can. */
  enter(): Promise<void> | undefined;
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
  #timer: NodeJS.Timeout | undefined;

  constructor(log: AgentLog) {
    this.#log = log;
  }

  /**
   * The device is the caller's to start an engine on, as soon as nobody is awake on it.
   * @returns to be called once the engine serves and has joined, or has ended
   * @throws what `signal` was aborted with
   */
  async start(signal: AbortSignal): Promise<() => void> {
    const end = await this.#begin();
    try {
      await this.#layDown(signal);
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
      awake_since_ms: performance.now(),
    };
    this.#members.push(own);
    this.#awake = own;
    const turns = this;
    return {
      get asleep() {
        return turns.#awake !== own;
      },
      enter: () => this.#enter(own),
      leave: () => this.#leave(own),
    };
  }

  #enter(own: Member): Promise<void> | undefined {
    if (this.#awake === own && !this.#isOver) return undefined;
    const arrival_ms = performance.now();
    const service_level = sloOf(own.taker.slo, typical_tokens);
    return new Promise((resolve, reject) => {
      const request = { arrival_ms, output_tokens: 0, service_level };
      own.waiting.push({ request, let: resolve, refuse: reject });
      this.#look();
    });
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
    const turn = nextAwake(
      this.#members.map(({ taker, waiting, change_ms, awake_since_ms }, at) => ({
        id: String(at),
        awake: this.#members[at] === this.#awake,
        running: taker.in_flight() - waiting.length,
        waiting: waiting.map(({ request }) => request),
        change_ms,
        awake_since_ms,
      })),
      now_ms,
    );
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
    const end = await this.#begin();
    try {
      if (!this.#members.includes(next)) return;
      await this.#layDown();
      const began_ms = performance.now();
      await next.taker.wake();
      this.#awake = next;
      next.awake_since_ms = performance.now();
      next.change_ms = Math.max(next.awake_since_ms - began_ms, next.change_ms / 2);
      next.taker.onChange();
      const wake_ms = Math.round(next.awake_since_ms - began_ms);
      this.#log.info({ unit: next.taker.unit, wake_ms, because }, 'it is awake: its turn on the device');
      letAll(next);
    } catch (error) {
      refuseAll(next, (error as Error).message);
    } finally {
      end();
    }
  }

  /** The awake one answers what it was given, and sleeps. */
  async #layDown(signal?: AbortSignal): Promise<void> {
    const awake = this.#awake;
    this.#isOver = true;
    while (awake && this.#awake === awake && awake.taker.in_flight() > awake.waiting.length)
      await delay(look_ms, undefined, { signal, ref: false });
    if (!awake || this.#awake !== awake) return;
    // From here on it counts as asleep: to wake one that is awake does no harm.
    this.#awake = undefined;
    try {
      await awake.taker.sleep();
    } catch (error) {
      // Whether it sleeps now, nobody knows: whoever is woken next finds out.
      const { unit } = awake.taker;
      this.#log.warn({ unit, reason: (error as Error).message }, 'it was not put to sleep');
    }
    awake.taker.onChange();
  }

  /** One start or change at a time. */
  async #begin(): Promise<() => void> {
    this.#changes++;
    const before = this.#line;
    let end = (): void => undefined;
    this.#line = new Promise((resolve) => {
      end = resolve;
    });
    await before;
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      this.#changes--;
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

function letAll(member: Member): void {
  for (const { let: pass } of member.waiting.splice(0)) pass();
}

function refuseAll(member: Member, because: string): void {
  const what = `the engine of ${member.taker.unit} sleeps and does not wake`;
  for (const { refuse } of member.waiting.splice(0))
    refuse(new HpcserveError('E_AGENT_NOT_READY', { what, because }));
}
