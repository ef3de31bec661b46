/** Pipelines within one process whose layout changes: real stages, frames and protocol; rings are arrays. */
import type { Backend } from '../../../agent/backend/backend.ts';
import { LayerKv } from '../../../agent/engine/layer-kv.ts';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { enumerateOperators } from '../../../agent/engine/operators.ts';
import { OwnKvStorage } from '../../../agent/engine/own-kv-storage.ts';
import { Stage } from '../../../agent/engine/stage.ts';
import { stageOptions } from '../../../agent/engine/stage-options.ts';
import { ChangingExecutor } from '../../../agent/pipeline/changing-executor.ts';
import { DeviceStages } from '../../../agent/pipeline/device-stages.ts';
import type { FrameBytes } from '../../../agent/pipeline/frame.ts';
import type { FramePort } from '../../../agent/pipeline/frame-port.ts';
import { LiveRefactoring, type RefactoringReport } from '../../../agent/pipeline/live-refactoring.ts';
import { PipelineOpening } from '../../../agent/pipeline/open-pipeline.ts';
import { PipelineExecutor } from '../../../agent/pipeline/pipeline-executor.ts';
import { factsOf, type ToldFacts } from '../../../agent/pipeline/pipeline-stage.ts';
import type { RefactoringBounds } from '../../../agent/pipeline/refactoring-bounds.ts';
import { SortedPort } from '../../../agent/pipeline/sorted-port.ts';
import { monotonic_ms } from '../../../host/clock.ts';
import { HeldLayouts } from '../../../solver/refactoring/held-layouts.ts';
import type { PipelineLayout } from '../../../solver/refactoring/layout.ts';
import type { EngineOptions } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { testBackend } from '../engine/test-backend.ts';
import type { DelayedTransfers } from './delayed-transfers.ts';
import { toldFacts } from './support.ts';

/** Sees each frame on its way: what arrives, in order, or nothing. */
export type Tamper = (
  frame: FrameBytes,
  from: string,
  to: string,
) => FrameBytes | readonly FrameBytes[] | undefined;

/** Devices of one ring; who is lost breaks it everywhere. */
class ArrayRing {
  readonly #names: readonly string[];
  readonly #queues: FrameBytes[][];
  readonly #tamper: () => Tamper;
  broken = false;

  constructor(names: readonly string[], tamper: () => Tamper) {
    this.#names = names;
    this.#queues = names.map(() => []);
    this.#tamper = tamper;
  }

  port(name: string, idle: () => boolean): FramePort {
    const at = this.#names.indexOf(name);
    const next = (at + 1) % this.#names.length;
    const own = this.#queues[at]!;
    const poll = (): FrameBytes | undefined => {
      if (this.broken)
        throw new HpcserveError('E_STAGE_LOST', { what: 'broken', because: 'a stage is gone' });
      return own.shift();
    };
    return {
      isUp: true,
      get came_ms() {
        return monotonic_ms();
      },
      poll,
      receive: () => {
        for (;;) {
          const frame = poll();
          if (frame) return frame;
          if (!idle()) throw new HpcserveError('E_STAGE_LOST', { what: 'nothing is on its way' });
        }
      },
      send: (frame) => {
        const arrives = this.#tamper()(frame, this.#names[at]!, this.#names[next]!);
        if (arrives) this.#queues[next]!.push(...[arrives].flat());
      },
      close: () => {
        this.broken = true;
      },
    };
  }
}

/** One pipeline, its devices and rings, and the change that is under way. */
export class TestPipelines {
  readonly engine: NativeEngine;
  readonly executor: ChangingExecutor;
  readonly held = new Map<string, DeviceStages>();
  readonly bounds: Partial<RefactoringBounds>;
  /** Of devices that have room for less than the others. */
  readonly kv_tokens = new Map<string, number>();
  /** Of devices with another build than the others. */
  readonly builds: Map<string, string>;
  tamper: Tamper = (frame) => frame;
  change: LiveRefactoring | undefined;
  layout: PipelineLayout;
  readonly #options: EngineOptions;
  readonly #file: ReturnType<typeof openModelFile>;
  readonly #kv = new Map<string, LayerKv>();
  readonly #rings: { ring: ArrayRing; names: readonly string[] }[] = [];
  readonly #killed: string[] = [];
  readonly #beside: DelayedTransfers | undefined;
  /** The coordinator does nothing but wait. */
  #waits = false;
  #changes = 0;

