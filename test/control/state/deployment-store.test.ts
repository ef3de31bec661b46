/** The record of a deployment: one way to change it, and files of the version before. */
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { launchIds } from '../../../control/plan/planning.ts';
import type { DeploymentState } from '../../../control/state/deployment-state.ts';
import type { LaunchRecord } from '../../../control/state/launch-record.ts';
import { submitting } from '../../../control/state/launch-transitions.ts';
import { deploymentFiles } from '../../../spec/state-layout.ts';
import { deploymentState, launchRecord, temporaryStore } from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
let now_ms: number;
const writer = { command: 'test', now_ms: () => now_ms, lock_wait_ms: 10_000 };
const file = (name: keyof typeof deploymentFiles): string =>
  join(place.store.folder('demo'), deploymentFiles[name]);

beforeEach(() => {
  place = temporaryStore();
  now_ms = 1_000;
  place.store.prepareDeployment('demo');
});
afterEach(() => place.dispose());

describe('planning', () => {
  it('is done by one command at a time', async () => {
    let planning = 0;
    let most = 0;
    const plan = async (): Promise<void> => {
      most = Math.max(most, ++planning);
      await new Promise((done) => setTimeout(done, 20));
      planning--;
    };
    await Promise.all([1, 2, 3].map(() => place.store.whilePlanning(writer, plan)));
    expect(most).toBe(1);
    expect(place.store.list()).toEqual([]);
  });

  it('gives the lock back where it fails', async () => {
    const failing = place.store.whilePlanning(writer, () => Promise.reject(new Error('no plan')));
    await expect(failing).rejects.toThrow('no plan');
    expect(await place.store.whilePlanning(writer, async () => 'planned')).toBe('planned');
  });
});

describe('update', () => {
  beforeEach(() => place.store.write(deploymentState([launchRecord(1)])));

  it('loses no change of many that are made at once', async () => {
    const add = (state: DeploymentState): DeploymentState => ({ ...state, generation: state.generation + 1 });
    await Promise.all(Array.from({ length: 10 }, () => place.store.update('demo', writer, add)));
    expect(place.store.require('demo').generation).toBe(11);
  });

  it('writes when it was changed, and nothing where there is nothing to change', async () => {
    const before = readFileSync(file('state'), 'utf8');
    expect(await place.store.update('demo', writer, () => undefined)).toBeUndefined();
    expect(readFileSync(file('state'), 'utf8')).toBe(before);
    now_ms = 2_000;
    const after = await place.store.update('demo', writer, (state) => ({ ...state, kept: true }));
    expect(after).toMatchObject({ kept: true, updated_at_ms: 2_000 });
    expect(place.store.require('demo')).toEqual(after);
  });

  it('writes nothing that could not be read again, and gives the lock back', async () => {
    const before = readFileSync(file('state'), 'utf8');
    const bad = { ...launchRecord(1), phase: 'submitted' } as LaunchRecord;
    await expect(
      place.store.update('demo', writer, (state) => ({ ...state, launches: [bad] })),
    ).rejects.toThrow('as no deployment can be');
    expect(readFileSync(file('state'), 'utf8')).toBe(before);
    const soon = { ...writer, lock_wait_ms: 0 };
    expect(await place.store.update('demo', soon, (state) => state)).toMatchObject({ name: 'demo' });
  });

  it('says which names there are where there is none of this one', async () => {
    mkdirSync(place.store.folder('dema'));
    await expect(place.store.update('dema', writer, () => undefined)).rejects.toMatchObject({
      code: 'E_DEPLOYMENT_UNKNOWN',
      try: ['did you mean "demo"?'],
    });
  });
});

