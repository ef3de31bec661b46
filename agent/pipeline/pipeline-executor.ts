import { monotonic_ms } from '../../host/clock.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { BatchExecutor, BatchOutputs } from '../engine/batch-executor.ts';
import { firstRows } from '../engine/committed-kv.ts';
import { batchTokens, type PlannedSequence } from '../engine/iteration-batch.ts';
import type { KvStorage } from '../engine/kv-storage.ts';
import { operatorCount } from '../engine/operators.ts';
import { readSegment } from '../engine/segment-output.ts';
import type { Stage } from '../engine/stage.ts';
import type { StageResult } from '../engine/stage-batch.ts';
import { encodeBatchMeta, type KvCommand, type StageTimes, writeTimes } from './batch-meta.ts';
import {
  allocateFrame,
  damaged,
  decodeFrame,
  type Frame,
  frame_floats_max,
  metaOf,
  sealFrame,
} from './frame.ts';
import { StageKv } from './kv-commands.ts';
import { areOperatorsMeasured, inMicroseconds, withMeasured } from './operator-times.ts';
import { decodeResult } from './result-meta.ts';
import type { SortedPort } from './sorted-port.ts';
import { failedMetaSchema, type StageFacts } from './stage-facts.ts';

/** Weight of the last batch in the mean of what a stage takes. Lower: steadier; higher: follows load sooner. */
const mean_share = 0.1;

/** How long batches take at a stage, and what it is. */
export interface StageLoad extends StageFacts {
  /** Mean over the last batches; 0 before the first. */
  computed_us: number;
  /** The same, between one batch and the next: what came was not there yet. */
  waited_us: number;
  /** The same, that batches lay before it while it computed others; at the coordinator's, results did. */
  queued_us: number;
  /** Means of what each of its operators takes; empty until they were measured. */
  operators_us: readonly number[];
  /** So many batches lie before it, on average (Little's law): one comes every `computed_us` and `waited_us`. */
  waiting: number;
  memory_bytes: number;
}

/**
 * The coordinator's side of a pipeline: the first stage, which computes here, and the ring through all others. One
 * batch after the other sets out; each comes back as a result, in order.
 *
 *     submit:  stage 0 ── hidden states ──► stage 1 ──► … ──► last stage: tokens are chosen
 *     collect:    ▲                                                │
 *                 └───────────────── result ───────────────────────┘
 */
export class PipelineExecutor implements BatchExecutor {
  readonly stage: Stage;
  readonly depth: number;
  readonly kv_tokens_max: number;
  readonly storage: KvStorage;
  /** Also of one stage: a pipeline may come to have others. */
  readonly batch_floats_max = frame_floats_max;
  readonly stages: readonly StageLoad[];
  /** Of a layout of several stages. */
  readonly port: SortedPort | undefined;
  #epoch: number;
  readonly #kv: StageKv;
  /** Done here already; the other stages do it before the next batch. */
  #commands: KvCommand[] = [];
  #submitted = 0;
  #collected = 0;
  /** Of a pipeline of one stage: computed, and not collected yet. */
  readonly #alone: { batch: readonly PlannedSequence[]; result: StageResult | undefined }[] = [];
  #ended_ms: number | undefined;

  /**
   * @param port undefined: this stage is all of the model
   * @param stages of an opened pipeline, this one first; see `PipelineOpening`
   */
  constructor(stage: Stage, port: SortedPort | undefined, stages: readonly StageFacts[], epoch: number) {
    this.stage = stage;
    this.port = port;
    this.#kv = new StageKv(stage.kv);
    this.stages = stages.map((facts) => ({
      ...facts,
      computed_us: 0,
      waited_us: 0,
      queued_us: 0,
      operators_us: [],
      waiting: 0,
      memory_bytes: facts.weight_bytes + facts.kv_bytes,
    }));
    this.depth = stages.length;
    this.kv_tokens_max = Math.min(...stages.map(({ kv_tokens }) => kv_tokens));
    this.storage = firstRows(stage.kv.storage, this.kv_tokens_max);
    this.#epoch = epoch;
  }

  get epoch(): number {
    return this.#epoch;
  }

  get model(): Stage['model'] {
    return this.stage.model;
  }

  copyRows(from_block: number, to_block: number, rows: number): void {
    this.#command({ do: 'copy', from_block, to_block, rows });
  }

