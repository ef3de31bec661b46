/** Why a plan is infeasible although each model alone has a place: the smallest set of models that clashes. */
import type { PlacementClash } from '../../spec/plan.ts';
import {
  type AllocationQuestion,
  devicesTaken,
  deviceTypes,
  type ModelDemand,
  suffices,
} from './allocation.ts';

const nodes_max = 2000;

/**
 * Models are left out one after the other as long as the rest still clashes (a deletion filter: what is left
 * at the end is minimal). Undefined where no set can be shown to clash.
 */
export function findClash(
  models: readonly ModelDemand[],
  asked: Omit<AllocationQuestion, 'costOf'>,
): PlacementClash | undefined {
  const { question } = asked;
  const clashes = (set: readonly ModelDemand[]): boolean => suffices(set, asked, nodes_max) === false;
  let set = models.filter(({ options, replicas }) => options.length > 0 && replicas !== 0);
  if (!clashes(set)) return undefined;
  for (const model of set) {
    const rest = set.filter((each) => each !== model);
    if (clashes(rest)) set = rest;
  }
  const offers = [...new Set(set.flatMap(({ options }) => options.map(({ offer }) => offer)))];
  const count = ({ replicas }: ModelDemand): number => (replicas === 'auto' ? 1 : replicas);
  const least = (model: ModelDemand): number =>
    Math.ceil(count(model) * Math.min(...model.options.map((option) => devicesTaken(option, question))));
  const needed = set.reduce((sum, model) => sum + least(model), 0);
  const available = deviceTypes({ ...question, node_kinds: offers }).reduce(
    (sum, { count }) => sum + count,
    0,
  );
  const parts = set.map((model) => `${model.name} (${count(model)} × ${least(model) / count(model)})`);
  const where = offers.map((offer) => `${offer.node_kind}: ${offer.nodes_total} × ${offer.devices.count}`);
  return {
    models: set.map(({ name }) => name),
    node_kinds: offers.map(({ node_kind }) => node_kind),
    needed,
    available,
    because:
      `${parts.join(' and ')} need at least ${needed} devices of their own; ` +
      `the nodes they can run on have ${available} (${where.join(', ')})`,
  };
}
