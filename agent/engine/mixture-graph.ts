/** The feed-forward of a mixture of experts in a graph: who is chosen, and what comes of it. */
import type { Ggml } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import type { ExpertMatrices, PlannedWeight } from './weight-plan.ts';

/** Experts of each row, and what it takes of them: I32 [used, rows], F32 [1, used, rows]. */
export interface ExpertChoice {
  chosen: Pointer;
  shares: Pointer;
}

/** What of a graph's builder a mixture needs. */
export interface MixtureBuilder {
  ggml: Ggml;
  context: Pointer;
  n_embd: number;
  experts: { count: number; used_per_token: number };
  /** Computes a tensor before those that are added later. */
  expand(tensor: Pointer): void;
  /** Scores of the experts: F32 [count, rows]. */
  route(router: PlannedWeight, x: Pointer): Pointer;
  /** Rows, [width, 1 or used, rows], times the matrices of their experts. */
  products(weights: readonly PlannedWeight[], x: Pointer, chosen: Pointer): Pointer[];
}

/**
 * Softmax over the router's scores, the best `used_per_token`, their weights made to sum to one (Mixtral,
 * https://arxiv.org/abs/2401.04088; Qwen3-MoE with norm_topk_prob).
 * @param x F32 [n_embd, rows], normed
 */
export function chooseExperts(
  builder: MixtureBuilder,
  x: Pointer,
  rows: number,
  router: PlannedWeight,
): ExpertChoice {
  const { ggml, context: c } = builder;
  const { count, used_per_token: used } = builder.experts;
  const scores = ggml.ggml_soft_max(c, builder.route(router, x));
  const chosen = ggml.ggml_argsort_top_k(c, scores, used)!;
  const weights = ggml.ggml_get_rows(c, ggml.ggml_reshape_3d(c, scores, 1, count, rows), chosen);
  const flat = ggml.ggml_reshape_2d(c, weights, used, rows);
  // The smallest normal half: a sum that underflowed must not divide by zero.
  const sum = ggml.ggml_clamp(c, ggml.ggml_sum_rows(c, flat), 6.103515625e-5, Number.POSITIVE_INFINITY);
  return { chosen, shares: ggml.ggml_reshape_3d(c, ggml.ggml_div(c, flat, sum), 1, used, rows)! };
}

/** @returns F32 [n_embd, rows] */
export function mixExperts(
  builder: MixtureBuilder,
  x: Pointer,
  rows: number,
  { gate, up, down }: ExpertMatrices,
  { chosen, shares }: ExpertChoice,
): Pointer {
  const { ggml, context: c, n_embd } = builder;
  const { used_per_token: used } = builder.experts;
  const input = ggml.ggml_reshape_3d(c, x, n_embd, 1, rows);
  const [gated, raised] = builder.products([gate, up], input!, chosen);
  const activated = ggml.ggml_swiglu_split(c, gated!, raised!);
  const [lowered] = builder.products([down], activated!, chosen);
  const weighted = ggml.ggml_mul(c, lowered!, shares)!;
  // The graph must know the product before its views, so that they are computed in order.
  builder.expand(weighted);
  const expert = (index: number): Pointer =>
    ggml.ggml_view_2d(c, weighted, n_embd, rows, used * n_embd * 4, index * n_embd * 4)!;
  let result = expert(0);
  for (let index = 1; index < used; index++) result = ggml.ggml_add(c, result, expert(index))!;
  return used === 1 ? ggml.ggml_cont(c, result)! : result;
}