describe('locked', () => {
  it('writes nothing more once another took the lock over', async () => {
    place.store.write(deploymentState([launchRecord(1)]));
    const work = place.store.locked('demo', writer, async (record) => {
      const launch = record.state.launches[0]!;
      if (launch.phase === 'planned')
        record.save({ ...record.state, launches: [submitting(launch, now_ms)] });
      // As after a pause of a minute.
      rmSync(file('lock'), { recursive: true });
      record.save({ ...record.state, launches: [] });
    });
    await expect(work).rejects.toMatchObject({ code: 'E_DEPLOYMENT_LOCKED' });
    expect(place.store.require('demo').launches).toMatchObject([{ phase: 'submitting' }]);
  });

  it('makes a deployment that is not there yet', async () => {
    await place.store.locked('demo', writer, async (record) => {
      expect(record.found).toBeUndefined();
      expect(() => record.state).toThrow('there is no deployment "demo"');
      record.save(deploymentState([]));
      expect(record.state.name).toBe('demo');
    });
    expect(place.store.list()).toEqual(['demo']);
  });
});

it('reads what the version before wrote, a launch in each phase, and writes the same', () => {
  const planned = launchRecord(0).planned;
  const job = { job_id: '7', phase: 'running', state: 'RUNNING', nodes: 'n1', restart_count: 0 };
  const common = (id: number) => ({
    launch_id: id.toString(16).padStart(16, '0'),
    fingerprint: `f${id}`,
    planned,
    superseded: false,
  });
  const array = { array_id: '00000000000000aa', task: 1 };
  const launches = [
    { ...common(1), phase: 'planned', tries: 2 },
    { ...common(2), phase: 'planned', instead_of: common(4).launch_id },
    { ...common(3), phase: 'submitting', submitting_since_ms: 5, array },
    {
      ...common(4),
      phase: 'submitted',
      submitting_since_ms: 5,
      job_id: '7',
      where: 'partition gpu',
      last: job,
      served_at_ms: 9,
    },
    // Found again after a command that was killed: nobody knows where.
    { ...common(5), phase: 'submitted', submitting_since_ms: 5, job_id: '8', cancel_requested_ms: 6 },
    {
      ...common(6),
      phase: 'ended',
      superseded: true,
      submitting_since_ms: 5,
      array,
      job_id: '9_1',
      where: 'partition gpu',
      cancel_requested_ms: 6,
      served_at_ms: 9,
      last: { ...job, job_id: '9_1', phase: 'ended', state: 'CANCELLED', exit_code: 0 },
      ended_at_ms: 10,
      given_up: 'it failed six times',
    },
    // Refused by Slurm.
    {
      ...common(7),
      phase: 'ended',
      submitting_since_ms: 5,
      ended_at_ms: 6,
      last: { job_id: '', phase: 'ended', state: 'REFUSED', reason: 'no such account' },
    },
  ];
  const { spec, models, ...state } = deploymentState([]);
  const former = {
    ...{ ...state, spec, models, kept: true, launches },
    failure: { code: 'E_SLURM_ACCOUNT', what: 'no such account', because: [], try: [], details: {} },
    previous: { spec_digest: 'e', spec_file: '/old.yaml', spec, models, launch_ids: [common(4).launch_id] },
    scaled: { m: { changed_ms: 1, asleep_since_ms: 2, wake_s: 60 } },
  };
  const text = `${JSON.stringify(former, null, 2)}\n`;
  writeFileSync(file('state'), text);
  const read = place.store.require('demo');
  expect(JSON.parse(JSON.stringify(read))).toEqual(JSON.parse(text));
  place.store.write(read);
  expect(JSON.parse(readFileSync(file('state'), 'utf8'))).toEqual(JSON.parse(text));
});

describe('forgetting', () => {
  it('gives the launches of the next deployment of that name other ids', () => {
    const ids = (name: string): string => launchIds(place.store, name, 1)('fingerprint', 0);
    const seen = [ids('demo')];
    for (let time = 0; time < 3; time++) {
      place.store.prepareDeployment('demo');
      place.store.write(deploymentState([]));
      // As `render` tells them.
      expect(ids('demo')).toBe(seen.at(-1));
      place.store.forget('demo');
      expect(place.store.list()).toEqual([]);
      seen.push(ids('demo'));
    }
    expect(new Set(seen).size).toBe(4);
  });
});
