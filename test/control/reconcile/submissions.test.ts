/** Launches as a job array: one submission, and what comes of it when its answer is lost or Slurm refuses it. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { mergePlan } from '../../../control/reconcile/decide.ts';
import { Reconciler } from '../../../control/reconcile/reconciler.ts';
import { arrayGroups } from '../../../control/runner/array-groups.ts';
import type { JobArrays, PreparedArray } from '../../../control/runner/job-runner.ts';
import type { DeploymentState } from '../../../control/state/deployment-state.ts';
import type { ArrayTask } from '../../../control/state/job-snapshot.ts';
import { superseded } from '../../../control/state/launch-transitions.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import { launchFiles } from '../../../spec/state-layout.ts';
import { deploymentState, launchRecord, ScriptedRunner, site, temporaryStore } from '../support.ts';

/** Jobs in memory, as arrays where that is what is submitted. */
class ArrayRunner extends ScriptedRunner {
  readonly submittedArrays: PreparedArray[] = [];
  refuse: HpcserveError | undefined;
  loseAnswer = false;
  says: string[] = [];

  readonly arrays: JobArrays = {
    groups: async (planned) => arrayGroups(planned, 1001),
    render: (array) => ({ text: `#!/bin/sh\n# ${array.launches.length} tasks\n`, directives: [] }),
    submit: async (array) => {
      if (this.refuse) throw this.refuse;
      this.submittedArrays.push(array);
      const base = `${100 + this.submittedArrays.length}`;
      for (const [task] of array.launches.entries()) {
        const job_id = `${base}_${task}`;
        const snapshot = { job_id, phase: 'running', state: 'RUNNING', nodes: 'n1' } as const;
        this.jobs.set(job_id, { launch_id: `${array.array_id}/${task}`, snapshot });
      }
      if (this.loseAnswer)
        throw new HpcserveError('E_SLURM_UNREACHABLE', {
          what: 'the connection broke',
          details: { may_have_been_submitted: true },
        });
      return {
        job_ids: array.launches.map((_, task) => `${base}_${task}`),
        where: 'somewhere',
        said: this.says,
      };
    },
  };

  /** Submissions and jobs that were asked for. */
  readonly asked: [submissions: number, jobs: number | undefined][] = [];
  override async admit(count: number, jobs?: number): Promise<number> {
    this.asked.push([count, jobs]);
    return super.admit(count);
  }

  override async find(launchId: string, array?: ArrayTask): Promise<string[]> {
    return super.find(array ? `${array.array_id}/${array.task}` : launchId);
  }
}

let place: ReturnType<typeof temporaryStore>;
let runner: ArrayRunner;
let events: ProgressEvent[];

beforeEach(() => {
  place = temporaryStore();
  runner = new ArrayRunner();
  events = [];
  const launches = [1, 2, 3, 4, 5].map((id) => launchRecord(id));
  // One that asks for something else.
  launches[1]!.planned.cpus_per_node = 2;
  place.store.prepareDeployment('demo');
  place.store.write(deploymentState(launches));
});
afterEach(() => place.dispose());

function reconciler(): Reconciler {
  return new Reconciler({
    site,
    store: place.store,
    runner,
    facts: { user: 'someone', environment: {} },
    now_ms: Date.now,
    emit: (event) => events.push(event),
    command: 'test',
  });
}

const jobIds = ({ launches }: DeploymentState): (string | undefined)[] =>
  launches.map(({ job_id }) => job_id);
const asArray = ['101_0', '1', '101_1', '101_2', '101_3'];

it('submits equal launches at once, each with a folder of its own', async () => {
  const { state } = await reconciler().pass('demo');
  expect(jobIds(state)).toEqual(asArray);
  expect(runner.submittedArrays).toHaveLength(1);
  expect(runner.submitted).toEqual([state.launches[1]!.launch_id]);
  const { array_id, folder } = runner.submittedArrays[0]!;
  const members = state.launches.filter((_, index) => index !== 1);
  for (const [task, { launch_id, array }] of members.entries()) {
    expect(array).toEqual({ array_id, task });
    const own = join(folder, `task-${task}`);
    expect(readlinkSync(own)).toBe(`../${launch_id}`);
    expect(JSON.parse(readFileSync(join(own, launchFiles.launch), 'utf8'))).toMatchObject({ launch_id });
    expect(readFileSync(join(own, launchFiles.script), 'utf8')).toContain('4 tasks');
  }
  expect(events.filter(({ kind }) => kind === 'submitted')).toHaveLength(5);
});

it('counts an array as one submission, and each of its tasks as a job', async () => {
  runner.admitted = 1;
  const { state } = await reconciler().pass('demo');
  expect(runner.asked).toEqual([[2, 5]]);
  expect(jobIds(state)).toEqual(['101_0', undefined, '101_1', '101_2', '101_3']);
});

