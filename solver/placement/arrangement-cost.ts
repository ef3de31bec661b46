/** What replicas cost where they are, as `place` counts it: two arrangements are compared by one measure. */
import type { PlacementModel, PlacementQuestion, PlannedLaunch } from '../../spec/plan.ts';
import { LatencyEstimator } from './latency-estimator.ts';
import { shapeOf } from './model-facts.ts';
import { objectiveCost } from './objective.ts';
import { type PlacementOption, placementOptions } from './options.ts';
import { withResidency } from './residencies.ts';

/** Replicas that are alike. */
interface Group {
  option: PlacementOption;
  replicas: number;
  /** Requests per second it could take; what nothing is known of takes as much as any other. */
  rate: number;
}

/**
 * Points of the question's objective for these launches. Requests go to replicas by what they can take, as the gateway
 * sends them. `question.running` decides what of it counts as a move.
 * @returns undefined where a model of the question has no replica, or one stands where the question allows none
 */
export function arrangementCost(
  question: PlacementQuestion,
  launches: readonly PlannedLaunch[],
  estimator: LatencyEstimator = new LatencyEstimator(),
): number | undefined {
  const byModel = new Map<string, readonly PlacementOption[]>();
  for (const open of question.models) {
    const model = asDecided(open, launches);
    const shape = shapeOf(model);
    const options = question.node_kinds.flatMap((offer) => {
      const found = placementOptions(model, shape, offer, question);
      return 'constraint' in found ? [] : found;
    });
    byModel.set(model.spec.name, options);
  }
  const costOf = objectiveCost(question, estimator, byModel);
  let cost = 0;
  for (const { spec } of question.models) {
    if (spec.replicas === 0) continue;
    const groups = groupsOf(spec.name, launches, byModel.get(spec.name)!, estimator);
    if (groups === undefined || groups.length === 0) return undefined;
    const replicas = groups.reduce((sum, group) => sum + group.replicas, 0);
    if (spec.replicas !== 'auto' && replicas < spec.replicas) return undefined;
    const all = groups.reduce((sum, { rate }) => sum + rate, 0);
    cost += groups.reduce((sum, { option, replicas: own, rate }) => sum + costOf(option, own, rate / all), 0);
  }
  return cost;
}

/** With its weights where they lie in these launches, where that was left to the plan. */
function asDecided(model: PlacementModel, launches: readonly PlannedLaunch[]): PlacementModel {
  if (model.spec.weights !== 'auto') return model;
  const units = launches.flatMap((launch) => launch.units);
  const weights = units.find((unit) => unit.model.name === model.spec.name)?.model.weights ?? 'resident';
  return weights === 'auto' ? model : withResidency(model, weights);
}

/** Undefined where a replica stands where none may. */
function groupsOf(
  name: string,
  launches: readonly PlannedLaunch[],
  options: readonly PlacementOption[],
  estimator: LatencyEstimator,
): Group[] | undefined {
  const counts = new Map<PlacementOption, number>();
  for (const launch of launches)
    for (const unit of launch.units) {
      if (unit.model.name !== name) continue;
      const { precision } = unit.model;
      const alike = options.filter(
        ({ offer, engine, tensor, pipeline }) =>
          offer.node_kind === launch.node_kind &&
          offer.devices.model === launch.devices_per_node.model &&
          engine === unit.engine &&
          tensor === unit.tensor &&
          pipeline === unit.pipeline,
      );
      const option = alike.find((each) => each.precision === precision) ?? alike[0];
      if (option === undefined) return undefined;
      counts.set(option, (counts.get(option) ?? 0) + 1);
    }
  const rates = [...counts].map(([option, replicas]) => ({
    option,
    replicas,
    each: estimator.maxRate(option),
  }));
  const known = rates.every(({ each }) => each !== undefined && each > 0);
  return rates.map(({ option, replicas, each }) => ({
    option,
    replicas,
    rate: replicas * (known ? each! : 1),
  }));
}
