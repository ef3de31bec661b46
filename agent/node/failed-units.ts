import type { SessionModel } from '../../spec/session-record.ts';
import type { UnitGroup } from './assign-devices.ts';
import { answers } from './model-path.ts';
import { isSpare } from './stage-place.ts';

/** Units that have something on the device of a group; one that is for a stage to come waits there for nothing. */
export function wantedUnits({ units }: UnitGroup): UnitGroup['units'] {
  return units.filter((unit) => !isSpare(unit));
}

/**
 * Of those, the ones that failed in a process that lives. A later stage is no model of it: what is known of it is its
 * error.
 */
export function failedUnits(
  group: UnitGroup,
  models: readonly SessionModel[],
  errors: ReadonlyMap<string, unknown>,
): string[] {
  const failed = new Set(models.flatMap(({ name, state }) => (state === 'failed' ? [name] : [])));
  return wantedUnits(group).flatMap((unit) => {
    const { name } = unit.model;
    return (answers(unit) ? failed.has(name) : errors.has(name)) ? [unit.unit] : [];
  });
}

/** Nothing will serve here any more: a unit that is cut is lost with any of its stages. */
export function areAllFailed(
  supervisors: readonly { group: UnitGroup; failed_units: readonly string[]; given_up: boolean }[],
): boolean {
  const failed = new Set(supervisors.flatMap(({ failed_units }) => failed_units));
  const wanted = supervisors.flatMap(({ group }) => wantedUnits(group));
  if (wanted.length > 0) return wanted.every(({ unit }) => failed.has(unit));
  // Where all wait for stages to come, any process that is left can take them.
  return supervisors.length > 0 && supervisors.every(({ given_up }) => given_up);
}
