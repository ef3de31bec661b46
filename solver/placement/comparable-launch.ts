/** What two launches have to have in common for one of them to be left as it runs. Pure. */
import type { UnitSpec } from '../../spec/launch.ts';
import { stageBounds } from '../../spec/model-yaml.ts';
import type { PlannedLaunch } from '../../spec/plan.ts';
import { withoutResident } from './resident-layers.ts';

/**
 * A launch without what follows the load and the neighbours of its replicas, and is no matter of those that run: layers
 * that stay, what is counted on of a link, and the stages that a pipeline begins with whose stages change while it
 * serves.
 */
export function comparableLaunch(launch: PlannedLaunch): PlannedLaunch {
  const kept = withoutResident(launch);
  return { ...kept, units: kept.units.map((unit) => withoutStart(withoutLink(unit))) };
}

function withoutLink(unit: UnitSpec): UnitSpec {
  if (unit.memory === undefined) return unit;
  const { link_share: _, link_bytes_per_s: __, ...memory } = unit.memory;
  return { ...unit, memory };
}

function withoutStart(unit: UnitSpec): UnitSpec {
  const { stages_min, stages_max } = stageBounds(unit.model);
  if (stages_min === stages_max) return unit;
  const { stages: _, stage_devices: __, ...same } = unit;
  return same;
}
