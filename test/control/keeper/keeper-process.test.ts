/** The keeper as a process: one a site, however many commands start it, and none once nothing is to be kept. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { ensureKeeper, inspectKeeper, stopKeeper } from '../../../control/keeper/keeper-process.ts';
import { type LoadedSite, readSite } from '../../../control/state/site-files.ts';
import { processesWithArgument, signalProcess } from '../../../host/process-identity.ts';
import { deploymentState, temporaryStore } from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
let loaded: LoadedSite;
const command = { command: 'test', signal: new AbortController().signal };

beforeEach(() => {
  place = temporaryStore();
  const site = join(place.folder, 'site.yaml');
  writeFileSync(site, 'name: local\nkind: local\n');
  const places = { user_folder: '', site_wide_folder: '', working_folder: place.folder };
  loaded = readSite(site, { ...places, environment: process.env }, place.folder);
  place.store.prepareDeployment('demo');
});
afterEach(() => {
  for (const pid of keepers()) signalProcess(pid, 'SIGKILL');
  place.dispose();
});

/** Also those that are about to start, or to end. */
const keepers = (): number[] => processesWithArgument((argument) => argument === loaded.path);
const want = (desired: 'serving' | 'stopped'): void =>
  place.store.write(deploymentState([], { desired, kept: true }));
const stop = (): Promise<void> =>
  stopKeeper(loaded.layout, command, () => place.store.require('demo').desired === 'serving');

it('is one process, however many commands start it, and none is left once it is ended', async () => {
  want('serving');
  await Promise.all([1, 2, 3].map(() => ensureKeeper(loaded, command)));
  expect(keepers()).toHaveLength(1);
  expect(inspectKeeper(loaded.layout).state).toBe('running');
  want('stopped');
  await stop();
  expect(keepers()).toEqual([]);
}, 60_000);

it('goes on where it is needed again by the time it would be ended', async () => {
  want('serving');
  await ensureKeeper(loaded, command);
  await stop();
  expect(keepers()).toHaveLength(1);
}, 60_000);

it('that comes up while everything is stopped is ended, or ends by itself at once', async () => {
  want('serving');
  const started = ensureKeeper(loaded, command);
  await expect.poll(keepers).toHaveLength(1);
  want('stopped');
  await stop();
  await started;
  // One that found nothing to keep may have a few milliseconds left.
  await expect.poll(keepers, { timeout: 1_000 }).toEqual([]);
}, 60_000);

it('ends at once where there is nothing to keep, which is no failure', async () => {
  want('stopped');
  await ensureKeeper(loaded, command);
  await expect.poll(keepers, { timeout: 5_000 }).toEqual([]);
}, 60_000);
