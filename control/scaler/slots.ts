import { requestSlots } from '../../solver/scaling/slots.ts';
import { concurrencyOf } from '../../spec/launch.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import { assumedWorkload, type PlannedWorkload } from '../../spec/plan.ts';
import type { Observation } from '../reconcile/observe.ts';
import { type DeploymentState, wantedLaunches } from '../state/deployment-state.ts';

/**
 * Requests that a replica of a model computes at once: as its engines say, else as the plan takes them to choose. The
 * least of its replicas counts. Nothing is known of a model that has no replica and never had one: 16, as natively.
 */
export function slotsOf(
  state: DeploymentState,
  observation: Observation | undefined,
  model: ModelSpec,
  measured: PlannedWorkload | undefined,
): number {
  const lengths = model.workload ?? measured ?? assumedWorkload;
  const wanted = wantedLaunches(state);
  const slots = (wanted.length > 0 ? wanted : state.launches).flatMap(({ launch_id, planned }) =>
    planned.units
      .filter((unit) => unit.model.name === model.name)
      .map((unit) => {
        // Natively KV is given to sequences as they grow, and what does not fit is swapped out.
        if (unit.engine === 'native') return concurrencyOf(unit);
        const seen = observation?.launches.get(launch_id)?.units.find((each) => each.unit === unit.unit);
        return requestSlots(
          {
            max_sequences: seen?.limits?.max_sequences ?? concurrencyOf(unit),
            kv_tokens: seen?.limits?.kv_tokens ?? unit.kv_tokens,
          },
          lengths,
        );
      }),
  );
  return slots.length > 0 ? Math.min(...slots) : (model.max_sequences ?? 16);
}
