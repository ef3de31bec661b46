/** The formulas of FlexPipe §3.3, §6 and §7 that a decision on granularity is made of, one function an equation. */
import { type Granularity, passRate_per_s } from './granularity.ts';

/**
 * Eq. 1, first term: requests that wait, ρ^S / (S! (1 − ρ)) · (CV_a² + CV_s²) / 2. The paper puts in the stages of
 * one pipeline for S. These stand in series, and sixteen of them would never queue; servers in parallel are the
 * instances of a granularity, so that S is their number here. Infinite from ρ = 1.
 */
export function queueLength_requests(
  utilization: number,
  servers: number,
  arrival_cv: number,
  service_cv: number,
): number {
  if (utilization >= 1) return Number.POSITIVE_INFINITY;
  let share = 1;
  for (let server = 1; server <= servers; server++) share *= utilization / server;
  return (share / (1 - utilization)) * ((arrival_cv ** 2 + service_cv ** 2) / 2);
}

export interface ScoreInput {
  /** T_k and T_max. */
  rate_per_s: number;
  rate_max_per_s: number;
  /** L_k and L_min. */
  latency_s: number;
  latency_min_s: number;
  /** ν_t, the CV of arrivals, and ν_k, the CV that this granularity is best at. */
  cv: number;
  cv_best: number;
}

export interface ScoreWeights {
  /** α. Lower: latency counts; higher: throughput. */
  throughput_weight: number;
  /** σ. Lower: the CV alone decides; higher: the profile does. */
  cv_tolerance: number;
}

/**
 * Eq. 4: [α T_k / T_max + (1 − α) L_min / L_k] · exp(−|ν_t − ν_k| / σ). ν is the CV; Algorithm 1 prints the gradient
 * of the intensity under the same letter, whose unit is another. Here the gradient is part of the demand.
 */
export function granularityScore(
  input: ScoreInput,
  { throughput_weight, cv_tolerance }: ScoreWeights,
): number {
  const throughput = input.rate_max_per_s > 0 ? input.rate_per_s / input.rate_max_per_s : 1;
  const latency = input.latency_s > 0 ? input.latency_min_s / input.latency_s : 1;
  const mixed = throughput_weight * throughput + (1 - throughput_weight) * latency;
  return mixed * Math.exp(-Math.abs(input.cv - input.cv_best) / cv_tolerance);
}

/** ν_k from S ∝ √CV (§3.3): (η_k / η_1)², with η_1 the stages that are best at a CV of 1. */
export function bestCvOf(stages: number, stages_at_one: number): number {
  return (stages / stages_at_one) ** 2;
}

export interface Coordination {
  /** β1: 1 is no loss. */
  base: number;
  /** β2, by stage. Higher: fine pipelines count for less, and more of them are asked for. */
  per_stage: number;
}

/** μ_k of Eq. 5, T_k / (β1 + β2 η_k): passes per second that one instance adds in practice. */
export function instanceRate_per_s(granularity: Granularity, { base, per_stage }: Coordination): number {
  return passRate_per_s(granularity) / (base + per_stage * granularity.stages);
}

/**
 * Eq. 5 asks how many instances a capacity makes, ⌊μ_total / μ_k⌋. For a demand that is to be met it is the next
 * whole number up.
 */
export function instancesFor(demand_per_s: number, granularity: Granularity, loss: Coordination): number {
  return Math.max(1, Math.ceil(demand_per_s / instanceRate_per_s(granularity, loss) - 1e-9));
}

export interface ScalingSigmoid {
  /** G_max: stages of the finest granularity. */
  stages_max: number;
  /** β. Higher: coarse for longer. */
  offset: number;
  /** γ. Higher: bursts and queues are answered more sharply. */
  steepness: number;
}

/** Eq. 11: ⌊G_max / (1 + β e^(−γ cv q̂))⌋ stages for what is started, with q̂ = min(q / Q_max, 1). At least 1. */
export function scalingStages(
  cv: number,
  waiting_requests: number,
  waiting_max: number,
  { stages_max, offset, steepness }: ScalingSigmoid,
): number {
  const full = Math.min(1, waiting_requests / waiting_max);
  return Math.max(1, Math.floor(stages_max / (1 + offset * Math.exp(-steepness * cv * full))));
}

/**
 * Eq. 12: whether what is started serves its part within the deadline, (T − S) Σ μ / Q ≥ r. The paper divides the
 * work that is done in time by the queue and compares it with a number of requests; as r is that number, the same is
 * said by (T − S) μ ≥ r, with μ the rate of the pipeline and not the sum over its stages, which work on the same
 * requests.
 */
export function servesInTime(
  deadline_s: number,
  load_s: number,
  rate_per_s: number,
  requests: number,
): boolean {
  return (deadline_s - load_s) * rate_per_s >= requests;
}
