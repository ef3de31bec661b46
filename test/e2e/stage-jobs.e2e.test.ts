/**
 * A model that is one job on a real Slurm cluster, and then a pipeline whose stages are jobs of their own. In
 * mid-answer Slurm preempts that job, or the job of one stage, or it is ended for good; the client's answers are those
 * of an undisturbed model. On a cluster of its own, since other jobs take its nodes.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import OpenAI from 'openai';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import type { CommandResult } from '../../slurm/command-runner.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { UserHome } from '../cluster/user-home.ts';
import { eventually } from '../mesh/support.ts';
import { greedyAnswer } from './greedy-answer.ts';

let home: UserHome;
let cluster: Cluster;
let client: OpenAI;
/** What the whole model answers. */
let expected: string;

beforeAll(async () => {
  home = await UserHome.open({
    cluster: 'stage-jobs',
    site: (shipped) =>
      shipped
        .replace('name: test-cluster', 'name: stage-jobs')
        // Answers take seconds, so that losses meet them.
        .replaceAll(/^( +)emulated: cpu$/gm, '$1emulated: cpu\n$1emulated_step_ms: 40'),
  });
  ({ cluster } = home);
}, 120_000);
afterAll(() => home?.close(), 120_000);
beforeEach(() => {
  home.explainFailure();
});

const hpcserve = (...argv: string[]): Promise<CommandResult> => home.hpcserve(...argv);

async function deploy(name: string, parallel: object, more: object = {}, slurm: object = {}): Promise<void> {
  const model = {
    name: 'cut',
    source: './toy.gguf',
    engine: 'native',
    parallel,
    cpu_threads: 1,
    context_tokens: 1024,
    max_sequences: 4,
    batch_invariant: true,
    tier: 'scavenger',
    devices: { kind: 'gpu', node_kinds: ['scavenge-gh200'] },
    ...more,
  };
  // Each job has a node for itself, so that one of them is preempted alone.
  const file = home.write(`${name}.yaml`, {
    name,
    models: [model],
    slurm: { extra: ['--exclusive'], ...slurm },
  });
  const { code, stdout, stderr } = await hpcserve('deploy', '--yes', file, '--json', '--timeout', '90s');
  expect(code, stderr + stdout).toBe(0);
  const { url, key } = JSON.parse(stdout.trim().split('\n').at(-1)!) as { url: string; key: string };
  client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
}

interface Launch {
  launch_id: string;
  job_id: string;
  superseded: boolean;
  job?: { state: string; nodes?: string };
  units: { unit: string; state: string; stages?: { stage: number; node: string }[] }[];
  lends_to?: { units: string[]; number: number; of: number };
}

/** The jobs that a deployment is to consist of; those of the pipeline in the order of their stages. */
async function jobsOf(deployment: string): Promise<Launch[]> {
  const { code, stdout, stderr } = await hpcserve('status', deployment, '--json');
  expect(code, stderr).toBe(0);
  const { launches } = (JSON.parse(stdout) as { deployments: { launches: Launch[] }[] }).deployments[0]!;
  return launches.filter(({ superseded }) => !superseded);
}

const parts = async (): Promise<[Launch, Launch]> => (await jobsOf('cut')) as [Launch, Launch];

/** Until Slurm has taken its node for something else, and put it back into the queue. */
async function preempt(launch: Launch): Promise<void> {
  const before = await restarts(launch);
  const urgent = ['sbatch', '--partition=gh200', `--nodelist=${launch.job!.nodes}`, '--gres=gpu:gh200:4'];
  const { code, stderr } = await cluster.runAs('user', [...urgent, '--output=/dev/null', '--wrap=sleep 4']);
  expect(code, stderr).toBe(0);
  await eventually(
    async () => (await restarts(launch)) > before || undefined,
    'Slurm to put the job back into the queue',
    60_000,
  );
}

async function end({ job_id }: Pick<Launch, 'job_id'>): Promise<void> {
  const { code, stderr } = await cluster.runAs('user', ['scancel', job_id]);
  expect(code, stderr).toBe(0);
}

/** As a node fails: nothing of it ends in order. */
async function kill({ launch_id, job_id }: Launch): Promise<void> {
  const { code, stderr } = await cluster.runAs('user', ['pkill', '-KILL', '-f', `/${launch_id}/`]);
  expect(code, stderr).toBe(0);
  await end({ job_id });
}