  submit(batch: readonly PlannedSequence[]): void {
    const began_ms = performance.now();
    const number = this.#submitted + 1;
    const measured = areOperatorsMeasured(number);
    const segments = batch.map(({ segment }) => segment);
    const result =
      batch.length > 0 ? this.stage.run({ segments, tokens: batchTokens(batch), measured }) : undefined;
    // One that could not be computed here never set out, and has no number.
    this.#submitted = number;
    const own_us = inMicroseconds(result?.operators_s ?? []);
    const port = this.port;
    if (!port) {
      this.#commands = [];
      this.#alone.push({ batch, result });
      this.#observe(0, [elapsed_us(began_ms), this.#waited_us(began_ms), 0], own_us);
      return;
    }
    const operators_us = new Array<number>(measured ? operatorCount(this.model.n_layer) : 0).fill(0);
    for (const [index, us] of own_us.entries()) operators_us[index] = us;
    const meta = encodeBatchMeta({
      times_us: this.stages.map(() => [0, 0, 0]),
      operators_us,
      damaged: [],
      commands: this.#commands,
      segments: [...batch],
    });
    this.#commands = [];
    const floats = segments.reduce((sum, { rows }) => sum + rows, 0) * this.model.n_embd;
    const header = { kind: 'batch', epoch: this.epoch, number } as const;
    const frame = allocateFrame(header, meta, floats);
    if (result) frame.payload.set(result.hidden.subarray(0, floats));
    const waited_us = this.#waited_us(began_ms);
    writeTimes(frame.meta, 0, [elapsed_us(began_ms), waited_us, 0]);
    port.send(sealFrame(frame));
  }

  collect(): BatchOutputs {
    const port = this.port;
    if (!port) return this.#readAlone();
    for (;;) {
      const frame = decodeFrame(port.receive());
      // Of the pipeline as it was before a cut-over.
      if (frame.epoch !== this.epoch) continue;
      if (frame.kind === 'failed') throw failureOf(frame, this.stages);
      if (frame.kind !== 'result' || frame.number !== this.#collected + 1)
        throw damaged(`a ${frame.kind} of number ${frame.number} came for number ${this.#collected + 1}`);
      this.#collected++;
      const { times_us, operators_us, ...outputs } = decodeResult(frame.meta, frame.payload);
      // Its sequences are computed here next: what lies before the first stage is results.
      if (times_us[0]) times_us[0][2] = Math.round(1000 * (monotonic_ms() - port.came_ms));
      for (const [stage, times] of times_us.entries()) {
        const { begin = 0, end = 0 } = this.stages[stage] ?? {};
        this.#observe(stage, times, operators_us.slice(begin, end));
      }
      return outputs;
    }
  }

  swapOut(id: number, blocks: readonly number[], tokens: number): number {
    this.#command({ do: 'swap_out', id, tokens, blocks: [...blocks] });
    return this.#kv.swapped_bytes(id);
  }

  swapIn(id: number, blocks: readonly number[]): boolean {
    return this.#command({ do: 'swap_in', id, blocks: [...blocks] }) !== undefined;
  }

  forgetSwapped(id: number): void {
    this.#command({ do: 'forget', id });
  }

  flush(): readonly number[] {
    if (this.#commands.length === 0) return [];
    this.submit([]);
    return this.collect().damaged;
  }

  /** All stages have begun a later epoch; nothing is on its way. */
  renew(epoch: number): void {
    this.#epoch = epoch;
    this.#submitted = 0;
    this.#collected = 0;
  }

  check(): void {
    // What comes unasked is of a pipeline before this one.
    while (this.port?.poll());
  }

  free(): void {
    this.port?.close();
    this.#kv.clear();
    this.stage.free();
  }

  #command(command: KvCommand): number | undefined {
    this.#commands.push(command);
    return this.#kv.run(command);
  }

  /** Views of the stage's memory: its next batch is submitted when they have been read. */
  #readAlone(): BatchOutputs {
    const { batch, result } = this.#alone.shift()!;
    const segments = batch.map((planned, index) =>
      readSegment(planned, result!.first_row[index]!, result!, this.model),
    );
    return { segments, damaged: [] };
  }

  /** Since the last batch here. */
  #waited_us(began_ms: number): number {
    const waited_us = this.#ended_ms === undefined ? 0 : Math.round(1000 * (began_ms - this.#ended_ms));
    this.#ended_ms = performance.now();
    return waited_us;
  }

  #observe(stage: number, times: StageTimes, operators_us: readonly number[]): void {
    const [computed_us, waited_us, queued_us] = times;
    const load = this.stages[stage];
    if (!load) return;
    load.operators_us = withMeasured(load.operators_us, operators_us);
    const share = load.computed_us === 0 ? 1 : mean_share;
    // Devices compute a measured batch twice.
    const computed_share = load.computed_us > 0 && operators_us.length > 0 ? 0 : share;
    load.computed_us += computed_share * (computed_us - load.computed_us);
    load.waited_us += share * (waited_us - load.waited_us);
    load.queued_us += share * (queued_us - load.queued_us);
    load.waiting = load.queued_us / Math.max(1, load.computed_us + load.waited_us);
  }
}

/** What a stage threw, as what ends its pipeline's answers here. */
function failureOf(frame: Frame, stages: readonly StageFacts[]): HpcserveError {
  const { stage, error } = metaOf(frame, failedMetaSchema);
  const told = HpcserveError.fromJSON(error);
  return new HpcserveError('E_STAGE_LOST', {
    what: `stage ${stage} of the pipeline cannot go on`,
    because: [told.message, `it runs on ${stages[stage]?.device ?? 'another device'}`],
    details: { stage, code: told.code },
  });
}

function elapsed_us(began_ms: number): number {
  return Math.round((performance.now() - began_ms) * 1000);
}
