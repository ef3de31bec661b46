import type { HpcserveError } from '../../spec/errors/error.ts';
import type { BatchExecutor, BatchOutputs } from '../engine/batch-executor.ts';
import type { PlannedSequence } from '../engine/iteration-batch.ts';
import { type KvSlabStorage, kv_block_tokens } from '../engine/kv-storage.ts';
import type { LayerKv } from '../engine/layer-kv.ts';
import type { Stage } from '../engine/stage.ts';
import type { PipelineExecutor, StageLoad } from './pipeline-executor.ts';

/** Who changes the layout of a pipeline that computes meanwhile. */
export interface LayoutChanger {
  /** Rows [begin, end) of a block are written by what was submitted. */
  wrote(block: number, begin: number, end: number): void;
  /** The ring broke. @returns whether the pipeline goes on without what was on its way */
  survives(): boolean;
  /** The pipeline is closed. */
  abort(because: string): void;
}

/**
 * The executor of a pipeline whose layout may change: to its engine one that goes on. Blocks of KV keep their numbers
 * through every layout, so that the engine's block tables stay what they are.
 */
export class ChangingExecutor implements BatchExecutor {
  /** As many rows in every layout, as large as those of the stage that is here now. */
  readonly storage: KvSlabStorage;
  readonly kv_tokens_max: number;
  /** Of the layers on this device. */
  readonly kv: LayerKv;
  change: LayoutChanger | undefined;
  #running: PipelineExecutor;
  #lost: HpcserveError | undefined;
  /** Copies and sequences brought back, of which the other stages do not know yet. */
  #untold: { block: number; rows: number }[] = [];

  constructor(running: PipelineExecutor, kv: LayerKv) {
    this.#running = running;
    this.kv = kv;
    const { slab_rows, slabs } = running.storage;
    const rowsNow_bytes = (): number => {
      const { storage } = this.#running;
      return Math.ceil((storage.slab_bytes * slab_rows) / storage.slab_rows);
    };
    this.storage = {
      slab_rows,
      slabs,
      get slab_bytes() {
        return rowsNow_bytes();
      },
      // Of a stage all of it is there for good.
      commit: () => true,
      release: () => undefined,
      couldCommit: () => true,
      attach: () => undefined,
    };
    this.kv_tokens_max = running.kv_tokens_max;
  }

  get running(): PipelineExecutor {
    return this.#running;
  }

  get stages(): readonly StageLoad[] {
    return this.#running.stages;
  }

  get epoch(): number {
    return this.#running.epoch;
  }

  get model(): Stage['model'] {
    return this.stage.model;
  }

  get batch_floats_max(): number {
    return this.#running.batch_floats_max;
  }

  get stage(): Stage {
    return this.#running.stage;
  }

  get depth(): number {
    return this.#running.depth;
  }

  /** KV beyond what every stage has serves nobody. */
  get working_bytes(): number {
    const { kv, working_bytes } = this.stage;
    return working_bytes + Math.max(0, kv.bytes - this.kv_tokens_max * kv.token_bytes);
  }

  /** Another layout computes from now on; the one before is the caller's. */
  switchTo(running: PipelineExecutor): void {
    this.#running = running;
  }

  /** The pipeline computes in no layout any more. */
  lose(error: HpcserveError): void {
    this.#lost = error;
  }

  copyRows(from_block: number, to_block: number, rows: number): void {
    this.#untold.push({ block: to_block, rows });
    this.#running.copyRows(from_block, to_block, rows);
  }

  submit(batch: readonly PlannedSequence[]): void {
    this.#requireWhole();
    this.#running.submit(batch);
    // One that could not be computed takes nothing along.
    const untold = this.#untold.splice(0);
    const { change } = this;
    if (!change) return;
    for (const { block, rows } of untold) change.wrote(block, 0, rows);
    for (const { segment } of batch) tellWritten(change, segment);
  }

  collect(): BatchOutputs | undefined {
    this.#requireWhole();
    return this.#unlessLost(() => this.#running.collect());
  }

  flush(): readonly number[] {
    this.#requireWhole();
    const untold = this.#untold.splice(0);
    const damaged = this.#unlessLost(() => this.#running.flush()) ?? [];
    // Where the ring is lost, what was there before is over all the same.
    for (const { block, rows } of untold) this.change?.wrote(block, 0, rows);
    return damaged;
  }

  swapOut(id: number, blocks: readonly number[], tokens: number): number {
    return this.#running.swapOut(id, blocks, tokens);
  }

  swapIn(id: number, blocks: readonly number[]): boolean {
    for (const block of blocks) this.#untold.push({ block, rows: kv_block_tokens });
    return this.#running.swapIn(id, blocks);
  }

  forgetSwapped(id: number): void {
    this.#running.forgetSwapped(id);
  }

  check(): void {
    this.#requireWhole();
    // Who changes the layout looks after both rings, and knows what the loss of one means.
    if (!this.change) this.#running.check();
  }

  free(): void {
    this.change?.abort('the model was taken out of service');
    this.#running.free();
  }

  /** @returns undefined: the ring broke, and the pipeline goes on without what was on its way */
  #unlessLost<T>(use: () => T): T | undefined {
    try {
      return use();
    } catch (error) {
      // Only of a ring that broke it is known that nothing of it is on its way any more.
      if (!this.#running.port?.broken || !this.change?.survives()) throw error;
      return undefined;
    }
  }

  #requireWhole(): void {
    if (this.#lost) throw this.#lost;
  }
}

/** Row by row of its blocks: what was in a block before is over once its first row is written. */
function tellWritten(change: LayoutChanger, { past_tokens, rows, blocks }: PlannedSequence['segment']): void {
  for (let token = past_tokens; token < past_tokens + rows; ) {
    const index = Math.floor(token / kv_block_tokens);
    const end = Math.min(past_tokens + rows, (index + 1) * kv_block_tokens);
    change.wrote(blocks[index]!, token - index * kv_block_tokens, end - index * kv_block_tokens);
    token = end;
  }
}
