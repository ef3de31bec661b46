/** `forget`: nothing is left of a deployment that is stopped but what it used. */
import { HpcserveError } from '../spec/errors/error.ts';
import type { Operations } from './runner/operations.ts';
import { liveLaunches } from './state/deployment-state.ts';

/** @throws E_DEPLOYMENT_UNKNOWN; E_DEPLOYMENT_RUNS where it is not stopped, or jobs of it may still run */
export async function forgetDeployment(operations: Operations, name: string): Promise<void> {
  const { store } = operations;
  await store.locked(name, operations, async (record) => {
    const { state } = record;
    const live = liveLaunches(state);
    if (state.desired === 'serving' || live.length > 0)
      throw new HpcserveError('E_DEPLOYMENT_RUNS', {
        what: `${name} is not stopped`,
        because:
          live.length > 0
            ? `it has ${live.length} job(s): ${live.map((launch) => launch.job_id ?? launch.launch_id).join(', ')}`
            : 'it is to serve',
        try: `end it first: hpcserve stop ${name}`,
      });
    record.assertHeld();
    // With the lock in it, which nobody waits for any more.
    store.forget(name);
  });
}
