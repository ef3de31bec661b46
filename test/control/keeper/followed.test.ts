/** What a `deploy` submits and follows is its own: the keeper takes nothing of it away, until that command is over. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { hostname } from 'node:os';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { keepDeployment } from '../../../control/keeper/keep-deployment.ts';
import { RepeatedTrouble } from '../../../control/keeper/repeated-trouble.ts';
import { Reconciler } from '../../../control/reconcile/reconciler.ts';
import type { DeploymentState } from '../../../control/state/deployment-state.ts';
import { identityOf } from '../../../host/process-identity.ts';
import { defaultKeepSettings } from '../../../solver/keeping/keep.ts';
import { deploymentState, launchRecord, ScriptedRunner, site, temporaryStore } from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
let runner: ScriptedRunner;
beforeEach(() => {
  place = temporaryStore();
  runner = new ScriptedRunner();
});
afterEach(() => place.dispose());

/** One round of a keeper that finds this deployment. @returns how many jobs it has submitted */
async function round(followed_by: DeploymentState['followed_by']): Promise<number> {
  const { store } = place;
  store.prepareDeployment('demo');
  store.write({ ...deploymentState([launchRecord(1)]), followed_by });
  const common = { store, command: 'keeper', now_ms: () => Date.now(), emit: () => undefined };
  const facts = { user: 'someone', environment: {} };
  const reconciler = new Reconciler({ ...common, site, runner, facts });
  const settings = { ...defaultKeepSettings, signal_s: 0, gpu_hours: undefined };
  const trouble = new RepeatedTrouble(common.emit, common.now_ms);
  await keepDeployment({ ...common, reconciler, settings, trouble, replaceLost: async () => false }, 'demo');
  return runner.submitted.length;
}

it('leaves it to a deploy of this host as long as that lives', async () => {
  const child = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)']);
  const host = hostname();
  const deploy = { ...identityOf(child.pid!)!, host, since_ms: Date.now() };
  expect(await round(deploy)).toBe(0);
  const ended = once(child, 'exit');
  child.kill('SIGKILL');
  await ended;
  expect(await round(deploy)).toBe(1);
});

it('leaves it to a deploy of another host for a minute', async () => {
  const elsewhere = { pid: 1, start_ticks: 1, boot_id: 'another', host: 'login2' };
  expect(await round({ ...elsewhere, since_ms: Date.now() - 10_000 })).toBe(0);
  expect(await round({ ...elsewhere, since_ms: Date.now() - 90_000 })).toBe(1);
});
