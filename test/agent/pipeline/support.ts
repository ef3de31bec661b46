/** A pipeline within one process: real stages and real frames, and a ring that is an array. */
import { crc32 } from 'node:zlib';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { enumerateOperators } from '../../../agent/engine/operators.ts';
import { Stage } from '../../../agent/engine/stage.ts';
import { stageOptions } from '../../../agent/engine/stage-options.ts';
import type { FrameBytes } from '../../../agent/pipeline/frame.ts';
import type { FramePort } from '../../../agent/pipeline/frame-port.ts';
import { modelIdentity } from '../../../agent/pipeline/model-identity.ts';
import { PipelineOpening } from '../../../agent/pipeline/open-pipeline.ts';
import type { PipelineExecutor } from '../../../agent/pipeline/pipeline-executor.ts';
import { PipelineStage, type ToldFacts } from '../../../agent/pipeline/pipeline-stage.ts';
import { monotonic_ms } from '../../../host/clock.ts';
import type { EngineOptions } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { testBackend } from '../engine/test-backend.ts';

/** Stages compute when the coordinator waits for them, and not before. */
export class ArrayRing implements FramePort {
  readonly isUp = true;
  readonly stages: PipelineStage[];
  /** Frames on their way to each stage, and behind the last of them to the coordinator. */
  readonly queues: FrameBytes[][];
  /** Sees each frame that leaves for a stage, and gives what arrives there. */
  tamper: (frame: FrameBytes, stage: number) => FrameBytes = (frame) => frame;
  frames_max = 0;

  /** Nothing lies here: stages compute when they are asked. */
  get came_ms(): number {
    return monotonic_ms();
  }

  constructor(stages: PipelineStage[]) {
    this.stages = stages;
    this.queues = Array.from({ length: stages.length + 1 }, () => []);
  }

  send(frame: FrameBytes): void {
    this.queues[0]!.push(this.tamper(frame, 1));
    const frames = this.queues.reduce((sum, { length }) => sum + length, 0);
    this.frames_max = Math.max(this.frames_max, frames);
  }

  poll(): FrameBytes | undefined {
    this.stages.forEach((stage, index) => {
      for (let frame = this.queues[index]!.shift(); frame; frame = this.queues[index]!.shift()) {
        const next = stage.take(frame);
        if (next) this.queues[index + 1]!.push(this.tamper(next, index + 2));
      }
    });
    return this.queues.at(-1)!.shift();
  }

  receive(): FrameBytes {
    const frame = this.poll();
    if (frame) return frame;
    throw new HpcserveError('E_STAGE_LOST', { what: 'nothing is on its way' });
  }

  close(): void {
    for (const queue of this.queues) queue.length = 0;
  }
}

export interface TestPipeline {
  engine: NativeEngine;
  ring: ArrayRing;
  executor: PipelineExecutor;
  stages: PipelineStage[];
}

export function toldFacts(options: EngineOptions, stage: number): ToldFacts {
  return {
    model: modelIdentity(openModelFile(options.model_path).gguf),
    kv_type: options.kv_type,
    batch_invariant: options.batch_invariant ?? false,
    device: `device ${stage}`,
    device_identity: `device ${stage}`,
  };
}

/**
 * @param cuts operators before which the model is cut
 * @param kv_tokens of the stages behind the first
 */
export function openStages(
  options: EngineOptions,
  cuts: readonly number[],
  kv_tokens = options.kv_tokens,
): { first: Stage; ring: ArrayRing } {
  const file = openModelFile(options.model_path);
  const bounds = [0, ...cuts, enumerateOperators(file.model.n_layer).length];
  const stages = bounds.slice(1).map((end, index) => {
    const range = { begin: bounds[index]!, end };
    const own = index === 0 ? options : { ...options, kv_tokens };
    return new Stage(testBackend(), file, { ...stageOptions(own, {}), range });
  });
  const behind = stages.slice(1).map((stage, index) => {
    const place = { stage: index + 1, stages: stages.length };
    return new PipelineStage(stage, place, toldFacts(options, index + 1));
  });
  return { first: stages[0]!, ring: new ArrayRing(behind) };
}

/** @param batch_floats_max absent: what a frame has room for */
export function openTestPipeline(
  options: EngineOptions,
  cuts: readonly number[],
  batch_floats_max?: number,
): TestPipeline {
  const { first, ring } = openStages(options, cuts);
  const opening = new PipelineOpening(first, ring, toldFacts(options, 0));
  const executor = opening.advance() ?? opening.advance() ?? opening.advance();
  if (!executor) throw new Error('the pipeline did not open');
  if (batch_floats_max !== undefined) Object.assign(executor, { batch_floats_max });
  const engine = new NativeEngine(options, testBackend(), { executor });
  return { engine, ring, executor, stages: ring.stages };
}

export function closePipeline({ engine, stages }: TestPipeline): void {
  engine.close();
  for (const stage of stages) stage.free();
}

/** A frame as another version would send it. */
export function ofProtocol(protocol: number, frame: FrameBytes): FrameBytes {
  const view = new DataView(frame.buffer);
  view.setUint16(4, protocol, true);
  view.setUint32(28, crc32(frame.subarray(0, 28)), true);
  return frame;
}
