import type { Stage } from '../engine/stage.ts';
import type { BatchSegment, StageResult } from '../engine/stage-batch.ts';
import type { PartStream } from './part-stream.ts';
import { KeptRows, type StreamedPass } from './streamed-pass.ts';

/**
 * Layer by layer: each computes, while those of the next ones come.
 *
 *     host memory   part 1   part 2   part 3   part 4 …
 *                     │        │        │  ╲ being brought
 *     device        computed  computes  waits
 */
export class LayerPass implements StreamedPass {
  readonly #stream: PartStream;
  readonly #stages: readonly Stage[];
  readonly #on_part: () => void;
  readonly #hidden: KeptRows<Float32Array>;

  /** @param rows_max of a batch @param on_part a part was computed */
  constructor(stream: PartStream, stages: readonly Stage[], rows_max: number, on_part: () => void) {
    this.#stream = stream;
    this.#stages = stages;
    this.#on_part = on_part;
    this.#hidden = new KeptRows(new Float32Array(rows_max * stages[0]!.model.n_embd));
  }

  run(segments: readonly BatchSegment[], embedded: Float32Array): StageResult {
    const { length } = embedded;
    let hidden = this.#hidden.keep(embedded, length);
    let result: StageResult | undefined;
    for (const [part, stage] of this.#stages.entries()) {
      this.#stream.awaitPart(part);
      result = stage.run({ segments, hidden });
      this.#stream.release(part);
      this.#on_part();
      if (!stage.givesLogits) hidden = this.#hidden.keep(result.hidden, length);
    }
    return result!;
  }
}
