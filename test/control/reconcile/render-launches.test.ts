/** A script is rendered once: what is submitted lies in the folder of the launch, and is what people are shown. */
import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { Reconciler } from '../../../control/reconcile/reconciler.ts';
import { type RenderedLaunch, renderLaunches } from '../../../control/reconcile/render-launches.ts';
import { type Operations, openOperations } from '../../../control/runner/operations.ts';
import { launchFiles } from '../../../spec/state-layout.ts';
import { deploymentState, launchRecord, ScriptedRunner, site, temporaryStore } from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
let runner: ScriptedRunner;
let operations: Operations;

beforeEach(() => {
  place = temporaryStore();
  runner = new ScriptedRunner();
  const { store } = place;
  const common = {
    facts: { user: 'someone', environment: {} },
    command: 'test',
    now_ms: Date.now,
    emit: () => {},
    signal: new AbortController().signal,
  };
  const loaded = { site, path: '/site.yaml', layout: store.layout, provenance: () => undefined };
  operations = { ...openOperations({ ...common, loaded }), runner };
  store.prepareDeployment('demo');
  store.write(deploymentState([launchRecord(1)]));
});
afterEach(() => place.dispose());

const shown = (): Promise<RenderedLaunch[]> =>
  renderLaunches(operations, 'demo', place.store.require('demo').launches, true);
const scriptFile = (): string =>
  join(place.store.launchFolder('demo', launchRecord(1).launch_id), launchFiles.script);

it('hands over the text that lies in the folder of the launch, and shows it from then on', async () => {
  await new Reconciler({ ...operations, site }).pass('demo');
  expect(runner.renders).toBe(1);
  const [script] = runner.scripts;
  expect(readFileSync(scriptFile(), 'utf8')).toBe(script!.text);
  expect(await shown()).toMatchObject([{ script: script!.text }]);
  // Whatever a changed site config or another version would make of it.
  expect(runner.renders).toBe(1);
});

it('shows what the next submission would hand over, and writes nothing', async () => {
  expect(await shown()).toMatchObject([{ script: '#!/bin/sh\n# 1\n' }]);
  expect(() => readFileSync(scriptFile())).toThrow('ENOENT');
});

it('says so where the script of a job is gone', async () => {
  await new Reconciler({ ...operations, site }).pass('demo');
  rmSync(scriptFile());
  await expect(shown()).rejects.toMatchObject({ code: 'E_STATE_FOLDER' });
});