it('finds every launch of an array whose answer got lost, and submits nothing twice', async () => {
  runner.loseAnswer = true;
  await expect(reconciler().pass('demo')).rejects.toThrow('the connection broke');
  expect(place.store.require('demo').launches.filter(({ phase }) => phase === 'submitting')).toHaveLength(4);
  runner.loseAnswer = false;
  // Another command, on another login node.
  const { state } = await reconciler().pass('demo');
  expect(jobIds(state)).toEqual(asArray);
  expect(runner.submittedArrays).toHaveLength(1);
});

it('ends one task and replaces it by a job of its own, and the others stay', async () => {
  const loop = reconciler();
  const { state } = await loop.pass('demo');
  const launches = state.launches.map((launch, index) => (index === 2 ? superseded(launch) : launch));
  place.store.write({ ...state, launches: [...launches, launchRecord(6)] });
  const { state: after } = await loop.pass('demo');
  expect(runner.cancelled).toEqual([{ job_id: '101_1', force: false }]);
  expect(jobIds(after)).toEqual([...asArray, '2']);
  expect(runner.submittedArrays).toHaveLength(1);
});

it('brings a task that was cancelled by hand back with the next deploy, as a job of its own', async () => {
  const loop = reconciler();
  const { state } = await loop.pass('demo');
  runner.end('101_1', { state: 'CANCELLED', exit_code: 1 });
  const { state: without } = await loop.pass('demo');
  expect(without.launches.map(({ phase }) => phase === 'ended')).toEqual([false, false, true, false, false]);
  expect(runner.submitted).toHaveLength(1);
  const again = mergePlan(
    without.launches,
    state.launches.map(({ planned }) => planned),
    ({ units }) => units[0]!.unit.replace('m-', 'f'),
    (_, index) => launchRecord(10 + index).launch_id,
  );
  place.store.write({ ...without, launches: again });
  const { state: after } = await loop.pass('demo');
  expect(jobIds(after).slice(0, 5)).toEqual(['101_0', '1', '2', '101_2', '101_3']);
  expect(after.launches[2]).toMatchObject({ phase: 'submitted', planned: state.launches[2]!.planned });
  expect(after.launches[2]!.array).toBe(undefined);
  expect(runner.submittedArrays).toHaveLength(1);
  expect(runner.cancelled).toEqual([]);
});

it.each(['E_SLURM_ARRAY', 'E_SLURM_LIMIT'] as const)(
  'goes one by one after %s, and says so once',
  async (code) => {
    runner.refuse = new HpcserveError(code, { what: 'no arrays here', because: 'the site says so' });
    const loop = reconciler();
    await loop.pass('demo');
    const ids = place.store.require('demo').launches.map(({ launch_id }) => launch_id);
    const folder = (id: string): string => place.store.launchFolder('demo', id);
    expect(readdirSync(join(folder(ids[0]!), '..')).toSorted()).toEqual(ids);
    expect(readdirSync(folder(ids[0]!)).toSorted()).toEqual([launchFiles.delegation, launchFiles.launch]);
    const { state } = await loop.pass('demo');
    expect(jobIds(state).toSorted()).toEqual(['1', '2', '3', '4', '5']);
    expect(state.launches.every(({ array, phase }) => array === undefined && phase === 'submitted')).toBe(
      true,
    );
    const warnings = events.filter(({ kind }) => kind === 'warning');
    expect(warnings).toMatchObject([
      { message: '4 jobs are submitted one by one: no arrays here: the site says so' },
    ]);
    const script = join(place.store.launchFolder('demo', state.launches[0]!.launch_id), launchFiles.script);
    expect(readFileSync(script, 'utf8')).not.toContain('tasks');
  },
);

it('records another refusal as the end of all of them', async () => {
  runner.refuse = new HpcserveError('E_SLURM_ACCOUNT', { what: 'no such account' });
  await expect(reconciler().pass('demo')).rejects.toThrow('no such account');
  const { launches, failure } = place.store.require('demo');
  expect(launches.map(({ last }) => last?.state)).toEqual([
    'REFUSED',
    undefined,
    'REFUSED',
    'REFUSED',
    'REFUSED',
  ]);
  expect(failure?.code).toBe('E_SLURM_ACCOUNT');
});

it('what Slurm says to a job that it takes is a warning, once', async () => {
  runner.says = ['Partition a100 is closed from Friday on'];
  await reconciler().pass('demo');
  const warnings = events.flatMap((event) => (event.kind === 'warning' ? event.message : []));
  expect(warnings).toEqual(['Slurm says: Partition a100 is closed from Friday on']);
});
