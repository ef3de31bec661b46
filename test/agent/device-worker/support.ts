import { type ChildProcess, type ForkOptions, fork } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';
import { Agent, fetch as undiciFetch } from 'undici';
import type { FromWorker, NativeModel, ToWorker } from '../../../agent/device-worker/messages.ts';
import type { WorkerLimits } from '../../../agent/device-worker/worker-options.ts';
import { packageRoot } from '../../../host/package-root.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import type { ModelLoad } from '../../../spec/agent-state.ts';
import { test_device } from '../engine/test-backend.ts';

/**
 * What has not come by then hangs; no test promises a time by it. A load of two seconds proves, races and measures its
 * kernels, and takes 20 s beside six processes that compute all the time; kernels of a device are compiled besides.
 */
const deadline_default_ms = test_device === undefined ? 50_000 : 120_000;
/** Of a device the worker takes all of its pool at once. */
const pool_default_bytes = test_device === undefined ? 2 ** 30 : 2 ** 28;

export interface RawAnswer {
  status: number;
  headers: IncomingHttpHeaders;
  text: string;
}

/** A real device worker, started from dist/ as a node agent starts it, and a client that asks it as OpenAI's does. */
export class WorkerHarness {
  readonly folder = mkdtempSync(join(tmpdir(), 'hpcw-'));
  readonly socket = join(this.folder, 'w.sock');
  readonly process: ChildProcess;
  readonly client: OpenAI;
  readonly exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  readonly #agent = new Agent({ connect: { socketPath: this.socket } });
  readonly #messages: FromWorker[] = [];
  readonly #waiting = new Set<() => void>();
  #log = '';

