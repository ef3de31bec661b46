/**
 * Which launches compute one pipeline together, and how one of them is renewed. Pure.
 *
 *     replaced: the job of one part ended       renewed: a time limit comes near
 *     group 1:  A  B  ──►  A  B'                group 1:  A  B
 *                                               group 2:  A' B'   and then only these
 *
 * One that is replaced keeps its group: the others find it there, with the weights that they have. A coordinator and
 * its successor cannot share a stage, which is in one ring; so all parts are renewed at once, in a new group.
 */
import { unitsOfJob } from '../../spec/plan.ts';
import type { LaunchRecord } from './launch-record.ts';
import { successorOf, superseded } from './launch-transitions.ts';

/** The launches, with those that are new in the group of what is kept of their pipeline, or in a group of their own. */
export function withGroups(
  launches: readonly LaunchRecord[],
  isKept: (launch: LaunchRecord) => boolean,
): LaunchRecord[] {
  const groups = new Map<string, string>();
  for (const launch of launches) {
    const { part } = launch.planned;
    if (part !== undefined && isKept(launch)) groups.set(pipelineOf(launch), part.group);
  }
  return launches.map((launch) => {
    if (launch.planned.part === undefined || isKept(launch)) return launch;
    const pipeline = pipelineOf(launch);
    const group = groups.get(pipeline) ?? newGroup(pipeline, launch.launch_id);
    groups.set(pipeline, group);
    return inGroup(launch, group);
  });
}

/**
 * The launches, with successors before all parts of the pipeline of one of them.
 * @param newLaunchId of the successor of a launch
 */
export function withRenewed(
  launches: readonly LaunchRecord[],
  renewed: LaunchRecord,
  newLaunchId: (predecessor: LaunchRecord) => string,
): LaunchRecord[] {
  const group = newGroup(pipelineOf(renewed), newLaunchId(renewed));
  return launches.flatMap((launch) => {
    if (launch.superseded || !isOfGroup(launch, renewed.planned.part?.group)) return [launch];
    // Of one that is over at the same moment, what came to nothing in its place still counts.
    const tries = launch.phase === 'ended' ? launch.tries : undefined;
    const successor = successorOf(launch, newLaunchId(launch), tries);
    return [inGroup(successor, group), superseded(launch)];
  });
}

export function isOfGroup({ planned }: LaunchRecord, group: string | undefined): boolean {
  return group !== undefined && planned.part?.group === group;
}

/** Several jobs compute a replica of it together. */
export function hasParts(launches: readonly LaunchRecord[]): boolean {
  return launches.some(({ planned }) => planned.part !== undefined);
}

/** The name of the replica: unique among what a deployment is to consist of. */
function pipelineOf({ planned }: LaunchRecord): string {
  return unitsOfJob(planned)[0]!.unit;
}

function newGroup(pipeline: string, launch_id: string): string {
  return `${pipeline}.${launch_id}`;
}

function inGroup(launch: LaunchRecord, group: string): LaunchRecord {
  const { planned } = launch;
  return { ...launch, planned: { ...planned, part: { ...planned.part!, group } } };
}
