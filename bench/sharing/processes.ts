/**
 * The same at a small size on a real device worker: four models on one device, paced to a declared time per iteration
 * so that two cores measure the scheduling and not each other, beside the same worker when the device belongs to one
 * model at a time. Answers are timed where clients see them.
 */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { Pool } from 'undici';
import type { FromWorker, ToWorker } from '../../agent/device-worker/messages.ts';
import { packageRoot } from '../../host/package-root.ts';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { seededRandom } from '../../solver/simulator/random.ts';
import { type DeviceReport, deviceReportSchema } from '../../spec/device-report.ts';
import { agentPaths } from '../../spec/wire.ts';
import type { BenchResult } from '../result.ts';

const models = ['one', 'two', 'three', 'four'];
const step_ms_min = 20;
const slo = { ttft_ms: 1000, tpot_ms: 120 };
const seconds = 30;
/** Per model, and their bursts. */
const requests_per_s = 2;
const burst_max = 4;
const answer_tokens = 40;
/** A request that is refused asks again so soon, until its first token can only be late. */
const again_ms = 50;

interface Arrival {
  at_ms: number;
  model: string;
}

export async function processBench(log: (line: string) => void): Promise<BenchResult[]> {
  const worker = await SharedWorker.start();
  try {
    const arrivals = draw(7);
    const shared = await serve(worker, arrivals, 'promised', undefined);
    const { scheduler } = await worker.report();
    const exclusive = await serve(worker, arrivals, 'plain', new OneAtATime());
    const share = (100 * scheduler.deciding_ms) / scheduler.computing_ms;
    const admission_us = (1000 * (scheduler.admitting_ms ?? 0)) / (scheduler.admitted + scheduler.refused);
    log(
      `a real worker, ${models.length} models, iterations of ${step_ms_min} ms, ${arrivals.length} requests in ${seconds} s: ${shared} within ${slo.ttft_ms} and ${slo.tpot_ms} ms a token (${scheduler.refused} times refused and asked again), ${exclusive} where the device belongs to one model at a time; deciding took ${share.toFixed(2)} % of iterations, an admission ${admission_us.toFixed(0)} µs on average`,
    );
    return [
      {
        what: `requests within their level, ${models.length} models on one real device (paced)`,
        unit: 'requests',
        ours: shared,
        peer: 'one model at a time',
        theirs: exclusive,
        ratio: shared / Math.max(1, exclusive),
        bar: 'more',
        holds: shared > exclusive,
      },
      {
        what: 'deciding whose turn it is and who is let in, share of iterations there',
        unit: '%',
        ours: share,
        peer: '',
        theirs: null,
        ratio: null,
        bar: '≤ 2 %',
        holds: share <= 2,
      },
      {
        what: 'one admission there, mean over first calls and refusals (at 64 running requests: above)',
        unit: 'µs',
        ours: admission_us,
        peer: '',
        theirs: null,
        ratio: null,
        bar: '',
        holds: null,
      },
    ];
  } finally {
    await worker.stop();
  }
}

function draw(seed: number): Arrival[] {
  const random = seededRandom(seed);
  const arrivals: Arrival[] = [];
  for (const model of models)
    for (let at_ms = 0; ; ) {
      const burst = 1 + Math.floor(burst_max * random());
      at_ms += (-Math.log(1 - random()) * 1000 * burst) / requests_per_s;
      if (at_ms > seconds * 1000) break;
      for (let index = 0; index < burst; index++) arrivals.push({ at_ms, model });
    }
  return arrivals.sort((a, b) => a.at_ms - b.at_ms);
}

/** @returns requests whose first token came in time and whose further ones kept the pace on average */
async function serve(
  worker: SharedWorker,
  arrivals: readonly Arrival[],
  kind: 'promised' | 'plain',
  gate: OneAtATime | undefined,
): Promise<number> {
  const start = performance.now();
  const met = await Promise.all(
    arrivals.map(async ({ at_ms, model }, index) => {
      await delay(at_ms);
      const due_ms = start + at_ms + slo.ttft_ms;
      const leave = await gate?.enter(model);
      try {
        while (performance.now() < due_ms) {
          const times = await worker.ask(`${kind} ${model}`, index);
          if (times === undefined) await delay(again_ms);
          else
            return (
              times.first_ms <= due_ms &&
              (times.last_ms - times.first_ms) / (answer_tokens - 1) <= slo.tpot_ms
            );
        }
        return false;
      } finally {
        leave?.();
      }
    }),
  );
  return met.filter(Boolean).length;
}