  /**
   * @param environment of the worker, beside this process's own
   * @param apart how it is started, where it is to be on another node: `test/agent/pipeline/apart.ts`
   */
  constructor(environment: NodeJS.ProcessEnv = {}, apart: ForkOptions = {}) {
    this.process = fork(join(packageRoot, 'dist/agent/device-worker/main.js'), [], {
      ...apart,
      env: { ...process.env, ...environment },
      serialization: 'advanced',
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    });
    for (const stream of [this.process.stdout!, this.process.stderr!])
      stream.on('data', (chunk) => {
        this.#log += chunk;
        for (const check of this.#waiting) check();
      });
    this.process.on('message', (message: FromWorker) => {
      this.#messages.push(message);
      for (const check of this.#waiting) check();
    });
    this.exited = new Promise((resolve) =>
      this.process.on('exit', (code, signal) => {
        resolve({ code, signal });
        for (const check of this.#waiting) check();
      }),
    );
    this.client = new OpenAI({
      baseURL: 'http://worker/v1',
      apiKey: 'unused',
      maxRetries: 0,
      fetch: (url, init) =>
        undiciFetch(url as string, {
          ...(init as object),
          dispatcher: this.#agent,
        }) as unknown as Promise<Response>,
    });
  }

  send(message: ToWorker): void {
    this.process.send(message, (error) => {
      // One that was killed just now may still have a channel, whose other end is gone.
      if (error && !this.process.killed) throw error;
    });
  }

  async configure(
    limits: Partial<WorkerLimits> = {},
    more: Partial<ToWorker & { type: 'configure' }> = {},
  ): Promise<FromWorker & { type: 'listening' }> {
    const configuration: ToWorker & { type: 'configure' } = {
      type: 'configure',
      socket_path: this.socket,
      pool_bytes: pool_default_bytes,
      threads: 1,
      heartbeat_ms: 50,
      device: 'test',
      limits,
      ...more,
    };
    if (test_device !== undefined) configuration.ggml_device ??= test_device;
    this.send(configuration);
    return (await this.message((message) => message.type === 'listening')) as FromWorker & {
      type: 'listening';
    };
  }

  /** @returns once the model serves. */
  async load(
    model: Partial<NativeModel> & { name: string; model_path: string },
    deadline_ms = deadline_default_ms,
  ): Promise<void> {
    this.send({
      type: 'load',
      model: {
        aliases: [],
        context_tokens: 1024,
        max_sequences: 8,
        prefill_chunk_tokens: 128,
        kv_tokens: 4096,
        kv_type: 'f16',
        batch_invariant: false,
        ...model,
      },
    });
    const ended = (await this.message(
      (message) =>
        message.type === 'model' &&
        message.name === model.name &&
        ['serving', 'failed'].includes(message.state),
      deadline_ms,
    )) as FromWorker & { type: 'model' };
    if (ended.state === 'failed') throw new Error(JSON.stringify(ended.error));
  }

  /** The first message that fits, of those that came and will come. */
  async message(
    fits: (message: FromWorker) => boolean,
    deadline_ms = deadline_default_ms,
  ): Promise<FromWorker> {
    return this.#until(() => this.#messages.find(fits), 'a message', deadline_ms);
  }

  /** What it logged so far. */
  get lines(): Record<string, unknown>[] {
    const whole = this.#log.split('\n').filter((line) => line.startsWith('{') && line.endsWith('}'));
    return whole.map((line) => JSON.parse(line));
  }

  /** Lines of its log that fit, once there are so many. */
  async logged(
    fits: (line: Record<string, unknown>) => boolean,
    count: number,
  ): Promise<Record<string, unknown>[]> {
    return this.#until(() => {
      const found = this.lines.filter(fits);
      return found.length >= count ? found : undefined;
    }, `${count} lines of its log`);
  }

  /** A load report, newer than now, that fits. */
  async report(name: string, fits: (load: ModelLoad) => boolean): Promise<ModelLoad> {
    const from = this.#messages.length;
    return this.#until(() => {
      for (const message of this.#messages.slice(from)) {
        if (message.type !== 'load_report') continue;
        const load = message.models.find((model) => model.name === name);
        if (load && fits(load)) return load;
      }
      return undefined;
    }, `a load report of ${name}`);
  }

  async post(path: string, body: unknown, headers: Record<string, string> = {}): Promise<RawAnswer> {
    const bytes = typeof body === 'string' ? body : JSON.stringify(body);
    return this.request('POST', path, bytes, { 'content-type': 'application/json', ...headers });
  }

  request(
    method: string,
    path: string,
    body?: string,
    headers: Record<string, string> = {},
  ): Promise<RawAnswer> {
    return new Promise((resolve, reject) => {
      const request = httpRequest({ socketPath: this.socket, method, path, headers }, (response) => {
        let text = '';
        response.setEncoding('utf8');
        response.on('data', (chunk) => {
          text += chunk;
        });
        response.on('end', () => resolve({ status: response.statusCode!, headers: response.headers, text }));
        response.on('error', reject);
      });
      request.on('error', reject);
      request.end(body);
    });
  }

  /** The JSON of every event of a stream. */
  async stream(path: string, body: Record<string, unknown>, headers: Record<string, string> = {}) {
    const { status, text } = await this.post(path, { ...body, stream: true }, headers);
    if (status !== 200) throw new Error(`${status}: ${text}`);
    const events = text.split('\n\n').filter((event) => event !== '');
    if (events.pop() !== 'data: [DONE]') throw new Error(`no [DONE] at the end of ${text.slice(-300)}`);
    return events.map((event) => JSON.parse(event.replace(/^data: /, '')));
  }

  async close(): Promise<void> {
    if (this.process.exitCode === null && this.process.signalCode === null) {
      if (this.process.connected) this.send({ type: 'stop' });
      else this.process.kill('SIGKILL');
    }
    await this.exited;
    await this.#agent.close();
    rmSync(this.folder, { recursive: true, force: true });
  }

  #until<T>(look: () => T | undefined, what: string, deadline_ms = deadline_default_ms): Promise<T> {
    return new Promise((resolve, reject) => {
      const finish = (act: () => void) => {
        clearTimeout(timer);
        this.#waiting.delete(check);
        act();
      };
      const fail = (why: string) =>
        finish(() => reject(new Error(`${why} while waiting for ${what}\n${this.#log}`)));
      const check = () => {
        const found = look();
        if (found !== undefined) finish(() => resolve(found));
        else if (this.process.exitCode !== null || this.process.signalCode !== null)
          fail(`the worker ended (${this.process.signalCode ?? this.process.exitCode})`);
      };
      const timer = setTimeout(() => fail(`${deadline_ms} ms passed`), deadline_ms);
      this.#waiting.add(check);
      check();
    });
  }
}

/** Writes a tiny model into a folder. @returns its path */
export async function tinyModel(folder: string, preset: string, seed = 1): Promise<string> {
  const path = join(folder, `${preset}-${seed}.gguf`);
  await synthesize({ path, shape: synthPresets[preset]!, quantization: 'F16', seed });
  return path;
}