/** What its nodes have written under names that end so. */
function filesOf(launch_id: string, end: string): string[] {
  const folder = join(home.folder, `.hpcserve/stage-jobs/deployments/cut/launches/${launch_id}`);
  return readdirSync(folder)
    .filter((name) => name.endsWith(end))
    .map((name) => readFileSync(join(folder, name), 'utf8'));
}

/** The workers of a job that has a later stage, and how often these have loaded one. */
function lenderOf({ launch_id }: Launch): { workers: unknown[]; loads: number } {
  const states = filesOf(launch_id, '.state.json').map((text) => JSON.parse(text) as AgentState);
  const workers = states.flatMap(({ sessions }) =>
    sessions.map(({ session_id, pid, stages }) => ({ session_id, pid, stages })),
  );
  const loads = filesOf(launch_id, '.log').join('').split('"serving a model"').length - 1;
  return { workers, loads };
}

/** How often Slurm has put its job back into the queue. */
async function restarts({ job_id }: Launch): Promise<number> {
  const { stdout } = await cluster.runAs('user', ['scontrol', '--oneliner', 'show', 'job', job_id]);
  return Number(/ Restarts=(\d+)/.exec(stdout)?.[1] ?? 0);
}

const answer = (begun?: () => Promise<void>): Promise<string> =>
  greedyAnswer(client, { model: 'cut', max_tokens: 150 }, begun);

/** How often somebody had to go on with the last answer, and who began it. */
async function attempts(): Promise<number> {
  const question = 'SELECT attempts FROM requests ORDER BY sequence DESC LIMIT 1';
  const { code, stdout, stderr } = await hpcserve('usage', 'sql', question, '--csv');
  expect(code, stderr).toBe(0);
  return Number(stdout.trim().split('\n').at(-1));
}

/** That a loss met the last answer in its middle: the gateway had somebody go on with it, and counted that. */
async function expectContinued(): Promise<void> {
  expect(await attempts()).toBeGreaterThan(1);
}

/** Once the second job runs again, the keeper has both of them have a stage. */
async function divided(deployment: string): Promise<void> {
  await eventually(
    async () => {
      const [first] = await jobsOf(deployment);
      return first?.units[0]?.stages?.length === 2 || undefined;
    },
    'the keeper to give the second job a stage again',
    90_000,
  );
}

it('goes on with an answer of a model whose only job Slurm preempts, once that runs again', async () => {
  await deploy('whole', {});
  expected = await answer();
  expect(expected.length).toBeGreaterThan(150);
  const [job] = (await jobsOf('whole')) as [Launch];
  expect(await answer(() => preempt(job))).toBe(expected);
  await expectContinued();
  expect((await jobsOf('whole')).map(({ job_id }) => job_id)).toEqual([job.job_id]);
}, 240_000);

it('goes on with an answer of a model whose only job is ended, once the keeper has put another in its place', async () => {
  const [job] = (await jobsOf('whole')) as [Launch];
  expect(await answer(() => end(job))).toBe(expected);
  await expectContinued();
  const after = (await jobsOf('whole')).map(({ job_id }) => job_id);
  expect(after).toHaveLength(1);
  expect(after).not.toContain(job.job_id);
  const stopped = await hpcserve('stop', 'whole', '--yes');
  expect(stopped.code, stopped.stderr).toBe(0);
}, 180_000);

it('answers with the same tokens as stages in two jobs', async () => {
  await deploy('cut', { pipeline: 2, jobs: 2 });
  expect(await answer()).toBe(expected);
  const [first, second] = await parts();
  expect(first.job_id).not.toBe(second.job_id);
  const nodes = [first, second].map(({ job }) => job!.nodes!);
  expect(new Set(nodes).size).toBe(2);
  expect(first.units).toMatchObject([
    { unit: 'cut-0', state: 'serving', stages: nodes.map((node, stage) => ({ node, stage })) },
  ]);
  expect(second).toMatchObject({ units: [], lends_to: { units: ['cut-0'], number: 2, of: 2 } });
  const { stdout } = await hpcserve('status', 'cut');
  expect(stdout).toMatch(/1 of 1 replicas serve/);
  expect(stdout).toContain('cut-0 (part 2 of 2)');
  expect(stdout).toMatch(/pipeline 2, in each of 2 jobs on scavenge-gh200 .*as planned/);
}, 240_000);

