/** Real device workers whose pipelines change, told what to do as their agent tells them. */
import type { ForkOptions } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { FromWorker, NativeModel, ToWorker } from '../../../agent/device-worker/messages.ts';
import type { PipelinePlace } from '../../../agent/pipeline/pipeline-place.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import type { PipelineLayout } from '../../../solver/refactoring/layout.ts';
import { WorkerHarness } from '../device-worker/support.ts';

const n_layer = 8;
const n_operators = 2 * n_layer + 2;

export async function eightLayers(): Promise<string> {
  const folder = join(tmpdir(), `hpcserve-test-models-${process.getuid?.() ?? 0}`);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const path = join(folder, 'tiny-llama-8-layers-Q8_0-1.gguf');
  if (existsSync(path)) return path;
  const partial = `${path}.${process.pid}`;
  const shape = { ...synthPresets['tiny-llama']!, n_layer, n_ctx_train: 8192 };
  await synthesize({ path: partial, shape, quantization: 'Q8_0', seed: 1 });
  renameSync(partial, path);
  return path;
}

/** Stages of whole layers on these devices: so many layers each. */
export function layersOn(devices: string, ...layers: number[]): PipelineLayout {
  let next = 0;
  return [...devices].map((device, index) => {
    const begin = index === 0 ? 0 : 1 + 2 * next;
    next += layers[index]!;
    return { device, begin, end: index === layers.length - 1 ? n_operators : 1 + 2 * next };
  });
}

export type Refactored = FromWorker & { type: 'refactored' };

export interface WorkerSetup {
  step_ms_min?: number;
  model?: Partial<NativeModel>;
  /** How their processes are started. */
  fork?: ForkOptions;
  configuration?: Partial<ToWorker & { type: 'configure' }>;
}

/** Device workers, and the one pipeline that they have. */
export class WorkerPipelines {
  readonly workers = new Map<string, WorkerHarness>();
  readonly #folder = mkdtempSync(join(tmpdir(), 'hpcr-'));
  /** Whole. */
  readonly model: NativeModel;
  readonly #setup: WorkerSetup;
  layout: PipelineLayout = [];
  #rings = 0;
  /** To devices that are yet to hear of a change. */
  readonly #untold = new Map<string, ToWorker>();

  constructor(model_path: string, setup: WorkerSetup = {}) {
    this.#setup = setup;
    this.model = {
      name: 'm',
      aliases: [],
      model_path,
      context_tokens: 1024,
      max_sequences: 16,
      prefill_chunk_tokens: 64,
      kv_tokens: 4096,
      kv_type: 'f16',
      batch_invariant: true,
      kernels: 'own',
      ...setup.model,
    };
  }

  get coordinator(): WorkerHarness {
    return this.workers.get(this.layout[0]!.device)!;
  }

  async start(devices: string): Promise<void> {
    await Promise.all([...devices].map((device) => this.#start(device)));
  }

  /** @returns once it serves */
  async open(layout: PipelineLayout): Promise<void> {
    this.layout = layout;
    for (const [device, model] of this.#models(layout))
      this.workers.get(device)!.send({ type: 'load', model });
    await this.coordinator.message(
      (message) => message.type === 'model' && message.name === 'm' && message.state === 'serving',
      120_000,
    );
  }

  /**
   * Tells all devices of the layout.
   * @param late behind the first, those that `tellLate` tells
   * @returns the number of the change
   */
  begin(to: PipelineLayout, late = ''): number {
    const refactoring = this.#rings;
    const models = this.#models(to);
    for (const [device, model] of models) {
      if (device === to[0]!.device) continue;
      this.#untold.set(device, { type: 'prepare', refactoring, model });
      if (!late.includes(device)) this.tellLate(device);
    }
    this.coordinator.send({ type: 'refactor', refactoring, to, model: models.get(to[0]!.device)! });
    return refactoring;
  }

  tellLate(device: string): void {
    this.workers.get(device)!.send(this.#untold.get(device)!);
    this.#untold.delete(device);
  }

  /** What came of it; devices that are in no layout any more unload. */
  async ended(refactoring: number, to: PipelineLayout): Promise<Refactored> {
    const told = (await this.coordinator.message(
      (message) => message.type === 'refactored' && message.refactoring === refactoring,
      120_000,
    )) as Refactored;
    const before = this.layout;
    if (told.report?.outcome.kind === 'refactored') this.layout = to;
    for (const { device } of [...before, ...to])
      if (!this.layout.some((stage) => stage.device === device)) this.#unload(device);
    return told;
  }

  #unload(device: string): void {
    const worker = this.workers.get(device);
    if (worker?.process.connected) worker.send({ type: 'unload', name: 'm' });
  }

  async refactor(to: PipelineLayout): Promise<Refactored> {
    return this.ended(this.begin(to), to);
  }

  async close(): Promise<void> {
    await Promise.all([...this.workers.values()].map((worker) => worker.close()));
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async #start(device: string): Promise<void> {
    const { step_ms_min = 0, configuration, fork } = this.#setup;
    const worker = new WorkerHarness({}, fork);
    this.workers.set(device, worker);
    await worker.configure({}, { pool_bytes: 2 ** 28, step_ms_min, ...configuration });
  }

  #models(layout: PipelineLayout): Map<string, NativeModel> {
    const ring = ++this.#rings;
    const socket = (stage: number): string => join(this.#folder, `${ring}-${stage % layout.length}`);
    return new Map(
      layout.map(({ device, begin, end }, stage) => {
        const pipeline: PipelinePlace = {
          stage,
          stages: layout.length,
          begin,
          end,
          listen: socket(stage),
          next: socket(stage + 1),
          device: `device ${device}`,
          device_identity: device,
        };
        return [device, { ...this.model, pipeline }];
      }),
    );
  }
}
