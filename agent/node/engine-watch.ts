/** Watches an engine that serves: its load, its health, and whether it works. */
import { setTimeout as delay } from 'node:timers/promises';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { EngineAdapter, EngineLoad } from '../adapters/adapter.ts';
import { saysCompilation } from '../adapters/load-phases.ts';
import type { Child } from './child.ts';
import { EngineHealth, type HealthAnswer, type HealthVerdict, look_ms } from './engine-health.ts';
import { EngineProcesses } from './engine-processes.ts';
import { fetchText, postJson } from './engine-request.ts';
import type { ProcessContext, Upstream } from './serving-process.ts';

/** Between two questions for a token to an engine that has stalled, and how long each is waited for. */
const revival_pause_ms = 1000;
const revival_timeout_ms = 10_000;
const metrics_timeout_ms = 2000;
/**
 * Between two questions for its metrics while it has nothing to do: it gets its requests from here, so that they say
 * nothing new. Lower: what it does by itself is seen sooner; higher: less is computed on an idle node.
 */
const idle_metrics_ms = 15_000;
/** Of the log, between two looks. */
const log_bytes_max = 64 * 1024;

export interface WatchedEngine {
  child: Child;
  upstream: Upstream;
  adapter: EngineAdapter;
  unit: UnitSpec;
  context: Pick<ProcessContext, 'traffic' | 'heartbeat_ms' | 'log'>;
  /** Its state changed: stalled, or well again. */
  onVerdict(verdict: HealthVerdict): void;
}

/** Looks at an engine that serves, and says when it stalls, goes on, or hangs. */
export class EngineWatch {
  /** As the engine said last; fields that it does not say are absent. */
  load: EngineLoad = {};
  /** Requests under way as it said so. */
  in_flight_then = 0;
  readonly #engine: WatchedEngine;
  readonly #health: EngineHealth;
  readonly #processes: EngineProcesses;
  #answer: HealthAnswer | undefined;
  #hasRevived = false;
  /** Of its log, read so far. */
  #read_bytes: number;
  #isStalled = false;

  constructor(engine: WatchedEngine) {
    this.#engine = engine;
    this.#health = new EngineHealth(engine.unit.model.timeouts);
    this.#processes = new EngineProcesses(engine.child.pid!, engine.child.detached);
    this.#read_bytes = engine.child.log.bytes;
  }