/** The device is one model's until its requests have ended; then the model's that waits longest. */
class OneAtATime {
  #model: string | undefined;
  #inside = 0;
  #waiting: { model: string; enter: () => void }[] = [];

  async enter(model: string): Promise<() => void> {
    // Nobody passes those who wait already, or one model would keep the device.
    if (this.#inside > 0 && (this.#model !== model || this.#waiting.length > 0))
      await new Promise<void>((enter) => this.#waiting.push({ model, enter }));
    else this.#inside++;
    this.#model = model;
    return () => this.#leave();
  }

  #leave(): void {
    if (--this.#inside > 0) return;
    const next = this.#waiting[0]?.model;
    if (next === undefined) return;
    this.#model = next;
    const entering = this.#waiting.filter(({ model }) => model === next);
    this.#waiting = this.#waiting.filter(({ model }) => model !== next);
    this.#inside = entering.length;
    for (const { enter } of entering) enter();
  }
}

class SharedWorker {
  readonly #folder: string;
  readonly #process: ReturnType<typeof fork>;
  readonly #pool: Pool;

  private constructor(folder: string, process: ReturnType<typeof fork>) {
    this.#folder = folder;
    this.#process = process;
    this.#pool = new Pool('http://worker', { socketPath: join(folder, 'w.sock'), connections: 256 });
  }

  static async start(): Promise<SharedWorker> {
    const folder = mkdtempSync(join(tmpdir(), 'hpcb-'));
    const child = fork(join(packageRoot, 'dist/agent/device-worker/main.js'), [], {
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    });
    const worker = new SharedWorker(folder, child);
    const said = async (fits: (message: FromWorker) => boolean): Promise<void> => {
      for (;;) {
        const [message] = (await once(child, 'message', { signal: AbortSignal.timeout(60_000) })) as [
          FromWorker,
        ];
        if (fits(message)) return;
        if (message.type === 'fatal') throw new Error(message.error.what);
      }
    };
    const send = (message: ToWorker): boolean => child.send(message);
    const listening = said(({ type }) => type === 'listening');
    send({
      type: 'configure',
      socket_path: join(folder, 'w.sock'),
      pool_bytes: 2 ** 30,
      threads: 1,
      heartbeat_ms: 1000,
      device: 'paced',
      step_ms_min,
    });
    await listening;
    for (const [seed, name] of models.entries()) {
      const model_path = join(folder, `${name}.gguf`);
      await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed });
      for (const kind of ['promised', 'plain'] as const) {
        const serving = said((message) => message.type === 'model' && message.state === 'serving');
        send({
          type: 'load',
          model: {
            name: `${kind} ${name}`,
            aliases: [],
            model_path,
            context_tokens: 512,
            max_sequences: 16,
            prefill_chunk_tokens: 256,
            kv_tokens: 8192,
            kv_type: 'f16',
            batch_invariant: false,
            ...(kind === 'promised' && { slo }),
          },
        });
        await serving;
      }
    }
    return worker;
  }

  /** @returns when the first and the last token came; undefined where it was refused */
  async ask(model: string, seed: number): Promise<{ first_ms: number; last_ms: number } | undefined> {
    const answer = await this.#pool.request({
      method: 'POST',
      path: '/v1/completions',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        model,
        prompt: `${seed} ${'why do people wait in a queue '.repeat(8)}`,
        max_tokens: answer_tokens,
        min_tokens: answer_tokens,
        seed,
        stream: true,
      }),
    });
    if (answer.statusCode === 429) {
      await answer.body.dump();
      return undefined;
    }
    if (answer.statusCode !== 200) throw new Error(`${answer.statusCode}: ${await answer.body.text()}`);
    let first_ms: number | undefined;
    let last_ms = 0;
    for await (const _ of answer.body) {
      last_ms = performance.now();
      first_ms ??= last_ms;
    }
    return { first_ms: first_ms!, last_ms };
  }

  async report(): Promise<DeviceReport> {
    const answer = await this.#pool.request({ method: 'GET', path: agentPaths.device });
    return deviceReportSchema.parse(await answer.body.json());
  }

  async stop(): Promise<void> {
    await this.#pool.destroy();
    const ended = once(this.#process, 'exit');
    this.#process.send({ type: 'stop' } satisfies ToWorker);
    await ended;
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
