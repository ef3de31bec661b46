/** A keeper whose state folder is damaged in places keeps what it can read. */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { Keeper } from '../../../control/keeper/keeper.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import { deploymentState, launchRecord, site, temporaryStore } from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
let events: ProgressEvent[];
let keeper: Keeper;

beforeEach(() => {
  place = temporaryStore();
  events = [];
  keeper = new Keeper({
    input: {
      loaded: { site, path: '/site.yaml', provenance: () => undefined, layout: place.store.layout },
      facts: { user: 'someone', environment: {} },
      command: 'test',
      now_ms: () => Date.now(),
      signal: new AbortController().signal,
    },
    emit: (event) => events.push(event),
    end_when_idle: true,
    leaves_first_gateway: true,
  });
});
afterEach(() => place.dispose());

const told = (): string[] => events.flatMap((event) => (event.kind === 'warning' ? [event.message] : []));
/** A launch that was over long ago, of a deployment that is kept. */
function given(name: string): void {
  place.store.prepareDeployment(name);
  const launch = launchRecord(1, { phase: 'ended', ended_at_ms: 0 });
  place.store.write(deploymentState([launch], { name, kept: true }));
}
const launchesOf = (name: string): number => place.store.require(name).launches.length;

it('keeps the others where the state of one cannot be read, and says so once', async () => {
  for (const name of ['a', 'damaged', 'z']) given(name);
  writeFileSync(join(place.store.folder('damaged'), 'deployment.json'), '{');
  await keeper.round();
  await keeper.round();
  expect([launchesOf('a'), launchesOf('z')]).toEqual([2, 2]);
  expect(told().filter((words) => words.includes('damaged'))).toEqual([
    expect.stringContaining('E_DEPLOYMENT_STATE'),
  ]);
});

it('goes on when the folder of the deployments cannot be read for a while', async () => {
  mkdirSync(place.store.layout.root, { recursive: true });
  writeFileSync(place.store.layout.deployments_folder, 'in the way');
  expect((await keeper.round()).any).toBe(true);
  expect(told()).toContainEqual(expect.stringContaining('E_STATE_FOLDER'));
  rmSync(place.store.layout.deployments_folder);
  given('a');
  await keeper.round();
  expect(launchesOf('a')).toBe(2);
});
