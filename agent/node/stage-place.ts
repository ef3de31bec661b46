import { createHash } from 'node:crypto';
import { join } from 'node:path';
import type { SessionState } from '../../spec/agent-state.ts';
import type { PipelinePlace } from '../pipeline/pipeline-place.ts';
import type { GroupUnit, UnitGroup } from './assign-devices.ts';

/**
 * Where a unit's stage stands in its pipeline; undefined where the unit is not cut. The agent's own folder has the
 * sockets: their names follow from the unit, so that a worker that is started again is found where the last one was.
 * @param device as people know it
 * @param folder of mode 0700, the agent's
 */
export function stagePlace(unit: GroupUnit, device: string, folder: string): PipelinePlace | undefined {
  const { stages, stage, first_device, ring } = unit;
  const own = stage === undefined ? undefined : stages?.[stage];
  if (!stages || stage === undefined || !own) return undefined;
  const { begin, end } = own;
  return {
    stage,
    stages: stages.length,
    begin,
    end,
    listen: stageSocket(folder, unit.unit, stage, ring),
    next: stageSocket(folder, unit.unit, (stage + 1) % stages.length, ring),
    device: `${device} ${first_device}`,
    device_identity: deviceIdentity(folder, unit),
  };
}

/** What the device of a unit is among all of its pipeline's. */
export function deviceIdentity(folder: string, { device_kind, first_device }: GroupUnit): string {
  return `${folder} ${device_kind} ${first_device}`;
}

/** Where a stage of a unit is reached on a node: at its worker, or at the agent where it is on another node. */
export function stageSocket(folder: string, unit: string, stage: number, ring?: number): string {
  const key = createHash('sha256').update(unit).digest('hex').slice(0, 8);
  return join(folder, ring === undefined ? `p${key}-${stage}.sock` : `p${key}-${ring}-${stage}.sock`);
}

/** The stages that a group's device has, for people. */
export function stagesOf({ units }: UnitGroup): SessionState['stages'] {
  const found = units.flatMap(({ unit, model, stage, stages }) =>
    stages && stage !== undefined && stage < stages.length
      ? [{ unit, model: model.name, stage, stages: stages.length, ...stages[stage]! }]
      : [],
  );
  return found.length > 0 ? found : undefined;
}

/** Whether a device has nothing to load for a unit yet: it is for a stage that its pipeline may get. */
export function isSpare({ stage, stages }: GroupUnit): boolean {
  return stages !== undefined && stage !== undefined && stage >= stages.length;
}
