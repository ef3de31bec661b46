import { rmSync } from 'node:fs';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { Reconciler } from '../../../control/reconcile/reconciler.ts';
import { RendezvousRegistry, SessionIdentity } from '../../../mesh/index.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import { metadata, recordOf } from '../../mesh/support.ts';
import {
  deploymentState,
  launchRecord,
  ScriptedRunner,
  site,
  temporaryStore,
  writeAgentState,
} from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
let mesh: RendezvousRegistry;
let runner: ScriptedRunner;
let events: ProgressEvent[];
beforeEach(async () => {
  place = temporaryStore();
  place.store.prepareDeployment('demo');
  mesh = await RendezvousRegistry.open(place.store.layout.mesh_folder, { create: true });
  runner = new ScriptedRunner();
  events = [];
});
afterEach(async () => {
  await mesh.close();
  place.dispose();
});

function reconciler(): Reconciler {
  return new Reconciler({
    site,
    store: place.store,
    runner,
    facts: { user: 'someone', environment: {} },
    now_ms: () => Date.now(),
    emit: (event) => events.push(event),
    command: 'test',
  });
}

/** A session as a killed agent leaves it. @returns its id. */
async function serving(launch_id: string): Promise<string> {
  const identity = await SessionIdentity.create();
  await mesh.publish(recordOf(identity, { metadata: { ...metadata, launch_id } }), identity);
  return identity.session_id;
}

it('a job that was killed leaves no serving session behind, and others are not touched', async () => {
  const launches = [launchRecord(1), launchRecord(2)];
  place.store.write(deploymentState(launches));
  const [killed, other] = await Promise.all(launches.map((launch) => serving(launch.launch_id)));
  const loop = reconciler();
  await loop.pass('demo');
  runner.end('1', { state: 'NODE_FAIL' });
  await loop.pass('demo');
  await mesh.refresh();
  expect(mesh.get(killed!)?.lifecycle).toBe('LEFT');
  expect(mesh.get(other!)?.lifecycle).toBe('SERVING');
  expect(events.filter((event) => event.kind === 'warning')).toEqual([]);
});

it('an agent that stopped in order has told the mesh itself', async () => {
  const launch = launchRecord(1);
  place.store.write(deploymentState([launch]));
  const loop = reconciler();
  await loop.pass('demo');
  writeAgentState(place.store, launch, { phase: 'stopped' });
  const unasked = await serving(launch.launch_id);
  runner.end('1', {});
  await loop.pass('demo');
  await mesh.refresh();
  expect(mesh.get(unasked)?.lifecycle).toBe('SERVING');
});

it('a mesh that is away is said, and the end is written down all the same', async () => {
  place.store.write(deploymentState([launchRecord(1)]));
  const loop = reconciler();
  await loop.pass('demo');
  await mesh.close();

  rmSync(place.store.layout.mesh_folder, { recursive: true });
  runner.end('1', { state: 'FAILED' });
  const { state } = await loop.pass('demo');
  expect(state.launches[0]!.phase).toBe('ended');
  expect(JSON.stringify(events)).toMatch(/the mesh was not told that process 1 ended/);
});