  /**
   * Resolves where the engine lives and does not work, with why. Never where it ends or is stopped first.
   * @throws by rejection where /proc cannot be read
   */
  async untilHung(signal: AbortSignal): Promise<string> {
    const { child, context } = this.#engine;
    const isOver = (): boolean => !child.alive || signal.aborted;
    const goesOn = (work: () => Promise<void>): void => {
      work().catch((error: unknown) =>
        context.log.error({ error: String(error) }, 'an engine is not watched'),
      );
    };
    goesOn(() => this.#followLoad(isOver));
    goesOn(() => this.#askHealth(isOver));
    goesOn(() => this.#askForToken(isOver));
    for (;;) {
      await delay(look_ms, undefined, { ref: false });
      if (isOver()) return new Promise<never>(() => undefined);
      const verdict = this.#health.look(await this.#look());
      if (verdict.is === 'hung') return verdict.why;
      if ((verdict.is === 'stalled') === this.#isStalled) continue;
      this.#isStalled = verdict.is === 'stalled';
      this.#engine.onVerdict(verdict);
    }
  }

  async #look(): Promise<Parameters<EngineHealth['look']>[0]> {
    const { traffic } = this.#engine.context;
    const { passed, streams, answer_bytes, pace, unanswered } = traffic;
    const { stopped, ended, cpu_ms, is_compiling } = await this.#processes.look();
    const held = pace.begun - pace.flowing;
    const seen = {
      health: this.#answer,
      in_flight: passed - held,
      streams: streams - held,
      unanswered: unanswered.size + Math.max(0, streams - pace.begun),
      flowing: pace.flowing,
      usual_gap_ms: pace.p99_ms,
      answer_bytes,
      activity: this.load.activity,
      stopped,
      ended,
      cpu_ms,
      is_compiling: is_compiling || this.#saysCompilation(),
      has_revived: this.#hasRevived,
    };
    this.#answer = undefined;
    this.#hasRevived = false;
    return seen;
  }

  /** In what its log has more than at the last look; of very much only the end is read. */
  #saysCompilation(): boolean {
    const { log } = this.#engine.child;
    const { bytes } = log;
    if (bytes === this.#read_bytes) return false;
    const lines = log.lines(Math.max(this.#read_bytes, bytes - log_bytes_max), log_bytes_max);
    this.#read_bytes = bytes;
    return lines.some(saysCompilation);
  }

  async #followLoad(isOver: () => boolean): Promise<void> {
    const { adapter, upstream, unit, context } = this.#engine;
    const { metrics_path } = adapter;
    if (metrics_path === undefined || !adapter.parseMetrics) return;
    for (let asked_ms = Number.NEGATIVE_INFINITY; !isOver(); ) {
      const isIdle = context.traffic.in_flight === 0 && this.load.running === 0 && this.load.waiting === 0;
      if (isIdle && performance.now() - asked_ms < idle_metrics_ms) {
        await this.#pause();
        continue;
      }
      asked_ms = performance.now();
      try {
        const { status, text } = await fetchText(upstream, metrics_path, metrics_timeout_ms);
        if (status === 200) this.load = adapter.parseMetrics(text, unit);
        else this.load = { activity: this.load.activity };
        this.in_flight_then = context.traffic.in_flight;
      } catch {
        // The agent's own count of requests is reported then; that it did not answer is no sign of computing.
        this.load = { activity: this.load.activity };
      }
      await this.#pause();
    }
  }

  /** Between two looks at its load. */
  async #pause(): Promise<void> {
    await delay(Math.max(look_ms, this.#engine.context.heartbeat_ms), undefined, { ref: false });
  }

  async #askHealth(isOver: () => boolean): Promise<void> {
    const { adapter, upstream } = this.#engine;
    const { interval_ms, timeout_ms } = this.#health;
    for (;;) {
      // One that has stalled is asked more often: it may go on at any moment.
      await delay(this.#isStalled ? Math.min(look_ms, interval_ms) : interval_ms, undefined, { ref: false });
      if (isOver()) return;
      this.#answer = await checkHealth(upstream, adapter.readiness_path, timeout_ms);
    }
  }

  /** Whether one that has stalled computes again is not to be seen of its streams: it has none any more. */
  async #askForToken(isOver: () => boolean): Promise<void> {
    const { upstream, unit, context } = this.#engine;
    while (!isOver()) {
      await delay(revival_pause_ms, undefined, { ref: false });
      if (!this.#isStalled || isOver()) continue;
      const model = unit.model.name;
      const one = { model, max_tokens: 1, stream: false };
      try {
        const chat = { ...one, messages: [{ role: 'user', content: '1' }] };
        let status = await postJson(upstream, '/v1/chat/completions', chat, revival_timeout_ms);
        // A model without a chat template completes; one that does neither cannot be asked so.
        if (status >= 400 && status < 500)
          status = await postJson(upstream, '/v1/completions', { ...one, prompt: '1' }, revival_timeout_ms);
        if (status >= 200 && status < 300) this.#hasRevived = true;
      } catch (error) {
        context.log.debug({ unit: unit.unit, reason: (error as Error).message }, 'it has not revived');
      }
    }
  }
}

async function checkHealth(upstream: Upstream, path: string, timeout_ms: number): Promise<HealthAnswer> {
  try {
    const { status } = await fetchText(upstream, path, timeout_ms);
    if (status >= 200 && status < 300) return { is: 'well' };
    return { is: 'failed', why: `${path} answers ${status}`, answered: true };
  } catch (error) {
    // Nothing was sent, so nothing is known of the engine: what others do on the node must not end it.
    if (error instanceof HpcserveError && error.code === 'E_AGENT_ENGINE_PORT') return { is: 'well' };
    const { name, message } = error as Error;
    const isSilent = name === 'TimeoutError' || name === 'AbortError';
    const why = isSilent ? `${path} is not answered within ${timeout_ms / 1000} s` : `${path}: ${message}`;
    return { is: 'failed', why, answered: false };
  }
}
