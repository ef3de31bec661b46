import type { BatchSegment, StageResult } from '../engine/stage-batch.ts';

/** How a batch goes through the parts of a model, each of which is computed once its weights are there. */
export interface StreamedPass {
  /**
   * @param hidden shape [rows, n_embd]: rows of the embedding, valid until the first part is computed
   * @throws HpcserveError as `Stage.run`; E_POOL_LOAD, E_MODEL_WEIGHTS: weights did not come
   */
  run(segments: readonly BatchSegment[], hidden: Float32Array): StageResult;
}

/** Rows that are kept beside a part: results of parts lie over one another, so what leaves one is copied. */
export class KeptRows<T extends Float32Array | Int32Array> {
  readonly #memory: T;

  constructor(memory: T) {
    this.#memory = memory;
  }

  /** @param values what the part's own memory begins with */
  keep(values: T, length: number): T {
    const kept = this.#memory.subarray(0, length) as T;
    kept.set(values.subarray(0, length));
    return kept;
  }
}
