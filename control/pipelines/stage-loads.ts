import type { ScalingMark } from '../../solver/locality/resource-graph.ts';
import type { PlacementQuestion } from '../../spec/plan.ts';
import { type PipelineChange, planChange } from './change-pipeline.ts';
import type { HeldPipeline } from './held-pipelines.ts';

/** Loads of stages that have begun, of all pipelines: those that start next keep out of their way (FlexPipe §7). */
export class StageLoads {
  #marks: readonly ScalingMark[] = [];

  /**
   * Plans a change that begins now, and remembers what it loads for as long as that is expected to take.
   * @param cv of the model's arrivals
   * @throws HpcserveError E_STAGES_IMPOSSIBLE
   */
  plan(
    pipeline: HeldPipeline,
    stages: number,
    question: PlacementQuestion,
    now_ms: number,
    cv?: number,
  ): PipelineChange {
    const marks = this.#marks.filter(({ end_ms }) => end_ms > now_ms);
    const change = planChange(pipeline, stages, question, now_ms, { cv, marks });
    this.#marks = change.marks;
    return change;
  }
}
