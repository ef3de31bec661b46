import { isNarrow, outputOrder, outputSegments } from '../engine/output-order.ts';
import type { Stage } from '../engine/stage.ts';
import type { BatchSegment, MixtureRows, Routing, StageResult } from '../engine/stage-batch.ts';
import type { ExpertStream } from './expert-stream.ts';
import type { PartStream } from './part-stream.ts';
import { KeptRows, type StreamedPass } from './streamed-pass.ts';

/** What goes from one part to the next. */
interface Between {
  hidden: Float32Array;
  mixture: MixtureRows;
  guess: Int32Array | undefined;
}

export interface MixtureParts {
  stream: PartStream;
  experts: ExpertStream;
  /** One more than layers; see `MixturePass`. */
  stages: readonly Stage[];
  /** Rows of a batch at most. */
  rows_max: number;
  /** A part was computed. */
  on_part: () => void;
}

/**
 * From router to router: a part has the experts of one layer, the attention of the next one and its router. Behind it
 * is known which experts come next, and guessed which come after them, while it computes.
 *
 *     part 1   attention 1, router 1 ─▶ experts 1 are brought
 *     part 2   experts 1, attention 2, router 2 ─▶ experts 2 are brought; some came while part 2 computed
 *     …
 *     last     experts of the last layer, head
 */
export class MixturePass implements StreamedPass {
  readonly #own: MixtureParts;
  readonly #hidden: KeptRows<Float32Array>;
  readonly #normed: KeptRows<Float32Array>;
  readonly #shares: KeptRows<Float32Array>;
  readonly #chosen: KeptRows<Int32Array>;
  readonly #guess: KeptRows<Int32Array>;

  constructor(own: MixtureParts) {
    this.#own = own;
    const { n_embd, experts } = own.stages[0]!.model;
    const values = own.rows_max * n_embd;
    const choices = own.rows_max * experts!.used_per_token;
    this.#hidden = new KeptRows(new Float32Array(values));
    this.#normed = new KeptRows(new Float32Array(values));
    this.#shares = new KeptRows(new Float32Array(choices));
    this.#chosen = new KeptRows(new Int32Array(choices));
    this.#guess = new KeptRows(new Int32Array(choices));
  }

  run(segments: readonly BatchSegment[], embedded: Float32Array): StageResult {
    const { stream, experts, stages, on_part } = this.#own;
    const last = stages.length - 1;
    const rows = segments.reduce((sum, segment) => sum + segment.rows, 0);
    experts.beginStep(rows);
    const hidden = this.#hidden.keep(embedded, embedded.length);
    stream.awaitPart(0);
    let result = stages[0]!.run({ segments, hidden });
    for (let part = 1; part <= last; part++) {
      const between = this.#keep(result);
      stream.release(part - 1);
      on_part();
      stream.awaitPart(part);
      // Only the keys and values of the last layer are of use: nothing leaves it.
      if (between === undefined) break;
      const mixture = this.#brought(part, between, segments);
      result =
        part === last
          ? this.#end(segments, result.routing!.narrowed, between.hidden, mixture)
          : stages[part]!.run({ segments, hidden: between.hidden, mixture });
    }
    stream.release(last);
    on_part();
    experts.endStep();
    return result;
  }

  /** The experts of a part are there, and those of the next one on their way as far as they can be guessed. */
  #brought(part: number, { mixture, guess }: Between, segments: readonly BatchSegment[]): MixtureRows {
    const { experts, stages } = this.#own;
    const chosen = experts.bring(part - 1, mixture.chosen);
    // Of the last layer, experts are for rows that leave it.
    const isLast = part === stages.length - 2;
    if (guess) experts.foresee(part, isLast ? this.#leaving(guess, segments) : guess);
    return { ...mixture, chosen };
  }

  #leaving(guess: Int32Array, segments: readonly BatchSegment[]): Iterable<number> {
    const order = outputOrder(segments);
    if (!isNarrow(segments, order)) return guess;
    const used = this.#own.stages[0]!.model.experts!.used_per_token;
    return [...order.row_ids].flatMap((row) => [...guess.subarray(row * used, (row + 1) * used)]);
  }

  #end(
    segments: readonly BatchSegment[],
    narrowed: boolean,
    hidden: Float32Array,
    mixture: MixtureRows,
  ): StageResult {
    const stage = this.#own.stages.at(-1)!;
    if (!narrowed) return stage.run({ segments, hidden, mixture });
    const order = outputOrder(segments);
    const result = stage.run({ segments: outputSegments(segments, order), hidden, mixture });
    return { ...result, first_row: order.first_row };
  }

  #keep({ hidden, routing }: StageResult): Between | undefined {
    if (routing === undefined) return undefined;
    const { n_embd, experts } = this.#own.stages[0]!.model;
    const { rows }: Routing = routing;
    const choices = rows * experts!.used_per_token;
    return {
      hidden: this.#hidden.keep(hidden, rows * n_embd),
      mixture: {
        normed: this.#normed.keep(routing.normed, rows * n_embd),
        shares: this.#shares.keep(routing.shares, choices),
        chosen: this.#chosen.keep(routing.chosen, choices),
      },
      guess: routing.guess && this.#guess.keep(routing.guess, choices),
    };
  }
}
