/**
 * A model as a row of operators. Stages are contiguous ranges of it: pipelines cut between operators, and
 * hidden states of shape [rows, n_embd] in f32 cross the cut.
 *
 *   0: embedding · 1 + 2l: attention of layer l · 2 + 2l: feed-forward of layer l · last: output norm and head
 */
import { HpcserveError } from '../../spec/errors/error.ts';

export type Operator =
  | { kind: 'embedding' }
  | { kind: 'attention'; layer: number }
  | { kind: 'feed_forward'; layer: number }
  | MixtureOperator
  | { kind: 'output' };

/**
 * The feed-forward of a mixture in two: `router` says which experts rows go to, `experts` computes them; so that only
 * those need be on the device that a batch needs. `lookahead` asks the router of a layer that is not computed yet.
 */
export type MixtureOperator = { kind: 'router' | 'experts' | 'lookahead'; layer: number };

/** First and one-past-last operator. */
export interface StageRange {
  begin: number;
  end: number;
}

/** So many operators does a model have that is cut between them. */
export function operatorCount(n_layer: number): number {
  return 2 * n_layer + 2;
}

/** Every operator of a model, in the order of computation: 2 × n_layer + 2 of them. */
export function enumerateOperators(n_layer: number): Operator[] {
  const operators: Operator[] = [{ kind: 'embedding' }];
  for (let layer = 0; layer < n_layer; layer++)
    operators.push({ kind: 'attention', layer }, { kind: 'feed_forward', layer });
  operators.push({ kind: 'output' });
  return operators;
}

/** The place of an operator among all of its model. */
export function operatorIndex(operator: Operator, n_layer: number): number {
  switch (operator.kind) {
    case 'embedding':
      return 0;
    case 'attention':
      return 1 + 2 * operator.layer;
    case 'feed_forward':
    case 'router':
    case 'experts':
    case 'lookahead':
      return 2 + 2 * operator.layer;
    case 'output':
      return 1 + 2 * n_layer;
  }
}

/**
 * The operators of one stage; the whole model where no range is given.
 * @throws HpcserveError E_ENGINE_OPTIONS where the range is empty or outside the model
 */
export function stageOperators(n_layer: number, range?: StageRange): Operator[] {
  const all = enumerateOperators(n_layer);
  if (!range) return all;
  const { begin, end } = range;
  const valid = Number.isInteger(begin) && Number.isInteger(end) && begin >= 0 && begin < end;
  if (!valid || end > all.length)
    throw new HpcserveError('E_ENGINE_OPTIONS', {
      what: `a stage of the operators [${begin}, ${end}) does not exist`,
      because: `the model has the operators [0, ${all.length})`,
    });
  return all.slice(begin, end);
}
