/** Device workers whose pipeline changes, told what to do as a node agent tells them. */
import { type ChildProcess, fork } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Pool } from 'undici';
import type { FromWorker, NativeModel, ToWorker } from '../../agent/device-worker/messages.ts';
import type { RefactoringReport } from '../../agent/pipeline/live-refactoring.ts';
import { packageRoot } from '../../host/package-root.ts';
import type { PipelineLayout } from '../../solver/refactoring/layout.ts';

/** Nothing takes longer on a machine that works. */
const message_ms_max = 120_000;

interface Worker {
  process: ChildProcess;
  said: FromWorker[];
  listeners: Set<() => void>;
}

/** Device workers with one model, and how they are asked. */
export class BenchWorkers {
  readonly #folder = mkdtempSync(join(tmpdir(), 'hpcb-'));
  readonly #workers = new Map<string, Worker>();
  #model: Omit<NativeModel, 'pipeline'>;
  #pool: Pool | undefined;
  #layout: PipelineLayout = [];
  #rings = 0;

  constructor(model: Omit<NativeModel, 'pipeline'>) {
    this.#model = model;
  }

  use(model_path: string): void {
    this.#model = { ...this.#model, model_path };
  }

  get folder(): string {
    return this.#folder;
  }

  async start(device: string, step_ms_min: number): Promise<void> {
    const child = fork(join(packageRoot, 'dist/agent/device-worker/main.js'), [], {
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    });
    const worker: Worker = { process: child, said: [], listeners: new Set() };
    this.#workers.set(device, worker);
    child.on('message', (message: FromWorker) => {
      worker.said.push(message);
      for (const listener of worker.listeners) listener();
    });
    this.#send(device, {
      type: 'configure',
      socket_path: join(this.#folder, `${device}.sock`),
      pool_bytes: 2 ** 29,
      threads: 1,
      heartbeat_ms: 1000,
      device,
      step_ms_min,
    });
    await this.#said(device, ({ type }) => type === 'listening');
  }

  async open(layout: PipelineLayout): Promise<void> {
    this.#layout = layout;
    const first = layout[0]!.device;
    for (const [device, model] of this.#models(layout)) this.#send(device, { type: 'load', model });
    const ended = (await this.#said(
      first,
      (message) => message.type === 'model' && ['serving', 'failed'].includes(message.state),
    )) as FromWorker & { type: 'model' };
    if (ended.error) throw new Error(ended.error.what);
    this.#pool = new Pool('http://worker', {
      socketPath: join(this.#folder, `${first}.sock`),
      connections: 64,
    });
  }

  async refactor(to: PipelineLayout): Promise<RefactoringReport> {
    const models = this.#models(to);
    const refactoring = this.#rings;
    const first = to[0]!.device;
    for (const [device, model] of models)
      if (device !== first) this.#send(device, { type: 'prepare', refactoring, model });
    this.#send(first, { type: 'refactor', refactoring, to, model: models.get(first)! });
    const told = (await this.#said(
      first,
      (message) => message.type === 'refactored' && message.refactoring === refactoring,
    )) as FromWorker & { type: 'refactored' };
    if (!told.report) throw new Error(told.error?.what ?? 'no report');
    const before = this.#layout;
    if (told.report.outcome.kind === 'refactored') this.#layout = to;
    const left = new Set([...before, ...to].map(({ device }) => device));
    for (const { device } of this.#layout) left.delete(device);
    for (const device of left) this.#send(device, { type: 'unload', name: this.#model.name });
    return told.report;
  }

  /** @returns the text of an answer; undefined where the request failed */
  async ask(prompt: string, max_tokens: number): Promise<string | undefined> {
    const { statusCode, body } = await this.#pool!.request({
      method: 'POST',
      path: '/v1/completions',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: this.#model.name, prompt, max_tokens, temperature: 0, ignore_eos: true }),
      headersTimeout: 0,
      bodyTimeout: 0,
    });
    const text = await body.text();
    return statusCode === 200 ? (JSON.parse(text).choices[0].text as string) : undefined;
  }

  async stop(): Promise<void> {
    await this.#pool?.destroy();
    for (const { process } of this.#workers.values()) process.kill('SIGKILL');
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #send(device: string, message: ToWorker): void {
    this.#workers.get(device)!.process.send(message);
  }

  #said(device: string, fits: (message: FromWorker) => boolean): Promise<FromWorker> {
    const { said, listeners } = this.#workers.get(device)!;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new Error(`the worker of ${device} says nothing`)),
        message_ms_max,
      );
      const look = (): void => {
        const found = said.find((message) => fits(message) || message.type === 'fatal');
        if (!found) return;
        clearTimeout(timer);
        listeners.delete(look);
        if (found.type === 'fatal' && !fits(found)) reject(new Error(found.error.what));
        else resolve(found);
      };
      listeners.add(look);
      look();
    });
  }

  #models(layout: PipelineLayout): Map<string, NativeModel> {
    const ring = ++this.#rings;
    const socket = (stage: number): string => join(this.#folder, `${ring}-${stage % layout.length}`);
    return new Map(
      layout.map(({ device, begin, end }, stage) => {
        const place = {
          stage,
          stages: layout.length,
          begin,
          end,
          listen: socket(stage),
          next: socket(stage + 1),
        };
        return [device, { ...this.#model, pipeline: { ...place, device, device_identity: device } }];
      }),
    );
  }
}
