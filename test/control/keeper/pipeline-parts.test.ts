/** The keeper and the jobs of one pipeline: the loss of one is the loss of that one alone; all are renewed together. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { keepDeployment } from '../../../control/keeper/keep-deployment.ts';
import { RepeatedTrouble } from '../../../control/keeper/repeated-trouble.ts';
import { assess } from '../../../control/reconcile/assess.ts';
import { mergePlan } from '../../../control/reconcile/decide.ts';
import { Reconciler } from '../../../control/reconcile/reconciler.ts';
import { type DeploymentState, wantedLaunches } from '../../../control/state/deployment-state.ts';
import type { JobSnapshot } from '../../../control/state/job-snapshot.ts';
import type { LaunchRecord } from '../../../control/state/launch-record.ts';
import { defaultKeepSettings } from '../../../solver/keeping/keep.ts';
import type { AgentState } from '../../../spec/agent-state.ts';
import type { ErrorJson } from '../../../spec/errors/error.ts';
import { type LaunchSpec, launchSchema } from '../../../spec/launch.ts';
import {
  deploymentState,
  launchRecord,
  partsOf,
  ScriptedRunner,
  site,
  temporaryStore,
  writeAgentState,
} from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
let runner: ScriptedRunner;
beforeEach(() => {
  place = temporaryStore();
  runner = new ScriptedRunner();
});
afterEach(() => place.dispose());

const common = () => ({
  store: place.store,
  command: 'keeper',
  now_ms: () => Date.now(),
  emit: () => undefined,
});
const reconciler = (): Reconciler =>
  new Reconciler({ ...common(), site, runner, facts: { user: 'someone', environment: {} } });

async function round(): Promise<DeploymentState> {
  const settings = { ...defaultKeepSettings, signal_s: 0, gpu_hours: undefined };
  const trouble = new RepeatedTrouble(common().emit, common().now_ms);
  const keeping = {
    ...common(),
    reconciler: reconciler(),
    settings,
    trouble,
    replaceLost: async () => false,
  };
  await keepDeployment(keeping, 'demo');
  return place.store.require('demo');
}

const wanted = async (): Promise<LaunchRecord[]> => wantedLaunches(await round());
const specOf = ({ launch_id }: LaunchRecord): LaunchSpec =>
  launchSchema.parse(
    JSON.parse(readFileSync(join(place.store.launchFolder('demo', launch_id), 'launch.json'), 'utf8')),
  );
const news = (launch: LaunchRecord, facts: Partial<JobSnapshot>): void => {
  const job = runner.jobs.get(launch.job_id!)!;
  job.snapshot = { ...job.snapshot, ...facts };
};

/**
 * A stage as its agent says that it has it, on another node than the first.
 * @param error why it failed there
 */
function writeStage(launch: LaunchRecord, node: string, stage: number, error?: ErrorJson): void {
  const session: AgentState['sessions'][number] = {
    session_id: `s${stage}`,
    role: 'device-worker',
    unit: `cut-0-stage${stage}`,
    units: [],
    pid: 1,
    engine: 'native',
    models: [],
    stages: [{ unit: 'cut-0', model: 'm', stage, stages: 2, begin: 2 * stage, end: 2 * stage + 2 }],
  };
  if (error) Object.assign(session, { error, model_errors: { m: error } });
  writeAgentState(place.store, launch, { node, sessions: [session] });
}

/** Two jobs that serve a replica together, beside one of its own. */
async function serving(lenders?: 'scavenger'): Promise<[LaunchRecord, LaunchRecord, LaunchRecord]> {
  place.store.prepareDeployment('demo');
  const ids = ['a', 'b'].map((digit) => digit.repeat(16));
  const parts = mergePlan(
    [],
    partsOf('cut-0', 2, lenders),
    ({ part }) => `${part!.node_index}`,
    (_, at) => ids[at]!,
  );
  place.store.write(deploymentState([...parts, launchRecord(1)], { kept: true }));
  const [first, second, alone] = await wanted();
  writeAgentState(place.store, first!);
  writeAgentState(place.store, alone!);
  writeStage(second!, 'n1', 1);
  return (await wanted()) as [LaunchRecord, LaunchRecord, LaunchRecord];
}

it('are one replica, whose stages are where the agents of both jobs say', async () => {
  const [first, second] = await serving();
  expect([first.served_at_ms, second.served_at_ms]).toEqual([expect.any(Number), expect.any(Number)]);
  const { state, observation } = await reconciler().pass('demo');
  expect(assess(state, observation)).toMatchObject({
    phase: 'serving',
    replicas_wanted: 2,
    replicas_serving: 2,
  });
  const [unit] = observation.launches.get(first.launch_id)!.units;
  expect(unit!.stages).toMatchObject([{ stage: 1, node: 'n1', begin: 2, end: 4, runs: true }]);
  expect(observation.launches.get(second.launch_id)!.units).toEqual([]);
  // What the agents are told.
  const specs = [first, second].map(specOf);
  expect(specs.map(({ part }) => part!.node_index)).toEqual([0, 1]);
  expect(specs[1]!.part!.group).toBe(specs[0]!.part!.group);
  expect(specs[1]!.units).toEqual(specs[0]!.units);
});

