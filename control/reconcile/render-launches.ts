/** The scripts of a deployment's launches, as its jobs run them or the next submission hands them over. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { LaunchSpec } from '../../spec/launch.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { Operations } from '../runner/operations.ts';
import { describeArray, describeLaunch } from '../runner/prepare-launch.ts';
import type { ArrayTask } from '../state/job-snapshot.ts';
import type { LaunchRecord } from '../state/launch-record.ts';

export interface RenderedLaunch {
  launch_id: string;
  launch: LaunchSpec;
  /** Equal for the tasks of one array. */
  script: string;
  array?: ArrayTask;
}

/** @param offline the scheduler is not asked how large an array may be */
export async function renderLaunches(
  { store, loaded, facts, runner }: Operations,
  deployment: string,
  records: readonly LaunchRecord[],
  offline: boolean,
): Promise<RenderedLaunch[]> {
  const described = new Map(
    records.map(({ launch_id, planned }) => [
      launch_id,
      describeLaunch(deployment, launch_id, planned, loaded.site, store, facts),
    ]),
  );
  const planned = records.filter(({ phase }) => phase === 'planned');
  const groups = await runner.arrays?.groups(
    planned.map((record) => record.planned),
    offline,
  );
  const tasks = new Map<string, Pick<RenderedLaunch, 'array' | 'script'>>();
  for (const group of groups ?? []) {
    const members = group.map((index) => described.get(planned[index]!.launch_id)!);
    const array = describeArray(deployment, members, store);
    const script = runner.arrays!.render(array);
    for (const [task, { launch }] of members.entries())
      tasks.set(launch.launch_id, { script, array: { array_id: array.array_id, task } });
  }
  return records.map(({ launch_id, array }) => {
    const prepared = described.get(launch_id)!;
    const base = { launch_id, launch: prepared.launch };
    const own = tasks.get(launch_id);
    if (own) return { ...base, ...own };
    // Which tasks its array once had is told by the script alone.
    if (array)
      return {
        ...base,
        array,
        script: readFileSync(
          join(store.launchFolder(deployment, array.array_id), launchFiles.script),
          'utf8',
        ),
      };
    return { ...base, script: runner.render(prepared) };
  });
}
