/**
 * A granularity g_k = (η_k, b_k) of FlexPipe §6: so many stages, so many sequences at once, and how fast that is. A
 * pipeline of η stages has η micro-batches under way, each with b / η sequences; a pass takes a sequence through all
 * stages once, for a token or a chunk of its prompt.
 */
export interface Granularity {
  /** η. */
  stages: number;
  /** b: sequences in the pipeline at once, over all micro-batches. */
  batch_max: number;
  /** One micro-batch in the slowest stage. */
  stage_s: number;
  /** All hops between stages that one pass makes. */
  hops_s: number;
}

/** T_k: passes of single sequences per second, with full micro-batches. */
export function passRate_per_s({ stages, batch_max, stage_s }: Granularity): number {
  return batch_max / stages / stage_s;
}

/** One pass of an undisturbed sequence: T_pipe of FlexPipe §3.3, S · τ + (S − 1) · δ. */
export function passTime_s({ stages, stage_s, hops_s }: Granularity): number {
  return stages * stage_s + hops_s;
}
