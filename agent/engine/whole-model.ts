import { loadGgml } from '../../native/ggml.ts';
import type { EngineOptions, SwapPlace } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Backend } from '../backend/backend.ts';
import { cpuBackend } from '../backend/cpu/cpu-backend.ts';
import type { BatchExecutor, BatchOutputs } from './batch-executor.ts';
import type { EngineResources } from './engine-resources.ts';
import { batchTokens, type PlannedSequence } from './iteration-batch.ts';
import type { KvStorage } from './kv-storage.ts';
import type { ModelFile } from './model-file.ts';
import type { ParkingDisk } from './parking-disk.ts';
import { readSegment } from './segment-output.ts';
import { Stage } from './stage.ts';
import type { StageResult } from './stage-batch.ts';
import { stageOptions } from './stage-options.ts';
import { SwappedSequences } from './swapped-sequences.ts';

/** One stage that is a whole model: a batch is computed when it is submitted. */
export class WholeModel implements BatchExecutor {
  readonly depth = 1;
  readonly stage: Stage;
  readonly kv_tokens_max = Number.POSITIVE_INFINITY;
  readonly #swapped: SwappedSequences;
  #computed: { batch: readonly PlannedSequence[]; result: StageResult } | undefined;

  constructor(stage: Stage, disk?: ParkingDisk) {
    this.stage = stage;
    this.#swapped = new SwappedSequences(stage.kv, disk);
  }

  get hasDisk(): boolean {
    return this.#swapped.hasDisk;
  }

  get model(): Stage['model'] {
    return this.stage.model;
  }

  get storage(): KvStorage {
    return this.stage.kv.storage;
  }

  reserve(tokens: number, rows: number): boolean {
    return this.stage.reserve(tokens, rows);
  }

  copyRows(from_block: number, to_block: number, rows: number): void {
    this.stage.kv.copyRows(from_block, to_block, rows);
  }

  submit(batch: readonly PlannedSequence[]): void {
    const segments = batch.map(({ segment }) => segment);
    this.#computed = { batch, result: this.stage.run({ segments, tokens: batchTokens(batch) }) };
  }

  collect(): BatchOutputs {
    const { batch, result } = this.#computed!;
    this.#computed = undefined;
    const segments = batch.map((planned, index) =>
      readSegment(planned, result.first_row[index]!, result, this.model),
    );
    return { segments, damaged: [] };
  }

  swapOut(id: number, blocks: readonly number[], tokens: number, place: SwapPlace): number | undefined {
    return this.#swapped.out(id, blocks, tokens, place);
  }

  swapIn(id: number, blocks: readonly number[]): boolean {
    return this.#swapped.in(id, blocks);
  }

  forgetSwapped(id: number): void {
    this.#swapped.forget(id);
  }

  free(): void {
    this.#swapped.clear();
    this.stage.free();
  }
}

/** The stage of an engine that computes its whole model itself. @throws HpcserveError as the engine's constructor */
export function wholeStage(
  options: EngineOptions,
  backend: Backend | undefined,
  file: ModelFile,
  { weights, kv, scratch }: Pick<EngineResources, 'weights' | 'kv' | 'scratch'>,
): Stage {
  const stage = new Stage(
    backend ?? cpuBackend(loadGgml()),
    file,
    stageOptions(options, { weights, kv, scratch }),
  );
  if (stage.takesTokens && stage.givesLogits) return stage;
  stage.free();
  throw new HpcserveError('E_ENGINE_OPTIONS', {
    what: 'an engine of its own needs a whole model, and was given a part of its operators',
    try: 'use Stage for the parts of a pipeline',
  });
}
