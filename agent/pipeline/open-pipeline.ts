/** How a coordinator finds out that all stages are there, and that they are one pipeline. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { enumerateOperators } from '../engine/operators.ts';
import type { Stage } from '../engine/stage.ts';
import { decodeFrame, encodeJsonFrame, type FrameBytes, type FrameHeader, metaOf } from './frame.ts';
import type { FramePort } from './frame-port.ts';
import { PipelineExecutor } from './pipeline-executor.ts';
import { factsOf, type ToldFacts } from './pipeline-stage.ts';
import { SortedPort } from './sorted-port.ts';
import { checkStages, openMetaSchema, type StageFacts } from './stage-facts.ts';

/**
 * Two rounds through the ring: `open`, to which every stage adds its facts, then `begin`, with an epoch that none of
 * them has seen. What is not a part of them, of an epoch before, is passed over.
 *
 *     setting out ──open──► asked ──all facts: begin──► agreed ──begin came back──► an executor
 */
export class PipelineOpening {
  readonly #stage: Stage;
  readonly #port: FramePort;
  readonly #own: StageFacts;
  #agreed: { stages: StageFacts[]; epoch: number } | undefined;
  #asked = false;

  /** @param epoch_min at least the epoch of what this coordinator had before */
  constructor(stage: Stage, port: FramePort, told: ToldFacts, epoch_min = 0) {
    this.#stage = stage;
    this.#port = port;
    this.#own = { ...factsOf(stage, 0, told), epoch: epoch_min };
  }

  /**
   * Goes on as far as it can without waiting. Where the ring breaks meanwhile, it begins again once all are there.
   * @returns the executor, once every stage has agreed
   * @throws HpcserveError E_STAGE_MISMATCH, E_STAGE_FRAME
   */
  advance(): PipelineExecutor | undefined {
    try {
      return this.#goOn();
    } catch (error) {
      if (!(error instanceof HpcserveError) || error.code !== 'E_STAGE_LOST') throw error;
      this.#asked = false;
      this.#agreed = undefined;
      return undefined;
    }
  }

  #goOn(): PipelineExecutor | undefined {
    for (let bytes = this.#port.poll(); bytes; bytes = this.#port.poll()) {
      const executor = this.#take(bytes);
      if (executor) return executor;
    }
    if (!this.#asked && this.#port.isUp) {
      this.#asked = true;
      this.#send('open', { n_operators: this.#nOperators, stages: [this.#own] });
    }
    return undefined;
  }

  #take(bytes: FrameBytes): PipelineExecutor | undefined {
    const frame = decodeFrame(bytes);
    if (frame.kind === 'open' && this.#asked) {
      const { stages } = metaOf(frame, openMetaSchema);
      checkStages(stages, this.#nOperators);
      const epoch = 1 + Math.max(...stages.map((facts) => facts.epoch));
      this.#agreed = { stages, epoch };
      this.#send('begin', { epoch });
    } else if (frame.kind === 'begin' && this.#agreed) {
      const { stages, epoch } = this.#agreed;
      return new PipelineExecutor(this.#stage, new SortedPort(this.#port), stages, epoch);
    }
    return undefined;
  }

  #send(kind: 'open' | 'begin', meta: unknown): void {
    const header: FrameHeader = { kind, epoch: this.#agreed?.epoch ?? 0, number: 0 };
    this.#port.send(encodeJsonFrame(header, meta));
  }

  get #nOperators(): number {
    return enumerateOperators(this.#stage.model.n_layer).length;
  }
}
