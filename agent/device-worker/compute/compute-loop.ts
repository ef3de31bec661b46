import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import type { Engine, EngineOptions } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { HostedEngine } from './hosted-engine.ts';
import { type IterationOrder, RoundRobin } from './iteration-order.ts';
import type { FromCompute, ToCompute } from './messages.ts';
import { pulse, pulseStates } from './watchdog.ts';

/** Nobody wakes this: to wait on it is to sleep. */
const noSignal = new Int32Array(new SharedArrayBuffer(4));
/** Progress of a load is told at most this often. Lower: smoother; higher: fewer messages. */
const progress_interval_ms = 250;

/**
 * The compute thread's life: between iterations it takes messages, then computes one iteration of one busy
 * engine; where nothing is busy it sleeps until the main thread wakes it. Everything here is synchronous.
 */
export class ComputeLoop {
  private readonly port: MessagePort;
  /** Words of `pulse`. */
  private readonly pulse: Int32Array;
  private readonly openEngine: (options: EngineOptions) => Engine;
  private readonly engines = new Map<string, HostedEngine>();
  private readonly order: IterationOrder<HostedEngine> = new RoundRobin();
  /** Least time of an iteration, ms: the declared speed of an emulated device. */
  private readonly step_ms_min: number;
  private stopped = false;

  constructor(
    port: MessagePort,
    words: Int32Array,
    openEngine: (options: EngineOptions) => Engine,
    step_ms_min = 0,
  ) {
    this.step_ms_min = step_ms_min;
    this.port = port;
    this.pulse = words;
    this.openEngine = openEngine;
  }

  run(): void {
    while (!this.stopped) {
      // Read before the messages are: one that comes in between changes the word, and the wait ends at once.
      const seen = Atomics.load(this.pulse, pulse.signal);
      this.beat(pulseStates.computing);
      this.takeMessages();
      if (this.stopped) break;
      const busy = [...this.engines.values()].filter(({ engine }) => engine.busy);
      if (busy.length > 0) this.step(this.order.next(busy));
      else {
        this.beat(pulseStates.idle);
        Atomics.wait(this.pulse, pulse.signal, seen);
      }
    }
    for (const hosted of this.engines.values()) hosted.close();
    this.engines.clear();
  }

  /** Tells the watchdog that something new has begun. */
  private beat(state: number): void {
    Atomics.store(this.pulse, pulse.state, state);
    Atomics.add(this.pulse, pulse.beats, 1);
  }

  private takeMessages(): void {
    for (;;) {
      const received = receiveMessageOnPort(this.port) as { message: ToCompute } | undefined;
      if (!received) return;
      this.beat(received.message.type === 'load' ? pulseStates.loading : pulseStates.computing);
      this.take(received.message);
    }
  }

  private take(message: ToCompute): void {
    switch (message.type) {
      case 'load':
        this.load(message);
        return;
      case 'unload':
        this.engines.get(message.name)?.close();
        this.engines.delete(message.name);
        this.send({ type: 'unloaded', name: message.name });
        return;
      case 'submit':
        this.submit(message.submission);
        return;
      case 'cancel':
        this.engines.get(message.model)?.cancel(message.id);
        return;
      case 'stop':
        this.stopped = true;
    }
  }

  private load({ name, options, vocabulary, utf8 }: ToCompute & { type: 'load' }): void {
    let told = 0;
    try {
      const engine = this.openEngine({
        ...options,
        on_progress: ({ bytes_loaded, bytes_total, elapsed_ms }) => {
          this.beat(pulseStates.loading);
          if (bytes_loaded < bytes_total && elapsed_ms - told < progress_interval_ms) return;
          told = elapsed_ms;
          this.send({ type: 'progress', name, bytes_loaded, bytes_total });
        },
      });
      this.engines.set(name, new HostedEngine(name, engine, vocabulary, utf8));
      this.send({ type: 'loaded', name, info: engine.info, stats: engine.stats() });
    } catch (error) {
      this.send({ type: 'load_failed', name, error: HpcserveError.from(error).toJSON() });
    }
  }

  private submit(submission: (ToCompute & { type: 'submit' })['submission']): void {
    const { id, model } = submission;
    const hosted = this.engines.get(model);
    try {
      if (!hosted)
        throw new HpcserveError('E_MODEL_NOT_READY', { what: `the model ${model} is not loaded any more` });
      hosted.add(submission);
      this.send({ type: 'admitted', id });
    } catch (error) {
      this.send({ type: 'refused', id, error: HpcserveError.from(error).toJSON() });
    }
  }

  private step(hosted: HostedEngine): void {
    const { name, engine } = hosted;
    const started_ms = performance.now();
    try {
      const { outputs, prefill_tokens, decode_tokens, elapsed_us } = hosted.step();
      const stats = engine.stats();
      this.keepPace(started_ms);
      this.send({ type: 'step', name, outputs, stats, prefill_tokens, decode_tokens, elapsed_us });
    } catch (error) {
      this.engines.delete(name);
      try {
        hosted.close();
      } finally {
        // Only now may the main thread free the vocabulary.
        this.send({ type: 'model_failed', name, error: HpcserveError.from(error).toJSON() });
      }
    }
  }

  private keepPace(started_ms: number): void {
    const left_ms = this.step_ms_min - (performance.now() - started_ms);
    if (left_ms > 0) Atomics.wait(noSignal, 0, 0, left_ms);
  }

  private send(message: FromCompute): void {
    this.port.postMessage(message);
  }
}
