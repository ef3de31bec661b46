/**
 * On which devices the stages of another cut lie, so that least has to be moved: what a device computes already, it
 * keeps. Pure.
 */
import type { StageCut } from './stage-plan.ts';

/** A device that a pipeline may use, and what it computes of it now. */
export interface StageDevice<Id> {
  device: Id;
  held?: StageCut;
}

/**
 * The first stage stays on its device, since requests and sequences are there. Of the others the pair of stage and
 * device that has most operators in common comes first; what has none in common takes what is left, in order.
 * @param devices those that are used now in the order of their stages, then the others
 * @returns for each stage its device; undefined where there are fewer devices than stages
 */
export function devicesForStages<Id>(
  cuts: readonly StageCut[],
  devices: readonly StageDevice<Id>[],
): Id[] | undefined {
  if (devices.length < cuts.length) return undefined;
  const taken = new Map<number, number>([[0, 0]]);
  const free = new Set(devices.keys());
  free.delete(0);
  const pairs = cuts
    .flatMap((cut, stage) =>
      devices.map(({ held }, device) => ({ stage, device, common: held ? operatorsInCommon(cut, held) : 0 })),
    )
    .filter(({ common }) => common > 0)
    .sort((a, b) => b.common - a.common || a.stage - b.stage || a.device - b.device);
  for (const { stage, device } of pairs) {
    if (taken.has(stage) || !free.has(device)) continue;
    taken.set(stage, device);
    free.delete(device);
  }
  return cuts.map((_, stage) => {
    let device = taken.get(stage);
    if (device === undefined) {
      // One that holds nothing before one that another stage leaves.
      device = [...free].find((each) => devices[each]!.held === undefined) ?? [...free][0]!;
      free.delete(device);
    }
    return devices[device]!.device;
  });
}

function operatorsInCommon(a: StageCut, b: StageCut): number {
  return Math.max(0, Math.min(a.end, b.end) - Math.max(a.begin, b.begin));
}
