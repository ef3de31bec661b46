import type { z } from 'zod';
import { HeldLayouts } from '../../solver/refactoring/held-layouts.ts';
import type { OperatorRange } from '../../solver/refactoring/layout.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { kv_block_tokens } from '../engine/kv-storage.ts';
import { operatorCount, operatorIndex } from '../engine/operators.ts';
import { readSegment } from '../engine/segment-output.ts';
import type { Stage } from '../engine/stage.ts';
import type { StageResult } from '../engine/stage-batch.ts';
import { allocateCandidates, type Candidates } from '../text/sampling/candidates.ts';
import {
  type BatchMeta,
  decodeBatchMeta,
  encodeBatchMeta,
  type StageTimes,
  writeOperators,
  writeTimes,
} from './batch-meta.ts';
import {
  allocateFrame,
  damaged,
  decodeFrame,
  encodeFrame,
  encodeJsonFrame,
  type Frame,
  type FrameBytes,
  metaOf,
  sealFrame,
} from './frame.ts';
import { StageKv } from './kv-commands.ts';
import { inMicroseconds } from './operator-times.ts';
import { encodeResult } from './result-meta.ts';
import { beginMetaSchema, type failedMetaSchema, openMetaSchema, type StageFacts } from './stage-facts.ts';

export interface StagePlace {
  /** Counted from 0, which is the coordinator's. */
  stage: number;
  stages: number;
}

/** What of its facts a stage cannot know of itself. */
export type ToldFacts = Pick<
  StageFacts,
  'model' | 'build' | 'kv_type' | 'batch_invariant' | 'device_identity' | 'device' | 'session'
>;

/**
 * A stage of a pipeline behind the first one. It does what frames say, one after the other, and knows nothing of
 * sequences: a frame comes in, a frame goes on.
 *
 *     open ──► its facts are added          begin ──► a new epoch: what is of another one is refused
 *     batch ──► KV commands, then its operators; the last stage chooses tokens and answers with a result
 *     what it throws ──► failed, which goes around to the coordinator; until the next epoch it does nothing
 */
export class PipelineStage {
  readonly stage: Stage;
  /** Frames of another epoch, or seen before: they were dropped. */
  refused = 0;
  readonly #place: StagePlace;
  readonly #told: ToldFacts;
  readonly #kv: StageKv;
  readonly #scratch: Candidates | undefined;
  readonly #held: HeldLayouts;
  #number = 0;
  #broken = true;
  /** When its last batch was done. */
  #ended_ms: number | undefined;

  /** @param held of its device, whose stages in two layouts have one epoch; absent: it is in no other */
  constructor(stage: Stage, place: StagePlace, told: ToldFacts, held?: HeldLayouts) {
    this.stage = stage;
    this.#place = place;
    this.#told = told;
    this.#held = held ?? new HeldLayouts(0, rangeOf(stage));
    this.#kv = new StageKv(stage.kv);
    if (stage.givesLogits) this.#scratch = allocateCandidates(stage.model.n_vocab);
  }

  /**
   * @param queued_us that the frame lay here
   * @returns the frame that goes on; undefined where it was refused
   * @throws HpcserveError E_STAGE_FRAME; E_DEVICE_FAILED: nothing is computed here any more
   */
  take(bytes: FrameBytes, queued_us = 0): FrameBytes | undefined {
    const frame = decodeFrame(bytes);
    switch (frame.kind) {
      case 'open':
        return this.#open(frame);
      case 'begin':
        return this.#begin(frame, bytes);
      case 'batch':
        return this.#isNext(frame) ? this.#batch(frame, queued_us) : undefined;
      // Of a stage before it: the coordinator is told, and nobody computes any more.
      case 'failed':
        this.#broken = true;
        return bytes;
      case 'alive':
        return undefined;
      case 'result':
        throw damaged('a result came to a stage that gives results');
      default:
        throw damaged(`a ${frame.kind} came to a stage whose layout does not change`);
    }
  }

  /** The ring is broken: what comes before the next epoch is refused. */
  interrupt(): void {
    this.#broken = true;
    this.#kv.clear();
  }

  /** Meta of the frame that says what this stage threw. */
  failure(thrown: unknown): z.infer<typeof failedMetaSchema> {
    return { stage: this.#place.stage, error: HpcserveError.from(thrown).toJSON() };
  }

  free(): void {
    this.#kv.clear();
    this.stage.free();
  }

  #open(frame: Frame): FrameBytes {
    const { n_operators, stages } = metaOf(frame, openMetaSchema);
    const { stage } = this.#place;
    const facts = { ...factsOf(this.stage, stage, this.#told), epoch: this.#held.epoch };
    return encodeJsonFrame(frame, { n_operators, stages: [...stages, facts] });
  }

  #begin(frame: Frame, bytes: FrameBytes): FrameBytes | undefined {
    const { epoch } = metaOf(frame, beginMetaSchema);
    if (!this.#held.begin(epoch, rangeOf(this.stage))) {
      this.refused++;
      return undefined;
    }
    this.#number = 0;
    this.#broken = false;
    this.#kv.clear();
    return bytes;
  }

  /** @throws HpcserveError E_STAGE_FRAME: one before it is missing */
  #isNext({ epoch, number }: Frame): boolean {
    if (this.#broken || this.#held.take(epoch) !== 'taken' || number <= this.#number) {
      this.refused++;
      return false;
    }
    if (number !== this.#number + 1)
      throw damaged(`it is number ${number}, and ${this.#number} was the last`);
    this.#number = number;
    return true;
  }

  #batch(frame: Frame, queued_us: number): FrameBytes {
    try {
      return this.#compute(frame, queued_us);
    } catch (thrown) {
      this.#broken = true;
      // No other stage or model of the device goes on either: who serves it tells the coordinator, and ends.
      if (thrown instanceof HpcserveError && thrown.code === 'E_DEVICE_FAILED') throw thrown;
      return encodeJsonFrame({ ...frame, kind: 'failed' }, this.failure(thrown));
    }
  }

