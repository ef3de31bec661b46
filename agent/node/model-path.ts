import { accessSync, constants } from 'node:fs';
import { hostname } from 'node:os';
import { brokenLinks } from '../../host/unit-paths.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { SessionModel } from '../../spec/session-record.ts';

/**
 * What an engine would find out after minutes, or never say.
 * @throws HpcserveError E_AGENT_MODEL_PATH where this node cannot read the unit's model or chat template
 */
export function checkModelPath(unit: UnitSpec): void {
  checkReadable(unit, unit.model_path, 'the model');
  if (unit.model.chat_template !== undefined)
    checkReadable(unit, unit.model.chat_template, 'the chat template');
  const [broken, ...more] = brokenLinks(unit.model_path);
  if (broken === undefined) return;
  throw new HpcserveError('E_AGENT_MODEL_PATH', {
    what: `node ${hostname()} sees no whole model in ${unit.model_path}, for unit ${unit.unit}`,
    because: `${broken.link} leads to ${broken.target}, which is not there${more.length > 0 ? `, and ${more.length} more links lead nowhere` : ''}`,
    try: 'download the model again; where jobs run in a container, bind the folder that holds these files (runtime.container.binds)',
    details: { path: unit.model_path, unit: unit.unit },
  });
}

function checkReadable(unit: UnitSpec, path: string, role: string): void {
  try {
    accessSync(path, constants.R_OK);
  } catch (error) {
    throw new HpcserveError('E_AGENT_MODEL_PATH', {
      what: `node ${hostname()} cannot read ${path}, ${role} of unit ${unit.unit}`,
      because: (error as Error).message,
      details: { path, unit: unit.unit },
      cause: error,
    });
  }
}

/** Requests for it come here: all of it is here, or its first stage. */
export function answers({ stage = 0 }: { stage?: number }): boolean {
  return stage === 0;
}

/** The model of a unit as a session record lists it, before anything was loaded. */
export function pendingModel(unit: UnitSpec): SessionModel {
  const { name, aliases, precision, slo } = unit.model;
  const { context_tokens, pool } = unit;
  const model: SessionModel = { name, aliases, state: 'pending', precision, context_tokens };
  if (pool) model.pool = pool;
  if (Object.keys(slo).length > 0) model.slo = slo;
  return model;
}

/** What people see beside a model's name: one line, whatever a library put into its message. */
export function oneLine(text: string): string {
  return text
    .replace(/[\s\p{Cc}]+/gu, ' ')
    .trim()
    .slice(0, 500);
}
