import { join } from 'node:path';
import { z } from 'zod';
import { readJsonIfThere, writeFileAtomically } from '../../host/whole-file.ts';
import { deviceKindOn, type LaunchSpec, stagesPerNode, type UnitSpec } from '../../spec/launch.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { GroupUnit, UnitGroup } from './assign-devices.ts';
import type { AgentLog } from './log.ts';

/** Where the stages of a unit lie since they have changed, to all agents that have some of them. */
export const stageLayoutSchema = z.object({
  /** Of the change that brought it: each has a ring of its own, later ones a higher number. */
  ring: z.int().min(1),
  /** In the order of computation. */
  stages: z
    .array(
      z.object({
        /** Among the nodes that units count. */
        node_index: z.int().min(0),
        /** `gpu 0`, as people know it. */
        device: z.string(),
        begin: z.int().min(0),
        end: z.int().min(1),
      }),
    )
    .min(1),
});
export type StageLayout = z.infer<typeof stageLayoutSchema>;

/** As agents tell it one another: 0 is the ring of its launch. */
export const toldLayoutSchema = stageLayoutSchema.extend({ ring: z.int().min(0) });

type LaunchFolder = Pick<LaunchSpec, 'launch_folder' | 'part'>;

/**
 * Agents of one job have one folder, and those of several jobs of a pipeline another one: what is written there, all of
 * them read.
 *
 * @returns undefined where the stages of the unit are on one node, or cannot be kept
 */
function pathOf(
  { launch_folder, part }: LaunchFolder,
  { unit, stages, nodes = 1 }: UnitSpec,
): string | undefined {
  if (stages === undefined || nodes === 1) return undefined;
  if (part === undefined) return join(launch_folder, launchFiles.stages(unit));
  return part.folder === undefined ? undefined : join(part.folder, launchFiles.stages(part.group));
}

/**
 * Whether an agent that starts again finds another layout of a unit. Where one of those that have stages of it does
 * not, it begins with stages that the others do not have.
 */
export function canChange({ part }: LaunchFolder, { nodes = 1 }: UnitSpec): boolean {
  return nodes === 1 || part === undefined || part.folder !== undefined;
}

/** Why not, of an agent that would not find it. */
export const cannot_change = 'its job was submitted by an earlier version: its stages stay';

/**
 * Keeps the layout of a unit whose stages lie on several nodes: an agent that starts again has its own from there.
 * @throws the system's error
 */
export function keepStageLayout(launch: LaunchFolder, unit: UnitSpec, layout: StageLayout): void {
  const path = pathOf(launch, unit);
  if (path !== undefined) writeFileAtomically(path, `${JSON.stringify(layout)}\n`);
}

/**
 * The layout that was kept of a unit; undefined where its stages are those of its launch.
 * @throws the system's error, and one of what cannot be read
 */
export function keptStageLayout(launch: LaunchFolder, unit: UnitSpec): StageLayout | undefined {
  const path = pathOf(launch, unit);
  const json = path === undefined ? undefined : readJsonIfThere(path);
  return json === undefined ? undefined : stageLayoutSchema.parse(json);
}

/**
 * Has the units of a node begin with the stages that they had when an agent of it was here before. What cannot be read
 * is as none.
 *
 * @returns the layouts by units
 */
export function adoptKeptLayouts(
  launch: LaunchFolder,
  node_index: number,
  groups: readonly UnitGroup[],
  log: AgentLog,
): Map<string, StageLayout> {
  const layouts = new Map<string, StageLayout>();
  for (const { units } of groups) {
    for (const [at, unit] of units.entries()) {
      const layout = layouts.get(unit.unit) ?? readOrReport(launch, unit, log);
      if (!layout) continue;
      layouts.set(unit.unit, layout);
      units[at] = unitInLayout(unit, layout, node_index);
    }
  }
  return layouts;
}

function readOrReport(launch: LaunchFolder, unit: UnitSpec, log: AgentLog): StageLayout | undefined {
  try {
    return keptStageLayout(launch, unit);
  } catch (error) {
    log.error(
      { unit: unit.unit, error: String(error) },
      'the layout that was kept of its stages cannot be read',
    );
    return undefined;
  }
}

/** On which node each stage of a unit is as its launch says: so many on each node after the other. */
export function plannedNodes(unit: UnitSpec): number[] {
  const { stages = [], node_index } = unit;
  return stages.map((_, stage) => node_index + Math.floor(stage / stagesPerNode(unit)));
}

/** The layout of a unit that has not changed. */
export function plannedLayout(unit: UnitSpec): StageLayout {
  const { stages = [], stage_devices, first_device } = unit;
  const nodes = plannedNodes(unit);
  return {
    ring: 0,
    stages: stages.map((cut, stage) => ({
      node_index: nodes[stage]!,
      device: `${deviceKindOn(unit, nodes[stage]!)} ${first_device + (stage_devices?.[stage] ?? stage % stagesPerNode(unit))}`,
      ...cut,
    })),
  };
}

/** What a device of a node has of a unit in a layout; a stage behind the last one where it has none. */
export function unitInLayout(unit: GroupUnit, layout: StageLayout, node_index: number): GroupUnit {
  const device = `${unit.device_kind} ${unit.first_device}`;
  const stages = layout.stages.map(({ begin, end }) => ({ begin, end }));
  const at = layout.stages.findIndex((each) => each.node_index === node_index && each.device === device);
  return { ...unit, stages, stage: at < 0 ? stages.length : at, ring: layout.ring };
}
