/** The scripts of a deployment's launches, as its jobs run them or the next submission hands them over. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
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

/**
 * @param offline the scheduler is not asked how large an array may be
 * @throws E_STATE_FOLDER where the script of a job that was submitted cannot be read
 */
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
    const { text } = runner.arrays!.render(array);
    for (const [task, { launch }] of members.entries())
      tasks.set(launch.launch_id, { script: text, array: { array_id: array.array_id, task } });
  }
  return records.map(({ launch_id, phase, array }) => {
    const prepared = described.get(launch_id)!;
    const { launch, launch_folder } = prepared;
    const task = tasks.get(launch_id);
    if (task) return { launch_id, launch, ...task };
    const script = phase === 'planned' ? runner.render(prepared).text : submittedScript(launch_folder);
    return { launch_id, launch, script, array };
  });
}

/** What was handed over, whatever the site config and this version would make of it now. */
function submittedScript(launchFolder: string): string {
  const path = join(launchFolder, launchFiles.script);
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw new HpcserveError('E_STATE_FOLDER', {
      what: `the script of a job that was submitted cannot be read: ${path}`,
      because: (error as Error).message,
      cause: error,
    });
  }
}
