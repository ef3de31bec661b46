/** What replicas cost where they are, as `place` counts it: two arrangements are compared by one measure. */
import { plannedNameOf } from '../../spec/model-pools.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { PlacementModel, PlacementQuestion, PlannedLaunch } from '../../spec/plan.ts';
import { residencyOf } from './decided-model.ts';
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
  for (const asked of question.models) {
    const options = asDecided(asked, launches).flatMap((model) => {
      const shape = shapeOf(model);
      return question.node_kinds.flatMap((offer) => {
        const found = placementOptions(model, shape, offer, question);
        return 'constraint' in found ? [] : found;
      });
    });
    byModel.set(asked.spec.name, options);
  }
  const costOf = objectiveCost(question, estimator, byModel);
  let cost = 0;
  for (const { spec } of question.models) {
    if (spec.replicas === 0) continue;
    const groups = groupsOf(spec, launches, byModel.get(spec.name)!, estimator);
    if (groups === undefined || groups.length === 0) return undefined;
    const replicas = groups.reduce((sum, group) => sum + group.replicas, 0);
    if (spec.replicas !== 'auto' && replicas < spec.replicas) return undefined;
    const all = groups.reduce((sum, { rate }) => sum + rate, 0);
    cost += groups.reduce((sum, { option, replicas: own, rate }) => sum + costOf(option, own, rate / all), 0);
  }
  return cost;
}

/** With its weights wherever they lie in these launches, where that was left to the plan. */
function asDecided(model: PlacementModel, launches: readonly PlannedLaunch[]): PlacementModel[] {
  if (model.spec.weights !== 'auto') return [model];
  const units = launches.flatMap((launch) => launch.units);
  const own = units.filter((unit) => plannedNameOf(unit) === model.spec.name);
  return [...new Set(own.map(residencyOf))].map((weights) => withResidency(model, weights));
}

/** Undefined where a replica stands where none may. */
function groupsOf(
  { name, weights }: ModelSpec,
  launches: readonly PlannedLaunch[],
  options: readonly PlacementOption[],
  estimator: LatencyEstimator,
): Group[] | undefined {
  const counts = new Map<PlacementOption, number>();
  for (const launch of launches)
    for (const unit of launch.units) {
      if (plannedNameOf(unit) !== name) continue;
      const { precision } = unit.model;
      const alike = options.filter(
        ({ offer, engine, tensor, pipeline, model }) =>
          offer.node_kind === launch.node_kind &&
          offer.devices.model === launch.devices_per_node.model &&
          engine === unit.engine &&
          tensor === unit.tensor &&
          pipeline === unit.pipeline &&
          (weights !== 'auto' || model.spec.weights === residencyOf(unit)),
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
