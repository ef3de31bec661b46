/** A change that fails leaves the version before it as it was. */
import { existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { moveIntoPlaceSync } from '../../host/move.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { deploymentFiles } from '../../spec/state-layout.ts';
import type { Operations } from '../runner/operations.ts';
import { type DeploymentState, withLaunches } from '../state/deployment-state.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { superseded, wantedAgain } from '../state/launch-transitions.ts';

/** What a changed deployment goes back to; undefined where nothing of an earlier version runs. */
export function previousOf(before: DeploymentState | undefined): DeploymentState['previous'] {
  if (before?.desired !== 'serving') return undefined;
  // A change on top of one that never served: the version that did serve counts.
  if (before.previous && runs(before, before.previous.launch_ids)) return before.previous;
  const launch_ids = before.launches
    .filter((each) => !each.superseded && each.instead_of === undefined)
    .map((each) => each.launch_id);
  if (!runs(before, launch_ids)) return undefined;
  const { spec_digest, spec_file, spec, models } = before;
  return { spec_digest, spec_file, spec, models, launch_ids };
}

/**
 * Makes the version before the wanted one again; the reconciler then ends the jobs of the change.
 * @returns the error with the news that the version before goes on; undefined where there is none.
 */
export async function rollBack(
  operations: Operations,
  name: string,
  error: HpcserveError,
): Promise<HpcserveError | undefined> {
  const { store } = operations;
  const back = await store.locked(name, operations, async (record) => {
    const state = before(record.state);
    if (!state) return false;
    const file = (key: 'spec' | 'previous_spec'): string => join(store.folder(name), deploymentFiles[key]);
    if (existsSync(file('previous_spec'))) moveIntoPlaceSync(file('previous_spec'), file('spec'));
    // It served: from here on it is the keeper's again.
    record.save({ ...state, kept: true, followed_by: undefined });
    return true;
  });
  if (!back) return undefined;
  return new HpcserveError(error.code, {
    what: error.message,
    because: [...error.because, `the version of ${name} before this change goes on as it was`],
    try: error.try.map((line) => line.replace(`hpcserve logs ${name}`, `hpcserve logs ${name} --old`)),
    details: { ...error.details, rolled_back: true },
    cause: error,
  });
}

/** The changed version serves: there is nothing to go back to any more. */
export async function forgetPrevious(operations: Operations, name: string): Promise<void> {
  const { store } = operations;
  if (store.require(name).previous === undefined) return;
  await store.locked(name, operations, async (record) => {
    rmSync(join(store.folder(name), deploymentFiles.previous_spec), { force: true });
    record.save({ ...record.state, previous: undefined });
  });
}

/** The state with the version before as the wanted one; undefined where nothing of it runs any more. Pure. */
function before(state: DeploymentState): DeploymentState | undefined {
  const { previous } = state;
  if (!previous || !runs(state, previous.launch_ids)) return undefined;
  const { launch_ids, ...version } = previous;
  const change = (launch: LaunchRecord): LaunchRecord =>
    launch_ids.includes(launch.launch_id) ? wantedAgain(launch) : superseded(launch);
  return { ...withLaunches(state, change), ...version, previous: undefined, failure: undefined };
}

function runs(state: DeploymentState, launchIds: readonly string[]): boolean {
  const going = (launch: LaunchRecord): boolean =>
    launch.phase === 'submitted' && launch.cancel_requested_ms === undefined;
  return state.launches.some((launch) => launchIds.includes(launch.launch_id) && going(launch));
}
