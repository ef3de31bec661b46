import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ModelFile } from '../../engine/model-file.ts';
import type { Stage } from '../../engine/stage.ts';
import type { StageOpening } from '../../engine/stage-opening.ts';
import { encodeJsonFrame } from '../../pipeline/frame.ts';
import type { FramePort } from '../../pipeline/frame-port.ts';
import type { PipelinePlace } from '../../pipeline/pipeline-place.ts';
import type { LoadMessage } from './worker-model.ts';

export type PipelineLoad = LoadMessage & { pipeline: PipelinePlace };

/** A stage whose weights are on their way, at its place in a ring that may be there before them. */
export class StageLoad {
  readonly message: PipelineLoad;
  readonly port: FramePort;
  /** The change of layout that it is for; undefined: the pipeline is loaded. */
  readonly refactoring: number | undefined;
  #opening: StageOpening | undefined;
  #refused: HpcserveError | undefined;
  #isClosed = false;

  constructor(message: PipelineLoad, port: FramePort, refactoring?: number) {
    this.message = message;
    this.port = port;
    this.refactoring = refactoring;
  }

  get isOpening(): boolean {
    return this.#opening !== undefined;
  }

  open(opening: StageOpening): void {
    this.#opening = opening;
  }

  /** @throws HpcserveError as `StageOpening`; then it is over */
  advance(help: boolean): { file: ModelFile; stage: Stage } | undefined {
    const opening = this.#opening;
    if (!opening) return undefined;
    this.#opening = undefined;
    const stage = opening.advance(help);
    if (stage) return { file: opening.file, stage };
    this.#opening = opening;
    return undefined;
  }

  /** There is no stage here for the layout to come, and this is why: it is said to the first who asks over its ring. */
  refuse(error: HpcserveError): void {
    this.#refused = error;
  }

  /** @returns whether anybody asked */
  answerRefused(): boolean {
    if (!this.#refused) return false;
    try {
      if (!this.port.poll()) return false;
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      return true;
    }
    const meta = { stage: this.message.pipeline.stage, error: this.#refused.toJSON() };
    this.port.send(encodeJsonFrame({ kind: 'failed', epoch: 0, number: 0 }, meta));
    return true;
  }

  /** It is given up. @returns whether nobody works at it any more; else it is asked again */
  letGo(): boolean {
    if (!this.#isClosed) this.port.close();
    this.#isClosed = true;
    if (this.#opening?.letGo() === false) return false;
    this.#opening = undefined;
    return true;
  }
}
