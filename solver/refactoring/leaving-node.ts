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
 * Layouts on the nodes that stay, best first. A stage keeps its size where a device is free for it; else its operators
 * go to a neighbour, which may have no room for them: then the next layout is tried. The first stage stays, since its
 * device has the requests: there is no layout where that one leaves.
 *
 * @param stages in the order of computation
 * @param staying nodes that stay
 * @param free devices of these that have no stage, best first: any of them may turn out to have no room
 */
export function layoutsWithout(
  stages: readonly NodeStage[],
  staying: readonly number[],
  free: readonly DeviceOfNode[],
): NodeStage[][] {
  const leaves = ({ node_index }: NodeStage): boolean => !staying.includes(node_index);
  const moved = stages.filter(leaves).length;
  if (moved === 0 || leaves(stages[0]!)) return [];
  const most = Math.min(moved, free.length);
  const layouts: NodeStage[][] = [];
  for (let count = most; count > 0; count--)
    for (let first = 0; first + count <= free.length; first++)
      layouts.push(without(stages, leaves, free.slice(first, first + count)));
  return [...layouts, without(stages, leaves, [])];
}

/** The first stages that leave get the free devices, and the others are merged. */
function without(
  stages: readonly NodeStage[],
  leaves: (stage: NodeStage) => boolean,
  free: readonly DeviceOfNode[],
): NodeStage[] {
  const left = [...free];
  const found: NodeStage[] = [];
  /** Of stages that are merged and follow one another. */
  let loose: OperatorRange | undefined;
  for (const stage of stages) {
    const device = leaves(stage) ? left.shift() : stage;
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
