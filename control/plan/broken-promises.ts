/** Whether a plan can keep what its models are to promise, by what the simulator expects of it. Pure. */
import type { Plan, PlannedModel } from '../../spec/plan.ts';

/** Of requests within their SLO. Below, most of them miss it. */
const kept_min = 0.5;
/** Of what replicas can take. Above, they never catch up. */
const load_max = 1;

/** One sentence for each model that cannot keep its promise; nothing is said of what nobody can predict. */
export function brokenPromises({ models, unplaced }: Pick<Plan, 'models' | 'unplaced'>): string[] {
  // Such a plan is none, and says so.
  if (unplaced.length > 0) return [];
  return models.flatMap((model) => brokenPromise(model) ?? []);
}

function brokenPromise({ model, workload, groups }: PlannedModel): string | undefined {
  const known = groups.flatMap(({ predicted, traffic_share }) =>
    predicted && traffic_share > 0 ? [{ ...predicted, traffic_share }] : [],
  );
  if (known.length === 0) return undefined;
  const shares = known.reduce((sum, { traffic_share }) => sum + traffic_share, 0);
  const kept =
    known.reduce((sum, { slo_attainment, traffic_share }) => sum + slo_attainment * traffic_share, 0) /
    shares;
  const load = Math.max(...known.map(({ utilization }) => utilization));
  if (kept >= kept_min && load <= load_max) return undefined;
  const most = known.reduce((sum, { max_rate_per_s }) => sum + max_rate_per_s, 0);
  const told = workload.source === 'assumed' ? ', which is assumed: model.yaml has no workload' : '';
  return [
    `${model} cannot keep its promise: load ${percent(load)}, ${percent(kept)} of requests within the SLO`,
    `its replicas can take ${Number(most.toPrecision(3))} of ${Number(workload.rate_per_s.toPrecision(3))} requests/s${told}`,
    'give it more replicas or faster devices, or say in model.yaml what it is for (workload, slo)',
  ].join('; ');
}

function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}
