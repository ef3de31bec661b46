/** A `stop` that did not live to end the jobs: the keeper ends them. */
import { spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { Keeper } from '../../../control/keeper/keeper.ts';
import { identityOf, isAlive } from '../../../host/process-identity.ts';
import { waitUntil } from '../../../host/wait-until.ts';
import { deploymentState, launchRecord, site, temporaryStore } from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
beforeEach(() => {
  place = temporaryStore();
});
afterEach(() => place.dispose());

function keeper(): Keeper {
  return new Keeper({
    input: {
      loaded: { site, path: '/site.yaml', provenance: () => undefined, layout: place.store.layout },
      facts: { user: 'someone', environment: {} },
      command: 'test',
      now_ms: () => Date.now(),
      signal: new AbortController().signal,
    },
    emit: () => undefined,
    end_when_idle: true,
    leaves_first_gateway: true,
  });
}

it('ends the jobs of a deployment whose stop was killed before its first scancel, and is idle then', async () => {
  const { store } = place;
  store.prepareDeployment('demo');
  // A job of the local site is a shell with the agent below it, in a session of their own.
  const shell = spawn('/bin/sh', ['-c', 'sleep 300 & wait'], { detached: true, stdio: 'ignore' });
  const identity = identityOf(shell.pid!)!;
  try {
    const launch = launchRecord(1, { phase: 'submitted', job_id: `p${shell.pid}` });
    mkdirSync(store.launchFolder('demo', launch.launch_id), { recursive: true });
    store.write(deploymentState([launch], { desired: 'stopped' }));
    const ends = keeper();
    expect((await ends.round()).any).toBe(true);
    const over = await waitUntil(async () => ((await ends.round()).any ? undefined : true), {
      timeout_ms: 20_000,
      interval_ms: 300,
    });
    expect(over).toBe(true);
    expect(isAlive(identity)).toBe(false);
    expect(store.require('demo').launches[0]).toMatchObject({ phase: 'ended' });
  } finally {
    if (isAlive(identity)) process.kill(-shell.pid!, 'SIGKILL');
  }
}, 30_000);
