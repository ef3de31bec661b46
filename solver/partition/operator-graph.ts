/**
 * A model as a row of operators with the cost of each: computation time t_c, parameter size s_p and activation size
 * s_a (FlexPipe §5). The row is the one that engines cut into stages:
 *
 *   0: embedding · 1 + 2l: attention of layer l · 2 + 2l: feed-forward of layer l · last: output norm and head
 *
 * Transformers have one path, so that the graph G = (V, E) is this order, and a stage is a contiguous range of it.
 */
export interface OperatorCost {
  kind: 'embedding' | 'attention' | 'feed_forward' | 'output';
  /** Absent of embedding and output. */
  layer?: number;
  /** Time of one pass over `rows` rows of the graph, on the device of the profile. */
  compute_s: number;
  weight_bytes: number;
  /** What leaves it for the next operator, in one pass. */
  activation_bytes: number;
  /** Keys and values that it keeps of one token. */
  kv_bytes_per_token: number;
}

export interface OperatorGraph {
  /** Of the model. */
  name: string;
  /** Micro-batch of the profile, b_base of Eq. 3. */
  rows: number;
  operators: readonly OperatorCost[];
}

/** Whether a cut behind this operator lies between two blocks of the model, and not within a layer. */
export function endsBlock({ kind }: OperatorCost): boolean {
  return kind !== 'attention';
}

/** `attention of layer 7`, for people. */
export function describeOperator({ kind, layer }: OperatorCost): string {
  const what = kind === 'feed_forward' ? 'feed-forward' : kind;
  return layer === undefined ? what : `${what} of layer ${layer}`;
}

/** What a range of operators took in one batch. */
export interface MeasuredRange {
  begin: number;
  end: number;
  compute_s: number;
  /** Of each of them, where that was measured; they add up to `compute_s`. */
  operators_s?: readonly number[];
}

/**
 * Operators with times that add up to what ranges of them took, such as the stages of a pipeline that runs. Within a
 * range each has what it was measured to take, or they are shared as predicted. Operators of no range are scaled as all
 * measured ones together.
 */
export function withMeasuredRanges(
  operators: readonly OperatorCost[],
  measured: readonly MeasuredRange[],
): OperatorCost[] {
  const predicted_s = ({ begin, end }: MeasuredRange): number =>
    operators.slice(begin, end).reduce((sum, operator) => sum + operator.compute_s, 0);
  const known = measured.filter((range) => range.compute_s > 0 && predicted_s(range) > 0);
  const took_s = known.reduce((sum, range) => sum + range.compute_s, 0);
  const overall = known.length > 0 ? took_s / known.reduce((sum, range) => sum + predicted_s(range), 0) : 1;
  const ratios = operators.map(() => overall);
  for (const range of known) ratios.fill(range.compute_s / predicted_s(range), range.begin, range.end);
  const single_s = new Map<number, number>();
  for (const { begin, end, operators_s } of known)
    if (operators_s?.length === end - begin)
      for (const [index, seconds] of operators_s.entries()) single_s.set(begin + index, seconds);
  return operators.map((operator, index) => ({
    ...operator,
    compute_s: single_s.get(index) ?? operator.compute_s * ratios[index]!,
  }));
}
