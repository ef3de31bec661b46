/** Stages as people count them, by layers, and as operators of the model. */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { RefactorStage } from '../../spec/refactor.ts';
import type { OperatorRange } from './layout.ts';

/**
 * Operators of each stage: the embedding goes with the first, the head with the last.
 * @param n_operators of the model: two a layer, the embedding and the head
 * @throws HpcserveError E_REFACTOR_LAYOUT: layers are missing or there twice, or two stages are on one device
 */
export function stageOperatorsOf(stages: readonly RefactorStage[], n_operators: number): OperatorRange[] {
  const n_layer = (n_operators - 2) / 2;
  const wrong: string[] = [];
  const devices = new Set<string>();
  let next = 0;
  for (const [index, { device, node, first_block, blocks }] of stages.entries()) {
    if (first_block !== next)
      wrong.push(`stage ${index} begins at layer ${first_block}, and the one before it ends at ${next}`);
    next = first_block + blocks;
    const place = `${node ?? ''} ${device}`;
    if (devices.has(place)) wrong.push(`two stages are on ${device}`);
    devices.add(place);
  }
  if (next !== n_layer) wrong.push(`the last stage ends at layer ${next} of ${n_layer}`);
  if (wrong.length > 0)
    throw new HpcserveError('E_REFACTOR_LAYOUT', {
      what: 'these stages do not make up the model',
      because: wrong,
    });
  return stages.map(({ first_block, blocks }, index) => ({
    begin: index === 0 ? 0 : 1 + 2 * first_block,
    end: index === stages.length - 1 ? n_operators : 1 + 2 * (first_block + blocks),
  }));
}