  /** @param beside how rows go beside the rings; absent: they do not */
  constructor(
    options: EngineOptions,
    layout: PipelineLayout,
    bounds: Partial<RefactoringBounds> = {},
    beside?: DelayedTransfers,
    builds = new Map<string, string>(),
  ) {
    this.#beside = beside;
    this.builds = builds;
    if (beside) {
      beside.targetOf = (device) => this.held.get(device) ?? this.change;
      // The coordinator is asked of rows between its iterations.
      beside.answers = (device) => !this.#waits || device !== layout[0]!.device;
    }
    this.#options = options;
    this.#file = openModelFile(options.model_path);
    this.layout = layout;
    this.bounds = { look_ms: 0, ...bounds };
    const ring = this.#ring(layout);
    layout.slice(1).forEach(({ device, begin, end }, index) => {
      const held = this.#newHeld(device, { begin, end });
      held.add(
        this.#stage(device, begin, end),
        { stage: index + 1, stages: layout.length },
        this.#port(ring, device),
      );
    });
    const first = this.#stage(layout[0]!.device, layout[0]!.begin, layout[0]!.end);
    this.executor = new ChangingExecutor(this.#open(first, ring), this.#kvOf(layout[0]!.device));
    const backend = this.#backendOf(layout[0]!.device);
    this.engine = new NativeEngine(options, backend, { executor: this.executor });
  }

  get n_operators(): number {
    return enumerateOperators(this.#file.model.n_layer).length;
  }

  /** Begins to change the layout. */
  refactor(to: PipelineLayout): LiveRefactoring {
    const id = ++this.#changes;
    const ring = this.#ring(to);
    to.slice(1).forEach(({ device, begin, end }, index) => {
      const held = this.held.get(device) ?? this.#newHeld(device);
      const place = { stage: index + 1, stages: to.length };
      held.prepare(id, this.#stage(device, begin, end), place, this.#port(ring, device));
    });
    const [own] = to;
    const port = to.length > 1 ? new SortedPort(this.#port(ring, own!.device)) : undefined;
    this.change = new LiveRefactoring({
      id,
      executor: this.executor,
      sequences: this.engine,
      to,
      loading: {
        advance: () => this.#stage(own!.device, own!.begin, own!.end),
        abort: () => undefined,
      },
      told: this.#told(own!.device),
      port,
      transfers: this.#beside?.of(own!.device),
      wait: () => {
        this.#waits = true;
        this.serve();
        this.#waits = false;
      },
      bounds: this.bounds,
    });
    return this.change;
  }

  /** Between two iterations. @returns the report, once the change has ended */
  advance(): RefactoringReport | undefined {
    this.serve();
    this.change?.advance(true);
    const report = this.change?.report;
    if (!report) return undefined;
    const to = report.outcome.kind === 'refactored' ? this.#rings.at(-1)!.names : undefined;
    this.change = undefined;
    // What agents do: devices that are in no layout any more unload.
    const names = to ?? this.layout.map(({ device }) => device);
    for (const [device, held] of [...this.held])
      if (!names.includes(device)) {
        this.held.delete(device);
        held.free();
      }
    return report;
  }

  /** Every device does what is there for it. @returns whether there was anything */
  serve(): boolean {
    for (const device of this.#killed.splice(0)) {
      this.held.get(device)!.free();
      this.held.delete(device);
      this.#beside?.lose(device);
      for (const { ring, names } of this.#rings) if (names.includes(device)) ring.broken = true;
    }
    let any = this.#beside?.step() ?? false;
    for (const held of [...this.held.values()]) if (held.serve()) any = true;
    return any;
  }

  /** Before it does anything more. */
  kill(device: string): void {
    this.#killed.push(device);
  }

  close(): void {
    this.engine.close();
    for (const held of this.held.values()) held.free();
  }

  #open(first: Stage, ring: ArrayRing): PipelineExecutor {
    const { device } = this.layout[0]!;
    const told = this.#told(device);
    if (this.layout.length === 1)
      return new PipelineExecutor(first, undefined, [{ ...factsOf(first, 0, told), epoch: 0 }], 1);
    const opening = new PipelineOpening(first, this.#port(ring, device), told);
    for (let turn = 0; turn < 10; turn++) {
      const executor = opening.advance();
      if (executor) return executor;
      this.serve();
    }
    throw new Error('the pipeline did not open');
  }

  #newHeld(device: string, stage?: { begin: number; end: number }): DeviceStages {
    const layouts = new HeldLayouts(0, stage);
    const held = new DeviceStages(device, this.#told(device), layouts, this.#beside?.of(device));
    this.held.set(device, held);
    return held;
  }

  #told(device: string): ToldFacts {
    const build = this.builds.get(device) ?? 'this';
    const told = { ...toldFacts(this.#options, 0), build, device, device_identity: device };
    return this.#beside ? { ...told, session: device } : told;
  }

  #ring(layout: PipelineLayout): ArrayRing {
    const names = layout.map(({ device }) => device);
    const ring = new ArrayRing(names, () => this.tamper);
    this.#rings.push({ ring, names });
    return ring;
  }

  #port(ring: ArrayRing, device: string): FramePort {
    return ring.port(device, () => this.serve());
  }

  #backendOf(device: string): Backend {
    return this.#beside?.backendOf(device) ?? testBackend();
  }

  #kvOf(device: string): LayerKv {
    const known = this.#kv.get(device);
    if (known) return known;
    const kv =
      this.#beside?.poolOf(device).layerKv('m') ??
      new LayerKv({ open: (shape) => new OwnKvStorage(testBackend(), shape) });
    this.#kv.set(device, kv);
    return kv;
  }

  #stage(device: string, begin: number, end: number): Stage {
    const kv_tokens = this.kv_tokens.get(device) ?? this.#options.kv_tokens;
    const options = stageOptions({ ...this.#options, kv_tokens }, { kv: this.#kvOf(device) });
    return new Stage(this.#backendOf(device), this.#file, { ...options, range: { begin, end } });
  }
}
