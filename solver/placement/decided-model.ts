import type { UnitSpec } from '../../spec/launch.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { Residency } from '../../spec/plan.ts';

/**
 * The model as it is asked for, with what a plan decided of a unit of it: in which precision and how it is split, and
 * where its weights lie. Nothing of these is open in a job any more.
 */
export function asDecided(spec: ModelSpec, { model }: Pick<UnitSpec, 'model'>): ModelSpec {
  const { precision, parallel, weights, latency_sensitivity } = model;
  return { ...spec, precision, parallel, weights, latency_sensitivity };
}

/** The model as it is asked for with its weights there. */
export function lyingSo(spec: ModelSpec, weights: Residency): ModelSpec {
  // It counts loads, and streamed weights have none.
  const { latency_sensitivity } = weights === 'streamed' ? { latency_sensitivity: 1 } : spec;
  return { ...spec, weights, latency_sensitivity };
}

/** Where the weights of a unit lie. Earlier versions left it open in some jobs, whose workers loaded the model. */
export function residencyOf({ model }: Pick<UnitSpec, 'model'>): Residency {
  return model.weights === 'auto' ? 'resident' : model.weights;
}

/** Where the weights of most of these replicas lie, of as many the faster; undefined where there is none. */
export function residencyOfMost(
  running: readonly { weights?: Residency | undefined; replicas: number }[],
): Residency | undefined {
  const replicasWith = (residency: Residency): number =>
    running.reduce(
      (sum, { weights = 'resident', replicas }) => sum + (weights === residency ? replicas : 0),
      0,
    );
  const counts = (['resident', 'reuse', 'streamed'] as const).map((residency) => ({
    residency,
    replicas: replicasWith(residency),
  }));
  const most = counts.reduce((best, next) => (next.replicas > best.replicas ? next : best));
  return most.replicas > 0 ? most.residency : undefined;
}
