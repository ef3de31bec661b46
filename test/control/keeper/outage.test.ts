/** What the keeper says while the scheduler does not do what is asked of it. */
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { keepDeployment } from '../../../control/keeper/keep-deployment.ts';
import { Keeper } from '../../../control/keeper/keeper.ts';
import { RepeatedTrouble } from '../../../control/keeper/repeated-trouble.ts';
import { Reconciler } from '../../../control/reconcile/reconciler.ts';
import { defaultKeepSettings } from '../../../solver/keeping/keep.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import { siteSchema } from '../../../spec/site.ts';
import { deploymentState, launchRecord, ScriptedRunner, site, temporaryStore } from '../support.ts';

const minute_ms = 60_000;
let place: ReturnType<typeof temporaryStore>;
let now_ms: number;
let told: string[];

const emit = (event: ProgressEvent): void => {
  if (event.kind === 'warning') told.push(event.message);
};
/** What was said of jobs since it was asked last. */
const said = (): string[] => told.splice(0).filter((message) => message.startsWith('jobs '));

beforeEach(() => {
  place = temporaryStore();
  now_ms = Date.now();
  told = [];
});
afterEach(() => place.dispose());

/** Rounds of a keeper, one each 5 s, over a deployment that has a job. @param superseded it is to be ended */
function keeping(runner: ScriptedRunner, superseded = true): (count: number) => Promise<void> {
  const { store } = place;
  const launch = launchRecord(1, { phase: 'submitted', job_id: '1', superseded });
  const { launch_id } = launch;
  const snapshot = { job_id: '1', phase: 'running', state: 'RUNNING' } as const;
  runner.jobs.set('1', { launch_id, snapshot });
  store.prepareDeployment('demo');
  mkdirSync(store.launchFolder('demo', launch_id), { recursive: true });
  store.write(deploymentState([launch], { kept: true }));
  const common = { store, command: 'keeper', now_ms: () => now_ms, emit };
  const reconciler = new Reconciler({ ...common, site, runner, facts: { user: 'someone', environment: {} } });
  const settings = { ...defaultKeepSettings, signal_s: 0, gpu_hours: undefined };
  const trouble = new RepeatedTrouble(emit, common.now_ms);
  return async (count) => {
    for (let round = 0; round < count; round++) {
      await keepDeployment(
        { ...common, reconciler, settings, trouble, replaceLost: async () => false },
        'demo',
      );
      now_ms += 5000;
    }
  };
}

const away = (what: string): HpcserveError => new HpcserveError('E_SLURM_UNREACHABLE', { what });

it('is told when it begins, when its reason changes, every ten minutes, and when it is over', async () => {
  const runner = new ScriptedRunner();
  const rounds = keeping(runner);
  runner.deaf = away('no answer');
  await rounds(5);
  expect(said()).toEqual(['jobs of demo: no answer']);
  runner.deaf = away('connection refused');
  await rounds(5);
  expect(said()).toEqual(['jobs of demo: connection refused']);
  // Now the one and now the other: neither is news.
  for (const what of ['no answer', 'connection refused', 'no answer']) {
    runner.deaf = away(what);
    await rounds(1);
  }
  expect(said()).toEqual([]);
  now_ms += 10 * minute_ms;
  await rounds(5);
  expect(said()).toEqual(['jobs of demo, for 11 min: no answer']);
  runner.deaf = undefined;
  await rounds(3);
  expect(said()).toEqual(['jobs of demo: over after 12 min: no answer']);
});

it('is told in the same way where Slurm alone cannot be asked', async () => {
  const runner = new ScriptedRunner();
  const rounds = keeping(runner, false);
  await rounds(1);
  runner.away = away('no answer');
  await rounds(5);
  const problem = 'jobs are shown as last known, for Slurm does not answer: no answer';
  expect(said()).toEqual([problem]);
  now_ms += 10 * minute_ms;
  await rounds(5);
  expect(said()).toEqual([`jobs of demo, for 10 min: ${problem}`]);
  runner.away = undefined;
  await rounds(3);
  expect(said()).toEqual([`jobs of demo: over after 11 min: ${problem}`]);
});

it('says nothing of the end of an attempt that failed once', async () => {
  const runner = new ScriptedRunner();
  const rounds = keeping(runner);
  runner.deaf = away('no answer');
  await rounds(1);
  runner.deaf = undefined;
  await rounds(3);
  expect(said()).toEqual(['jobs of demo: no answer']);
});

it('is told once of many rounds of the keeper, by the words of Slurm’s own commands', async () => {
  const bin_dir = join(place.folder, 'bin');
  mkdirSync(bin_dir);
  for (const program of ['squeue', 'sbatch', 'sacct', 'sacctmgr', 'scontrol', 'sinfo', 'scancel']) {
    const path = join(bin_dir, program);
    writeFileSync(
      path,
      '#!/bin/sh\necho "slurm_load_jobs error: Unable to contact slurm controller" >&2\nexit 1\n',
    );
    chmodSync(path, 0o755);
  }
  const keeper = new Keeper({
    input: {
      loaded: {
        site: siteSchema.parse({ name: 'local', kind: 'slurm', slurm: { bin_dir } }),
        path: '/site.yaml',
        provenance: () => undefined,
        layout: place.store.layout,
      },
      facts: { user: 'someone', environment: { PATH: process.env.PATH } },
      command: 'test',
      now_ms: () => now_ms,
      signal: new AbortController().signal,
    },
    emit,
    end_when_idle: true,
    leaves_first_gateway: true,
  });
  place.store.prepareDeployment('demo');
  place.store.write(deploymentState([launchRecord(1)], { kept: true }));
  for (let round = 0; round < 5; round++) {
    await keeper.round();
    now_ms += 5000;
  }
  expect(said()).toEqual([expect.stringContaining('Unable to contact slurm controller')]);
});
