/** What people read when something went wrong: each finding once, on one line, without the log's JSON. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { assess } from '../../../control/reconcile/assess.ts';
import { diagnose } from '../../../control/reconcile/diagnose.ts';
import { observe } from '../../../control/reconcile/observe.ts';
import { describeAgentExit, describeJobEnd } from '../../../control/runner/agent-end.ts';
import { findingOf, sentenceOf } from '../../../control/state/findings.ts';
import { explainFromLog } from '../../../control/state/log-files.ts';
import { messageOf, readableLine } from '../../../control/state/readable-line.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { deploymentState, launchRecord, temporaryStore, writeAgentState } from '../support.ts';

const failure = new HpcserveError('E_AGENT_ENGINE_OPTION', {
  what: 'm: the command names no port',
  because: ['the agent must know where the server listens'],
  try: 'use {port}',
});
const everythingFailed = new HpcserveError('E_AGENT_UNITS_FAILED', {
  what: 'nothing can be served on n1: every unit failed',
  because: `m-1: ${failure.toText()}`,
});

let place: ReturnType<typeof temporaryStore>;
beforeEach(() => {
  place = temporaryStore();
});
afterEach(() => place.dispose());

it('a failed unit is one finding with its own advice', () => {
  const launch = launchRecord(1, {
    phase: 'ended',
    job_id: '7',
    last: {
      job_id: '7',
      phase: 'ended',
      state: 'FAILED',
      exit_code: 8,
      reason: 'the node agent ended with exit code 8',
    },
  });
  const state = deploymentState([launch]);
  const folder = place.store.launchFolder('demo', launch.launch_id);
  mkdirSync(folder, { recursive: true });
  mkdirSync(place.store.layout.mesh_folder, { recursive: true });
  writeFileSync(
    join(folder, 'job.log'),
    `${JSON.stringify({ level: 50, msg: failure.message })}\n${everythingFailed.toText()}\n`,
  );
  writeAgentState(place.store, launch, {
    phase: 'failed',
    error: everythingFailed.toJSON(),
    sessions: [
      {
        session_id: 's',
        role: 'engine',
        unit: 'm-1',
        engine: 'command',
        models: [],
        error: failure.toJSON(),
      },
    ],
  });
  const observation = observe(
    state,
    place.store,
    { at_ms: 0, jobs: new Map(), found: new Map() },
    Date.now(),
  );
  const error = diagnose(state, place.store, launch, observation.launches.get(launch.launch_id));
  expect(error.because).toEqual([
    'job 7 ended: FAILED, the node agent ended with exit code 8',
    'm-1 on n1: m: the command names no port: the agent must know where the server listens',
    `log file: ${join(folder, 'job.log')}`,
  ]);
  expect(error.try).toEqual(['use {port}', 'read the whole log: hpcserve logs demo']);
  expect(assess(state, observation).reasons).toEqual(error.because.slice(0, 2));
});

it('an end that nobody explains comes with the last lines of the log, as their messages', () => {
  const launch = launchRecord(1, { phase: 'submitted', job_id: '7' });
  const folder = place.store.launchFolder('demo', launch.launch_id);
  mkdirSync(folder, { recursive: true });
  writeFileSync(
    join(folder, 'job.log'),
    '{"level":40,"msg":"low on memory"}\nslurmstepd: oom\nslurmstepd: oom\n',
  );
  const error = diagnose(deploymentState([launch]), place.store, launch, undefined);
  expect(error.because).toEqual([
    'log: low on memory',
    'log: slurmstepd: oom',
    `log file: ${join(folder, 'job.log')}`,
  ]);
});

it('what agents that run complain of is shown', () => {
  const launch = launchRecord(1, { phase: 'submitted', job_id: '7' });
  mkdirSync(place.store.launchFolder('demo', launch.launch_id), { recursive: true });
  mkdirSync(place.store.layout.mesh_folder, { recursive: true });
  const notice = new HpcserveError('E_STATE_FOLDER', {
    what: 'the log cannot be written',
    because: 'ENOSPC',
  });
  writeAgentState(place.store, launch, { notices: [notice.toJSON()] });
  const jobs = new Map([['7', { job_id: '7', phase: 'running' as const, state: 'RUNNING' }]]);
  const state = deploymentState([launch]);
  const observation = observe(state, place.store, { at_ms: Date.now(), jobs, found: new Map() }, Date.now());
  expect(assess(state, observation).reasons).toEqual(['n1: the log cannot be written: ENOSPC']);
});

it('jobs that wait for the same thing are one line', () => {
  const ids = ['7', '8', '9', '10', '11', '12'];
  const launches = ids.map((job_id, at) => launchRecord(at + 1, { phase: 'submitted', job_id }));
  mkdirSync(place.store.layout.mesh_folder, { recursive: true });
  for (const { launch_id } of launches)
    mkdirSync(place.store.launchFolder('demo', launch_id), { recursive: true });
  const pending = (reason: string) => ({ reason, explanation: 'nodes are taken' });
  const jobs = new Map(
    ids.map((job_id) => [
      job_id,
      {
        ...{ job_id, phase: 'pending' as const, state: 'PENDING' },
        pending: pending(job_id === '12' ? 'Resources' : 'Priority'),
      },
    ]),
  );
  const state = deploymentState(launches);
  const observation = observe(state, place.store, { at_ms: Date.now(), jobs, found: new Map() }, Date.now());
  expect(assess(state, observation).reasons).toEqual([
    'jobs 7, 8, 9 and 2 more wait: nodes are taken (Priority)',
    'job 12 waits: nodes are taken (Resources)',
  ]);
});

it('the text of an error in a state file becomes a finding again', () => {
  expect(findingOf(failure.toText())).toEqual({
    what: failure.message,
    because: [...failure.because],
    try: [...failure.try],
  });
  expect(sentenceOf(findingOf('plain words')!)).toBe('plain words');
});

it('exit codes are told once, and only where they say something', () => {
  expect(describeJobEnd({ state: 'CANCELLED', exit_code: 0 })).toBe('CANCELLED');
  expect(describeJobEnd({ state: 'FAILED', exit_code: 3 })).toBe('FAILED, exit code 3');
  expect(describeJobEnd({ state: 'FAILED', exit_code: 8, reason: 'it ended with exit code 8' })).toBe(
    'FAILED, it ended with exit code 8',
  );
  expect(describeAgentExit(143)).toBe('the node agent ended by signal 15');
  // What apptainer ends with where it cannot open an image.
  expect(describeAgentExit(255)).toBe('the node agent ended with exit code 255');
});

it('JSON lines of logs are read out', () => {
  const line = JSON.stringify({
    level: 50,
    time: 0,
    node: 'n1',
    msg: 'no',
    error: { because: ['full'] },
    port: 1,
  });
  expect(messageOf(line)).toBe('no');
  expect(readableLine(line)).toMatch(/^\d\d:\d\d:\d\d error no: full port=1$/);
  for (const other of ['{"half', '{"a":1}', 'plain'])
    expect([messageOf(other), readableLine(other)]).toEqual([other, other]);
});

it('the error a process printed last says why it ended, and nothing of a process before it', () => {
  const path = join(place.folder, 'x.log');
  const earlier = 'error: an old one [E_INTERNAL]\n  because: of then\n';
  writeFileSync(path, `${earlier}{"msg":"up"}\nplain\n`);
  expect(explainFromLog(path, earlier.length)).toEqual({ because: ['log: up', 'log: plain'], try: [] });
  writeFileSync(path, `${earlier}{"msg":"up"}\n${failure.toText()}\n{"msg":"later"}\n`);
  expect(explainFromLog(path, earlier.length)).toEqual({
    because: [sentenceOf({ what: failure.message, because: [...failure.because] })],
    try: ['use {port}'],
  });
  expect(explainFromLog(join(place.folder, 'absent.log'))).toEqual({ because: [], try: [] });
});

it('what the filesystem refuses is no defect', () => {
  const system = (code: string, path?: string): Error => Object.assign(new Error(code), { code, path });
  expect(HpcserveError.from(system('ENOSPC', '/a/b')).toText()).toMatch(
    /^error: \/a\/b: no space is left on that filesystem \[E_FILESYSTEM\]/,
  );
  expect(HpcserveError.from(system('ENOSPC')).code).toBe('E_FILESYSTEM');
  expect(HpcserveError.from(system('EACCES')).code).toBe('E_INTERNAL');
  expect(HpcserveError.from(system('EXDEV', '/a')).code).toBe('E_INTERNAL');
});
