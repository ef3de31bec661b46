import type { OperatorCost } from '../../../solver/partition/operator-graph.ts';

/** An embedding, layers of attention and feed-forward, and an output, with sizes by chance. */
export function randomOperators(layers: number, random: () => number): OperatorCost[] {
  const cost = (kind: OperatorCost['kind'], layer?: number): OperatorCost => {
    const operator: OperatorCost = {
      kind,
      compute_s: 0.001 * (1 + Math.floor(8 * random())),
      weight_bytes: 1e6 * (1 + Math.floor(8 * random())),
      activation_bytes: 1e3,
      kv_bytes_per_token: kind === 'attention' ? 100 : 0,
    };
    if (layer !== undefined) operator.layer = layer;
    return operator;
  };
  const operators = [cost('embedding')];
  for (let layer = 0; layer < layers; layer++)
    operators.push(cost('attention', layer), cost('feed_forward', layer));
  operators.push(cost('output'));
  return operators;
}
