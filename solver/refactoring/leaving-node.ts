/** Pipelines whose stages leave a node that is to go: which layouts they may have without it. */
import {
  type DeviceFacts,
  type DeviceOfNode,
  type LeavingPipeline,
  layoutOn,
  type NodeStage,
  type RunningStage,
} from './leaving-layout.ts';

/**
 * Layouts on the nodes that stay, best first. A stage keeps its size where a device is free for it; else its layers go
 * to its neighbours, all to one of them or some to each. What counts is that all of it fits, as far as is known, then
 * the slowest stage, then that the others are even. The bytes that move are the same in all of them: those of the
 * stages that leave.
 *
 * Any device may turn out to have no room: of each layout there are others in which one neighbour gets nothing. The
 * first stage stays, since its device has the requests: there is no layout where that one leaves.
 *
 * @param stages in the order of computation
 * @param staying nodes that stay
 * @param free devices of these that have no stage, best first
 */
export function layoutsWithout(
  stages: readonly RunningStage[],
  staying: readonly number[],
  free: readonly DeviceOfNode[],
  factsOf: (device: DeviceOfNode) => DeviceFacts = () => ({}),
): NodeStage[][] {
  const leaves = stages.map(({ node_index }) => !staying.includes(node_index));
  const moved = leaves.filter(Boolean).length;
  if (moved === 0 || leaves[0]) return [];
  const pipeline: LeavingPipeline = { stages, leaves, factsOf };
  const found = [];
  for (let count = Math.min(moved, free.length); count >= 0; count--)
    for (let first = 0; first + Math.max(1, count) <= Math.max(1, free.length); first++) {
      const devices = free.slice(first, first + count);
      const best = layoutOn(pipeline, devices)!;
      const others = best.grown.map((unchanged) => layoutOn(pipeline, devices, unchanged));
      found.push(best, ...others.filter((layout) => layout !== undefined));
      if (count === 0) break;
    }
  // Of those that are as good, the ones with more devices come first.
  found.sort((a, b) => a.lacking_bytes - b.lacking_bytes || a.slowest - b.slowest);
  const seen = new Set<string>();
  return found.flatMap(({ layout }) => {
    const text = JSON.stringify(layout);
    if (seen.has(text)) return [];
    seen.add(text);
    return [layout];
  });
}
