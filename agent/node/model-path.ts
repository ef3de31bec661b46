import { accessSync, constants } from 'node:fs';
import { hostname } from 'node:os';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { ServedModel } from '../../spec/session-record.ts';

/** @throws HpcserveError E_AGENT_MODEL_PATH where this node cannot read the unit's model */
export function checkModelPath(unit: UnitSpec): void {
  try {
    accessSync(unit.model_path, constants.R_OK);
  } catch (error) {
    throw new HpcserveError('E_AGENT_MODEL_PATH', {
      what: `node ${hostname()} cannot read ${unit.model_path}, the model of unit ${unit.unit}`,
      because: (error as Error).message,
      details: { path: unit.model_path, unit: unit.unit },
      cause: error,
    });
  }
}

/** The model of a unit as a session record lists it, before anything was loaded. */
export function pendingModel(unit: UnitSpec): ServedModel {
  return {
    name: unit.model.name,
    aliases: unit.model.aliases,
    state: 'pending',
    precision: unit.model.precision,
    context_tokens: unit.context_tokens,
    ...(Object.keys(unit.model.slo).length === 0 ? {} : { slo: unit.model.slo }),
  };
}

/** What people see beside a model's name: one line, whatever a library put into its message. */
export function oneLine(text: string): string {
  return text
    .replace(/[\s\p{Cc}]+/gu, ' ')
    .trim()
    .slice(0, 500);
}
