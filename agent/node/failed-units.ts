import type { HpcserveError } from '../../spec/errors/error.ts';
import type { SessionModel } from '../../spec/session-record.ts';
import type { UnitGroup } from './assign-devices.ts';
import { answers, oneLine } from './model-path.ts';
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

/** Why units of a node are lost whose first stage lives: a later one failed on another device. */
export function lostUnits(
  supervisors: readonly {
    group: UnitGroup;
    failed_units: readonly string[];
    model_errors: ReadonlyMap<string, HpcserveError>;
    error: HpcserveError | undefined;
  }[],
): Map<string, HpcserveError> {
  const lost = new Map<string, HpcserveError>();
  for (const { group, failed_units, model_errors, error } of supervisors)
    for (const unit of group.units) {
      const why = model_errors.get(unit.model.name) ?? error;
      if (why && !answers(unit) && failed_units.includes(unit.unit)) lost.set(unit.unit, why);
    }
  return lost;
}

/** Models of a group as others are told of them: one that waits for a stage that failed has failed. */
export function toldModels(
  { units }: UnitGroup,
  models: readonly SessionModel[],
  lostOnes: () => ReadonlyMap<string, HpcserveError>,
): readonly SessionModel[] {
  const cut = units.filter((unit) => unit.stages !== undefined && answers(unit));
  if (cut.length === 0) return models;
  const lost = lostOnes();
  return models.map((model) => {
    const why = lost.get(cut.find((unit) => unit.model.name === model.name)?.unit ?? '');
    const waits = model.state === 'loading' || model.state === 'pending';
    return why && waits ? { ...model, state: 'failed', error: oneLine(why.message) } : model;
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