it('has a stage leave while an answer is computed whose job Slurm preempts, and divides it when that runs again', async () => {
  const [first, second] = await parts();
  expect(await answer(() => preempt(second))).toBe(expected);
  // Nobody had to go on with it: the stage was elsewhere before its job ended.
  expect(await attempts()).toBe(1);
  // The same jobs: one went on, and one ran again.
  expect((await parts()).map(({ job_id }) => job_id)).toEqual([first.job_id, second.job_id]);
  expect(await restarts(first)).toBe(0);
  await divided('cut');
  expect(await answer()).toBe(expected);
}, 240_000);

it('has a stage leave a node that is emptied by its name, and divides it when another job is there', async () => {
  const [first, second] = await parts();
  const empty = async (): Promise<void> => {
    const { code, stdout, stderr } = await hpcserve('drain', second.job!.nodes!);
    expect(code, stderr).toBe(0);
    expect(stdout).toContain(second.job_id);
  };
  expect(await answer(empty)).toBe(expected);
  expect(await attempts()).toBe(1);
  await divided('cut');
  const [first2, second2] = await parts();
  expect(first2.job_id).toBe(first.job_id);
  expect(second2.job_id).not.toBe(second.job_id);
  expect(await answer()).toBe(expected);
}, 240_000);

it('serves on while the agent of its first stage stands still, which the mesh takes for gone', async () => {
  const [{ launch_id }] = await parts();
  const signal = async (name: string): Promise<void> => {
    const argv = ['pkill', `-${name}`, '-f', `agent/main.js --launch .*/${launch_id}/`];
    const { code, stderr } = await cluster.runAs('user', argv);
    expect(code, stderr).toBe(0);
  };
  await signal('STOP');
  await delay(4000); // longer than the mesh waits
  await signal('CONT');
  await eventually(
    () => filesOf(launch_id, '.agent.log').join('').includes('took another session'),
    'it to come back under another key',
    30_000,
  );
  expect(await answer()).toBe(expected);
}, 120_000);

// Both find the agent of the first stage under the key that it has now.
it('goes on with an answer whose second stage is lost, once the keeper has started it elsewhere', async () => {
  const [first, second] = await parts();
  expect(await answer(() => kill(second))).toBe(expected);
  await expectContinued();
  const [first2, second2] = await parts();
  expect(first2.job_id).toBe(first.job_id);
  expect(second2.job_id).not.toBe(second.job_id);
  expect(second2).toMatchObject({ lends_to: { number: 2 }, job: { state: 'RUNNING' } });
}, 180_000);

it.each([
  ['ended', end],
  ['lost', kill],
])(
  'goes on with an answer whose first stage is %s: another job has it, and the second one keeps its weights',
  async (_, lose) => {
    const [first, second] = await parts();
    const before = lenderOf(second);
    expect(before.loads).toBeGreaterThan(0);
    expect(await answer(() => lose(first))).toBe(expected);
    await expectContinued();
    const [first2, second2] = await parts();
    expect(first2.job_id).not.toBe(first.job_id);
    expect(second2.job_id).toBe(second.job_id);
    expect(lenderOf(second2)).toEqual(before);
  },
  180_000,
);

it('has its first stage on stable nodes, and is lent the second one by a node with other devices that Slurm may take', async () => {
  const stopped = await hpcserve('stop', 'cut', '--yes');
  expect(stopped.code, stopped.stderr).toBe(0);
  const stable = { tier: 'stable', devices: { kind: 'gpu', node_kinds: ['a100'] } };
  // Of both the second job has its own: its nodes allow four hours.
  const slurm = { partition: 'a100', time_limit: '06:00:00' };
  await deploy('lent', { pipeline: 2, jobs: 2, lenders: 'scavenger' }, stable, slurm);
  expect(await answer()).toBe(expected);
  const [first, second] = (await jobsOf('lent')) as [Launch, Launch];
  const argv = [
    'squeue',
    '--noheader',
    '--format=%P %l',
    `--jobs=${first.job_id},${second.job_id}`,
    '--sort=i',
  ];
  const { stdout } = await cluster.runAs('user', argv);
  expect(stdout.trim().split(/\s+/)).toEqual(['a100', '6:00:00', 'scavenge', '4:00:00']);
  const told = (await hpcserve('status', 'lent')).stdout.replace(/\s+/g, ' ');
  expect(told).toContain('the first on a100, the others on nodes of tier scavenger');
  expect(first.units[0]).toMatchObject({ stages: [{ stage: 0 }, { stage: 1, node: second.job!.nodes }] });
  expect(await answer(() => preempt(second))).toBe(expected);
  expect(await attempts()).toBe(1);
  expect(await restarts(first)).toBe(0);
  await divided('lent');
  expect(await answer()).toBe(expected);
}, 300_000);
