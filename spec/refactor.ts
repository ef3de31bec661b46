/**
 * How a pipeline of the native engine is told to become another one while it answers: `POST agentPaths.refactor` to the
 * session of its coordinator. See docs/refactoring.md.
 */
import { z } from 'zod';

export const refactorStageSchema = z.strictObject({
  /**
   * `<kind> <index>`, as `hpcserve status` shows it: its place among the devices of that kind that the job has there.
   */
  device: z.string().regex(/^(cpu|gpu|mig) \d+$/, 'a kind of device and its number, such as "gpu 0"'),
  /** Of the job, as its agent is named; absent: the coordinator's. */
  node: z.string().min(1).optional(),
  /**
   * The first layer of the stage, counted from 0, and how many it has. The embedding goes with the first, the head
   * with the last.
   */
  first_block: z.int().min(0),
  blocks: z.int().min(1),
});
export type RefactorStage = z.infer<typeof refactorStageSchema>;

export const refactorRequestSchema = z.strictObject({
  model: z.string(),
  /** In the order of computation; the first one stays on the coordinator's device. */
  stages: z.array(refactorStageSchema).min(1).max(64),
});
export type RefactorRequest = z.infer<typeof refactorRequestSchema>;

/** What came of it. */
export const refactorOutcomeSchema = z.looseObject({
  /** Of the pipeline as it is now. */
  epoch: z.int().min(0),
  /** For so long no batch was computed. */
  pause_ms: z.number().min(0),
  /** Of KV and weights, between devices. */
  bytes_moved: z.number().min(0),
  /**
   * Of KV, by the way that it took: `sendfile`, `rma (verbs)`, `tcp, encrypted`, `ring`. Absent: of an agent before
   * this.
   */
  bytes_by_way: z.record(z.string(), z.number().min(0)).optional(),
  duration_ms: z.number().min(0),
});
export type RefactorOutcome = z.infer<typeof refactorOutcomeSchema>;

/** Weights of many GB come from storage: until it is given up. */
export const refactor_ms_max = 900_000;