  #compute(frame: Frame, queued_us: number): FrameBytes {
    const began_ms = performance.now();
    const waited_us = this.#ended_ms === undefined ? 0 : Math.round(1000 * (began_ms - this.#ended_ms));
    const meta = decodeBatchMeta(frame.meta);
    for (const command of meta.commands) {
      const lost = this.#kv.run(command);
      if (lost !== undefined) meta.damaged.push(lost);
    }
    const result = meta.segments.length > 0 ? this.#run(meta, frame.payload) : undefined;
    const times = (): StageTimes => {
      this.#ended_ms = performance.now();
      return [Math.round((this.#ended_ms - began_ms) * 1000), waited_us, queued_us];
    };
    return this.stage.givesLogits
      ? this.#answer(frame, meta, result, times)
      : this.#onward(frame, meta, result, times);
  }

  #run({ segments, operators_us }: BatchMeta, hidden: Float32Array): StageResult {
    const { n_embd, n_layer } = this.stage.model;
    const measured = operators_us.length > 0;
    if (measured && operators_us.length !== operatorCount(n_layer))
      throw damaged(`it asks for the times of ${operators_us.length} operators`);
    const n_blocks = this.stage.kv.storage.slab_rows / kv_block_tokens;
    let rows = 0;
    for (const { segment } of segments) {
      rows += segment.rows;
      const enough = segment.blocks.length * kv_block_tokens >= segment.past_tokens + segment.rows;
      const known = Array.from(segment.blocks).every((block) => block < n_blocks);
      const has_kv = this.stage.kv.n_matrices > 0;
      if (has_kv && !(enough && known)) throw damaged('blocks of it do not exist here, or are too few');
    }
    if (hidden.length !== rows * n_embd)
      throw damaged(`${rows} rows of ${n_embd} came as ${hidden.length} numbers`);
    return this.stage.run({ segments: segments.map(({ segment }) => segment), hidden, measured });
  }

  /** Hidden states for the next stage, with the same meta. */
  #onward(
    frame: Frame,
    meta: BatchMeta,
    result: StageResult | undefined,
    times: () => StageTimes,
  ): FrameBytes {
    const rows = meta.segments.reduce((sum, { segment }) => sum + segment.rows, 0);
    const floats = rows * this.stage.model.n_embd;
    const next = allocateFrame(frame, meta.damaged.length > 0 ? encodeBatchMeta(meta) : frame.meta, floats);
    if (result) next.payload.set(result.hidden.subarray(0, floats));
    writeTimes(next.meta, this.#place.stage, times());
    if (result?.operators_s)
      writeOperators(
        next.meta,
        this.#place.stages,
        rangeOf(this.stage).begin,
        inMicroseconds(result.operators_s),
      );
    return sealFrame(next);
  }

  #answer(
    frame: Frame,
    meta: BatchMeta,
    result: StageResult | undefined,
    times: () => StageTimes,
  ): FrameBytes {
    const { model } = this.stage;
    const segments = meta.segments.map((segment, index) =>
      readSegment(segment, result!.first_row[index]!, result!, model, this.#scratch),
    );
    const { times_us, operators_us, damaged: ids } = meta;
    times_us[this.#place.stage] = times();
    if (result?.operators_s)
      for (const [index, us] of inMicroseconds(result.operators_s).entries())
        operators_us[rangeOf(this.stage).begin + index] = us;
    const { meta: told, payload } = encodeResult({ times_us, operators_us, damaged: ids, segments });
    const floats = payload.reduce((sum, { length }) => sum + length, 0);
    if (floats === 0) return encodeFrame({ ...frame, kind: 'result' }, told);
    const answer = allocateFrame({ ...frame, kind: 'result' }, told, floats);
    let at = 0;
    for (const part of payload) {
      answer.payload.set(part, at);
      at += part.length;
    }
    return sealFrame(answer);
  }
}

/** What a stage says of itself; `epoch` is added. */
export function factsOf(stage: Stage, place: number, told: ToldFacts): Omit<StageFacts, 'epoch'> {
  const { begin, end } = rangeOf(stage);
  const { kv } = stage;
  return {
    stage: place,
    begin,
    end,
    ...told,
    // One without attention has none, and limits nobody.
    kv_tokens: kv.n_matrices > 0 ? kv.storage.slab_rows : Number.MAX_SAFE_INTEGER,
    weight_bytes: stage.weight_bytes,
    kv_bytes: kv.bytes,
  };
}

/** The operators of a stage among those of its model. */
export function rangeOf({ operators, model }: Stage): OperatorRange {
  const begin = operatorIndex(operators[0]!, model.n_layer);
  return { begin, end: begin + operators.length };
}