it('are lost together for those who wait for the replica', async () => {
  const [, second] = await serving();
  runner.end(second.job_id!, { state: 'FAILED' });
  const { state, observation } = await reconciler().pass('demo');
  expect(assess(state, observation)).toMatchObject({
    replicas_failed: 1,
    replicas_serving: 1,
    phase: 'degraded',
  });
});

it('say why a stage failed, in the job that has it alone as in the one with the requests', async () => {
  const [first, second] = await serving();
  const error = {
    code: 'E_MODEL_WEIGHTS',
    what: 'weights are no numbers',
    because: ['one is NaN'],
    try: [],
    details: {},
  };
  writeStage(second, 'n1', 1, error);
  const { state, observation } = await reconciler().pass('demo');
  const sentence = 'weights are no numbers: one is NaN';
  expect(observation.launches.get(first.launch_id)!.units).toMatchObject([
    { unit: 'cut-0', error: sentence },
  ]);
  expect(assess(state, observation).reasons).toContain(`cut-0-stage1 on n1: ${sentence}`);
  runner.end(second.job_id!, { state: 'FAILED' });
  const ended = await reconciler().pass('demo');
  expect(assess(ended.state, ended.observation).reasons).toContain(`cut-0-stage1 on n1: ${sentence}`);
});

it('are not lost with one that has none of its stages any more', async () => {
  const [first, second] = await serving();
  const stage = { unit: 'cut-0', model: 'm' };
  const session = {
    ...{ session_id: 's', role: 'device-worker', unit: 'cut-0', units: ['cut-0'], pid: 1, engine: 'native' },
    models: [
      {
        ...{ name: 'm', aliases: [], state: 'serving', precision: 'Q8_0' },
        ...{ context_tokens: 1024, bytes_loaded: 100, bytes_total: 100 },
      },
    ],
  } as unknown as AgentState['sessions'][number];
  const has = (end: number): void => {
    const stages = [{ ...stage, stage: 0, stages: 1, begin: 0, end }];
    writeAgentState(place.store, first, { sessions: [{ ...session, stages }] });
  };
  const operators = first.planned.units[0]!.stages!.at(-1)!.end;
  runner.end(second.job_id!, { state: 'FAILED' });
  has(operators);
  const whole = await reconciler().pass('demo');
  expect(assess(whole.state, whole.observation)).toMatchObject({ replicas_failed: 0, replicas_serving: 2 });
  // As one says that has not seen yet that the other is gone.
  has(operators - 1);
  const half = await reconciler().pass('demo');
  expect(assess(half.state, half.observation)).toMatchObject({ replicas_failed: 1, replicas_serving: 1 });
});

it('one that ends is replaced alone, in its place of the pipeline', async () => {
  const [first, second, alone] = await serving();
  runner.end(second.job_id!, { state: 'PREEMPTED' });
  const after = await wanted();
  expect(after.map(({ launch_id }) => launch_id)).toEqual([
    first.launch_id,
    expect.not.stringMatching(second.launch_id),
    alone.launch_id,
  ]);
  expect(after[1]).toMatchObject({ phase: 'submitted', planned: { part: second.planned.part } });
  expect(specOf(after[1]!).part).toEqual(specOf(second).part);
  expect(runner.cancelled).toEqual([]);
});

it('one that is lent goes when it goes: nobody is renewed for its time limit', async () => {
  const [first, second, alone] = await serving('scavenger');
  news(second, { start_time_ms: Date.now() - 3_600_000, end_time_limit_ms: Date.now() + 1000 });
  expect((await wanted()).map(({ launch_id }) => launch_id)).toEqual(
    [first, second, alone].map(({ launch_id }) => launch_id),
  );
  runner.end(second.job_id!, { state: 'TIMEOUT' });
  const after = await wanted();
  expect(after[0]!.launch_id).toBe(first.launch_id);
  expect(after[1]).toMatchObject({ phase: 'submitted', planned: { part: second.planned.part } });
  expect(after[1]!.launch_id).not.toBe(second.launch_id);
  // That of the first one is everybody's.
  news(first, { start_time_ms: Date.now() - 3_600_000, end_time_limit_ms: Date.now() + 1000 });
  const [first2, second2] = await wanted();
  expect([first2!.launch_id, second2!.launch_id]).not.toContain(first.launch_id);
  expect(second2!.planned.part!.group).toBe(first2!.planned.part!.group);
});

it('are renewed together, and end once the others serve', async () => {
  const [first, second, alone] = await serving();
  news(second, { start_time_ms: Date.now() - 3_600_000, end_time_limit_ms: Date.now() + 1000 });
  const [first2, second2, alone2] = await wanted();
  expect(alone2!.launch_id).toBe(alone.launch_id);
  expect([first2!.launch_id, second2!.launch_id]).not.toContain(first.launch_id);
  expect(second2!.planned.part!.group).toBe(first2!.planned.part!.group);
  expect(second2!.planned.part!.group).not.toBe(second.planned.part!.group);
  expect([first2!.phase, second2!.phase]).toEqual(['submitted', 'submitted']);
  // Nothing of the old pipeline goes before the new one serves.
  await round();
  expect(runner.cancelled).toEqual([]);
  writeAgentState(place.store, first2!);
  await round();
  await round();
  expect(runner.cancelled.map(({ job_id }) => job_id).sort()).toEqual([first.job_id, second.job_id].sort());
});
