import { mkdirSync, rmSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { assess } from '../../../control/reconcile/assess.ts';
import { bookkeepingActions, Reconciler } from '../../../control/reconcile/reconciler.ts';
import type { DeploymentState } from '../../../control/state/deployment-state.ts';
import type { AgentState } from '../../../spec/agent-state.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ProgressEvent } from '../../../spec/events.ts';
import {
  deploymentState,
  launchRecord,
  ScriptedRunner,
  site,
  temporaryStore,
  writeAgentState,
} from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
let runner: ScriptedRunner;
let events: ProgressEvent[];
let now_ms: number;

beforeEach(() => {
  place = temporaryStore();
  runner = new ScriptedRunner();
  events = [];
  now_ms = Date.now();
});
afterEach(() => place.dispose());

function reconciler(): Reconciler {
  return new Reconciler({
    site,
    store: place.store,
    runner,
    facts: { user: 'someone', environment: {} },
    now_ms: () => now_ms,
    emit: (event) => events.push(event),
    command: 'test',
  });
}

function given(state: DeploymentState): DeploymentState {
  place.store.prepareDeployment('demo');
  place.store.write(state);
  return state;
}

const kinds = (): string[] => events.map((event) => event.kind);

describe('reconciler', () => {
  it('submits, follows until it serves, and tells each step once', async () => {
    given(deploymentState([launchRecord(1)]));
    const loop = reconciler();
    const first = await loop.pass('demo');
    expect(assess(first.state, first.observation).phase).toBe('starting');
    writeAgentState(place.store, first.state.launches[0]!, { model: 'loading' });
    expect(assess(...pair(await loop.pass('demo'))).phase).toBe('loading');
    writeAgentState(place.store, first.state.launches[0]!);
    const last = await loop.pass('demo');
    expect(assess(...pair(last))).toMatchObject({ phase: 'serving', replicas_serving: 1 });
    await loop.pass('demo');
    expect(kinds()).toEqual(['submitted', 'running', 'agent_up', 'loading', 'replica_serving']);
    expect(runner.submitted).toHaveLength(1);
  });

  it('leaves a job alone of which nobody can say what state it is in, and says so', async () => {
    given(deploymentState([launchRecord(1)]));
    const loop = reconciler();
    await loop.pass('demo');
    runner.poll = async () => new Map();
    now_ms += 60_000;
    const { state, observation } = await loop.pass('demo');
    expect(state.launches).toMatchObject([{ phase: 'submitted' }]);
    expect(observation.problems).toContainEqual(expect.stringMatching(/does not know: job 1$/));
    expect(runner.submitted).toHaveLength(1);
    expect(runner.cancelled).toEqual([]);
  });

  it('never submits twice when the command dies between sbatch and writing its answer down', async () => {
    given(deploymentState([launchRecord(1)]));
    runner.failAfter = () =>
      new HpcserveError('E_INTERNAL', {
        what: 'the connection broke',
        details: { may_have_been_submitted: true },
      });
    await expect(reconciler().pass('demo')).rejects.toThrow('the connection broke');
    expect(place.store.require('demo').launches[0]).toMatchObject({ phase: 'submitting' });
    runner.failAfter = undefined;
    // Another command, on another login node.
    const { state } = await reconciler().pass('demo');
    expect(state.launches[0]).toMatchObject({ phase: 'submitted', job_id: '1' });
    expect(runner.submitted).toHaveLength(1);
  });

  it('submits again only after the time in which a lost job could turn up', async () => {
    given(deploymentState([launchRecord(1, { phase: 'submitting', submitting_since_ms: now_ms })]));
    const loop = reconciler();
    await loop.pass('demo');
    expect(runner.submitted).toHaveLength(0);
    now_ms += runner.settle_ms;
    await loop.pass('demo');
    await loop.pass('demo');
    expect(runner.submitted).toHaveLength(1);
  });

  it('two commands at once submit each launch once', async () => {
    given(deploymentState([launchRecord(1), launchRecord(2), launchRecord(3)]));
    await Promise.all([reconciler().pass('demo'), reconciler().pass('demo'), reconciler().pass('demo')]);
    expect(runner.submitted.toSorted()).toEqual([1, 2, 3].map((id) => id.toString(16).padStart(16, '0')));
  });

  it('records a refusal as an end, with the reason', async () => {
    given(deploymentState([launchRecord(1)]));
    runner.failBefore = () => new HpcserveError('E_SLURM_ACCOUNT', { what: 'no such account' });
    await expect(reconciler().pass('demo')).rejects.toThrow('no such account');
    const state = place.store.require('demo');
    expect(state.launches[0]).toMatchObject({ phase: 'ended', last: { state: 'REFUSED' } });
    expect(state.failure?.code).toBe('E_SLURM_ACCOUNT');
  });

  it('submits no faster than the site allows, says so once, and goes on with the rest', async () => {
    given(deploymentState([launchRecord(1), launchRecord(2), launchRecord(3)]));
    runner.admitted = 2;
    const loop = reconciler();
    await loop.pass('demo');
    expect(runner.submitted).toHaveLength(2);
    runner.admitted = 0;
    await loop.pass('demo');
    expect(runner.submitted).toHaveLength(2);
    runner.admitted = 1;
    await loop.pass('demo');
    expect(runner.submitted).toHaveLength(3);
    expect(events.filter((event) => event.kind === 'warning')).toMatchObject([
      {
        message: expect.stringMatching(
          /1 job\(s\) wait to be submitted: local allows 30 submissions a minute/,
        ),
      },
    ]);
  });

  it('says how a job ended, and what its agent said', async () => {
    given(deploymentState([launchRecord(1), launchRecord(2)]));
    const loop = reconciler();
    const { state } = await loop.pass('demo');
    writeAgentState(place.store, state.launches[1]!);
    runner.end('1', { state: 'CANCELLED', reason: 'it was cancelled' });
    const after = await loop.pass('demo');
    const verdict = assess(...pair(after));
    expect(verdict).toMatchObject({ phase: 'degraded', replicas_serving: 1, replicas_failed: 1 });
    expect(verdict.reasons.join()).toMatch(/job 1 ended: CANCELLED, it was cancelled/);
    expect(after.state.failure?.because.join()).toMatch(/it was cancelled/);
    expect(kinds()).toContain('job_ended');
  });

  it('shows a failed model and a vanished rendezvous folder within one look', async () => {
    given(deploymentState([launchRecord(1)]));
    const loop = reconciler();
    const { state } = await loop.pass('demo');
    writeAgentState(place.store, state.launches[0]!, { model: 'failed' });
    const failed = assess(...pair(await loop.pass('demo')));
    expect(failed.phase).toBe('failed');
    expect(failed.reasons.join()).toMatch(/the weights are cut off/);
    writeAgentState(place.store, state.launches[0]!);
    rmSync(place.store.layout.mesh_folder, { recursive: true });
    const gone = assess(...pair(await loop.pass('demo')));
    expect(gone.phase).toBe('degraded');
    expect(gone.reasons[0]).toMatch(/rendezvous folder .* is gone/);
    mkdirSync(place.store.layout.mesh_folder);
  });

  it('says that the keeper replaces what failed, and that the version before serves meanwhile', async () => {
    given({ ...deploymentState([launchRecord(1)]), kept: true });
    const loop = reconciler();
    const { state } = await loop.pass('demo');
    writeAgentState(place.store, state.launches[0]!, { model: 'failed' });
    const seen = await loop.pass('demo');
    expect(assess(...pair(seen)).phase).toBe('replacing');
    const [launch] = seen.state.launches;
    const over = { ...seen.state, launches: [{ ...launch!, given_up: 'three tries came to nothing' }] };
    expect(assess(over as typeof seen.state, seen.observation).phase).toBe('failed');
    // What serves is of the version before, and the changed one is only planned.
    writeAgentState(place.store, state.launches[0]!);
    const serving = await loop.pass('demo');
    const old = { ...serving.state.launches[0]!, superseded: true };
    place.store.write({ ...serving.state, launches: [old, launchRecord(2)] });
    const updating = assess(...pair(await loop.pass('demo', new Set())));
    expect(updating).toMatchObject({ phase: 'updating', replicas_serving: 0, replicas_old_serving: 1 });
  });

  it('does not believe an agent whose job is being ended', async () => {
    given(deploymentState([launchRecord(1)]));
    const loop = reconciler();
    const { state } = await loop.pass('demo');
    writeAgentState(place.store, state.launches[0]!);
    await loop.pass('demo');
    runner.jobs.get('1')!.snapshot = { job_id: '1', phase: 'completing', state: 'COMPLETING' };
    expect(assess(...pair(await loop.pass('demo')))).toMatchObject({
      phase: 'degraded',
      replicas_serving: 0,
      replicas_failed: 0,
      reasons: ['job 1 is ending (COMPLETING)'],
    });
  });

  it('does not believe the state file of a run before the job was requeued', async () => {
    given(deploymentState([launchRecord(1)]));
    const loop = reconciler();
    const { state } = await loop.pass('demo');
    writeAgentState(place.store, state.launches[0]!, { updated_at_ms: now_ms - 60_000 });
    expect(assess(...pair(await loop.pass('demo'))).phase).toBe('serving');
    runner.jobs.get('1')!.snapshot = {
      job_id: '1',
      phase: 'pending',
      state: 'PENDING',
      pending: { reason: 'BeginTime', explanation: 'it was requeued' },
    };
    expect(assess(...pair(await loop.pass('demo'))).replicas_serving).toBe(0);
  });

  it.each([
    ['ahead', 3_600_000],
    ['behind', -3_600_000],
  ])('tells the runs of a requeued job apart where a clock is an hour %s', async (_, wrong_ms) => {
    given(deploymentState([launchRecord(1)]));
    const loop = reconciler();
    const { state } = await loop.pass('demo');
    const [launch] = state.launches;
    const of = (node: string, restart_count: number, facts: Partial<AgentState> = {}): void =>
      writeAgentState(place.store, launch!, {
        ...{ node, restart_count, started_at_ms: now_ms + wrong_ms, updated_at_ms: now_ms + wrong_ms },
        ...facts,
      });
    const ran = (phase: 'pending' | 'running', restart_count: number): void => {
      const pending = { reason: 'BeginTime', explanation: 'it was requeued' };
      runner.jobs.get('1')!.snapshot = {
        ...{ job_id: '1', phase, state: phase.toUpperCase(), restart_count },
        ...(phase === 'pending' ? { pending } : { start_time_ms: now_ms }),
      };
    };
    of('n1', 0, { phase: 'stopped' });
    ran('pending', 1);
    expect(assess(...pair(await loop.pass('demo')))).toMatchObject({ phase: 'waiting', replicas_failed: 0 });
    // Its next run is on a node whose clock is right.
    of('n2', 1, { started_at_ms: now_ms, updated_at_ms: now_ms });
    ran('running', 1);
    expect(assess(...pair(await loop.pass('demo'))).phase).toBe('serving');
    // And what an agent says of this run counts, whatever its clock says.
    of('n2', 1, { phase: 'failed' });
    expect(assess(...pair(await loop.pass('demo'))).replicas_failed).toBe(1);
  });

  it('waits for the agent of a job that runs again, whatever the one before said at its end', async () => {
    given(deploymentState([launchRecord(1)]));
    const loop = reconciler();
    const { state } = await loop.pass('demo');
    writeAgentState(place.store, state.launches[0]!, { phase: 'failed', updated_at_ms: now_ms - 60_000 });
    const ran = { job_id: '1', phase: 'running', state: 'RUNNING' } as const;
    runner.jobs.get('1')!.snapshot = { ...ran, start_time_ms: now_ms - 90_000 };
    expect(assess(...pair(await loop.pass('demo'))).replicas_failed).toBe(1);
    runner.jobs.get('1')!.snapshot = { ...ran, start_time_ms: now_ms - 5000, restart_count: 1 };
    expect(assess(...pair(await loop.pass('demo')))).toMatchObject({ phase: 'starting', replicas_failed: 0 });
  });

  it('goes on while the scheduler does not answer, says so once, and asks again', async () => {
    given(deploymentState([launchRecord(1)]));
    const loop = reconciler();
    const { state } = await loop.pass('demo');
    writeAgentState(place.store, state.launches[0]!);
    runner.away = new HpcserveError('E_SLURM_UNREACHABLE', { what: 'the controller is away' });
    const blind = assess(...pair(await loop.pass('demo')));
    await loop.pass('demo');
    expect(blind).toMatchObject({ phase: 'degraded', replicas_serving: 1, replicas_failed: 0 });
    expect(blind.reasons.join()).toMatch(/as last known.*the controller is away/);
    expect(kinds().filter((kind) => kind === 'warning')).toHaveLength(1);
    runner.away = undefined;
    expect(assess(...pair(await loop.pass('demo'))).phase).toBe('serving');
    // Another command that finds it away knows the job from the disk.
    runner.away = new HpcserveError('E_SLURM_UNREACHABLE', { what: 'the controller is away' });
    const other = await reconciler().pass('demo');
    expect(other.observation.launches.get(state.launches[0]!.launch_id)?.job?.state).toBe('RUNNING');
    expect(assess(...pair(other)).replicas_serving).toBe(1);
  });

  it('asks for a cancellation again at once where nobody heard it', async () => {
    given(deploymentState([launchRecord(1)]));
    await reconciler().pass('demo');
    place.store.write({ ...place.store.require('demo'), desired: 'stopped' });
    runner.deaf = new HpcserveError('E_SLURM_UNREACHABLE', { what: 'the controller is away' });
    await expect(reconciler().pass('demo')).rejects.toThrow('away');
    runner.deaf = undefined;
    await reconciler().pass('demo');
    expect(runner.cancelled).toEqual([{ job_id: '1', force: false }]);
  });

  it('ends jobs of a stopped deployment and nothing else', async () => {
    given(deploymentState([launchRecord(1), launchRecord(2)]));
    await reconciler().pass('demo');
    place.store.write({ ...place.store.require('demo'), desired: 'stopped' });
    const loop = reconciler();
    await loop.pass('demo');
    const { state: after, observation } = await loop.pass('demo');
    expect(runner.cancelled.map((each) => each.job_id)).toEqual(['1', '2']);
    expect(after.launches.every((launch) => launch.phase === 'ended')).toBe(true);
    expect(assess(after, observation).phase).toBe('stopped');
  });

  it('can be held to writing down what happened', async () => {
    given(deploymentState([launchRecord(1)]));
    await reconciler().pass('demo', bookkeepingActions);
    expect(runner.submitted).toEqual([]);
  });
});

function pair(pass: Awaited<ReturnType<Reconciler['pass']>>): Parameters<typeof assess> {
  return [pass.state, pass.observation];
}
