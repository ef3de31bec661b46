import { setTimeout as delay } from 'node:timers/promises';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SleepState, ToldSleep } from '../../spec/sleep-report.ts';
import type { SleepPaths } from '../adapters/adapter.ts';
import { fetchText } from './engine-request.ts';
import type { AgentLog } from './log.ts';
import type { Traffic, Upstream } from './serving-process.ts';
import type { Waking } from './waking.ts';

/** Longest time that falling asleep or waking may take: all weights cross the link between device and host. */
const change_ms = 120_000;
/** It is looked at this often, at most. Lower: sleeps closer to its time; higher: fewer wake-ups of the agent. */
const look_ms_max = 1000;

/** Has an engine fall asleep or wake; resolves once it has. @throws Error where it answers with anything else */
export async function changeSleep(
  upstream: Upstream,
  paths: SleepPaths,
  to: keyof SleepPaths,
): Promise<void> {
  const { status } = await fetchText(upstream, paths[to], change_ms, 'POST');
  if (status < 200 || status >= 300) throw new Error(`${paths[to]} answers ${status}`);
}

export interface SleepOptions {
  paths: SleepPaths;
  /** Without requests for so long, it sleeps. Lower: memory is free sooner; higher: fewer requests wait for it. */
  after_ms: number;
  upstream: Upstream;
  traffic: Readonly<Traffic>;
  unit: string;
  log: AgentLog;
}

/**
 * An engine that gives up its device memory while nobody asks for it, and is woken by the next request, which waits for
 * it. It is put to sleep only where no request is in the agent, so that none meets an engine that sleeps.
 */
export class EngineSleep {
  readonly #options: SleepOptions;
  #asleep = false;
  /** While it falls asleep or wakes; never rejects. */
  #changing: Promise<void> | undefined;
  #changes_to: keyof SleepPaths = 'wake';
  #waiting = 0;
  #wake_ms: number | undefined;
  #asked_ms = performance.now();

  constructor(options: SleepOptions) {
    this.#options = options;
  }

  /** Puts it to sleep each time its keep-alive is over, until `signal`. */
  async watch(signal: AbortSignal): Promise<void> {
    const { after_ms, traffic, log, unit } = this.#options;
    while (!signal.aborted) {
      await delay(Math.min(look_ms_max, after_ms), undefined, { ref: false });
      if (traffic.in_flight > 0) this.#asked_ms = performance.now();
      const idle_ms = performance.now() - this.#asked_ms;
      if (signal.aborted || this.#asleep || this.#changing || idle_ms < after_ms) continue;
      try {
        await this.#change('sleep');
        log.info({ unit, idle_s: Math.round(idle_ms / 1000) }, 'nobody asks for it: it sleeps');
      } catch (error) {
        // Whether it sleeps now, nobody knows: the next request wakes it, which does no harm to one that is awake.
        this.#asleep = true;
        log.warn({ unit, reason: (error as Error).message }, 'it was not put to sleep');
      }
    }
  }

  /**
   * @returns undefined where it is awake
   * @throws HpcserveError E_AGENT_NOT_READY by rejection: it does not wake
   */
  wake(): Waking | undefined {
    this.#asked_ms = performance.now();
    // It is woken in any case: nobody else waits for its device.
    if (!this.#asleep && !this.#changing) return undefined;
    this.#waiting++;
    const awake = this.#awake().finally(() => this.#waiting--);
    return { awake, withdraw: () => undefined };
  }

  told(): ToldSleep {
    return { state: this.#state, waiting: this.#waiting, wake_ms: this.#wake_ms };
  }

  get #state(): SleepState {
    if (this.#changing) return this.#changes_to === 'sleep' ? 'falls asleep' : 'wakes';
    return this.#asleep ? 'asleep' : 'awake';
  }

  async #awake(): Promise<void> {
    const { log, unit } = this.#options;
    while (this.#changing) await this.#changing;
    if (!this.#asleep) return;
    const started_ms = performance.now();
    try {
      await this.#change('wake');
    } catch (error) {
      throw new HpcserveError('E_AGENT_NOT_READY', {
        what: `the engine of ${unit} sleeps and does not wake`,
        because: (error as Error).message,
      });
    }
    this.#wake_ms = Math.round(performance.now() - started_ms);
    log.info({ unit, wake_ms: this.#wake_ms }, 'it is awake again');
  }

  async #change(to: keyof SleepPaths): Promise<void> {
    const { upstream, paths } = this.#options;
    this.#changes_to = to;
    const done = changeSleep(upstream, paths, to).then(() => {
      this.#asleep = to === 'sleep';
    });
    this.#changing = done.then(
      () => undefined,
      () => undefined,
    );
    try {
      await done;
    } finally {
      this.#changing = undefined;
    }
  }
}
