/** What of a launch the decision of keeping is asked about. */
import { expect, it } from 'vitest';
import { keptLaunches } from '../../../control/reconcile/kept-launch.ts';
import { defaultKeepSettings, keep } from '../../../solver/keeping/keep.ts';
import { deploymentState, launchRecord, plannedLaunch } from '../support.ts';

it.each([
  ['cpu', ['renew']],
  ['joined-n1', []],
])('a launch on %s, whose time is nearly up: %j', (node_kind, expected) => {
  const launch = launchRecord(1, {
    planned: { ...plannedLaunch('m-1'), node_kind },
    phase: 'submitted',
    job_id: '7',
    last: { job_id: '7', phase: 'running', state: 'RUNNING', start_time_ms: 0, end_time_limit_ms: 600_000 },
  });
  const { actions } = keep(keptLaunches(deploymentState([launch]), new Map()), 590_000, defaultKeepSettings);
  expect(actions.map((action) => action.do)).toEqual(expected);
});
