/** Pipelines whose stages leave a node that is to go: which layouts they may have without it. */
import type { OperatorRange } from './layout.ts';

/** A device, as layouts of several nodes name it. */
export interface DeviceOfNode {
  node_index: number;
  device: string;
}

/** A stage on it. */
export interface NodeStage extends DeviceOfNode, OperatorRange {}

/**
 * Layouts without a node, best first. A stage keeps its size where a device is free for it; else its operators go to a
 * neighbour, which may have no room for them: then the next layout is tried. The first stage stays, since its device
 * has the requests: there is no layout where that one leaves.
 *
 * @param stages in the order of computation
 * @param free devices of other nodes that have no stage, best first
 */
export function layoutsWithout(
  stages: readonly NodeStage[],
  leaving: number,
  free: readonly DeviceOfNode[],
): NodeStage[][] {
  const moved = stages.filter(({ node_index }) => node_index === leaving).length;
  if (moved === 0 || stages[0]!.node_index === leaving) return [];
  const most = Math.min(moved, free.length);
  return Array.from({ length: most + 1 }, (_, merged) =>
    without(stages, leaving, free.slice(0, most - merged)),
  );
}

/** The first stages that leave get the free devices, and the others are merged. */
function without(stages: readonly NodeStage[], leaving: number, free: readonly DeviceOfNode[]): NodeStage[] {
  const left = [...free];
  const found: NodeStage[] = [];
  /** Of stages that are merged and follow one another. */
  let loose: OperatorRange | undefined;
  for (const stage of stages) {
    const device = stage.node_index === leaving ? left.shift() : stage;
    if (!device) {
      loose = { begin: loose?.begin ?? stage.begin, end: stage.end };
      continue;
    }
    const { node_index, device: name } = device;
    const next = { node_index, device: name, begin: stage.begin, end: stage.end };
    if (loose) give(loose, found.at(-1)!, next);
    loose = undefined;
    found.push(next);
  }
  if (loose) found.at(-1)!.end = loose.end;
  return found;
}

/** To the smaller one of both neighbours. */
function give({ begin, end }: OperatorRange, before: NodeStage, after: NodeStage): void {
  if (before.end - before.begin <= after.end - after.begin) before.end = end;
  else after.begin = begin;
}
