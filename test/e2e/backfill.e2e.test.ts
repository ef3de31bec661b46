/**
 * Replicas on idle nodes of a real Slurm cluster: they come, a job of higher priority takes their nodes while clients
 * stream from them, no answer changes, and they come back. On a cluster of its own, since the job takes whole node
 * kinds.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import OpenAI, { type APIPromise } from 'openai';
import type { Stream } from 'openai/streaming';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { SharedDevice } from '../../control/gateway/admin.ts';
import type { ScavengerReport } from '../../control/scavenger/report.ts';
import type { ScavengerRound } from '../../control/scavenger/scavenger.ts';
import type { CommandResult } from '../../slurm/command-runner.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { scavenge_grace_s } from '../cluster/layout.ts';
import { hpcserveProgram, UserHome } from '../cluster/user-home.ts';

let home: UserHome;
let cluster: Cluster;
let folder: string;
let door: { url: string; key: string };

beforeAll(async () => {
  home = await UserHome.open({
    cluster: 'scavenging',
    site: (shipped) =>
      shipped
        .replace('name: test-cluster', 'name: idle')
        // Answers take seconds, so that a preemption meets them.
        .replaceAll(/^( +)emulated: cpu$/gm, '$1emulated: cpu\n$1emulated_step_ms: 60'),
  });
  ({ cluster, folder } = home);
});
afterAll(() => home?.close());
beforeEach(() => {
  home.explainFailure();
});

const hpcserve = (...argv: string[]): Promise<CommandResult> => home.hpcserve(...argv);

async function json<T>(...argv: string[]): Promise<T> {
  const { code, stdout, stderr } = await hpcserve(...argv, '--json');
  expect(code, stderr + stdout).toBe(0);
  return JSON.parse(stdout.trim().split('\n').at(-1)!) as T;
}

interface Status {
  phase: string;
  replicas_wanted: number;
  launches: {
    launch_id: string;
    job_id: string;
    scavenged: boolean;
    superseded: boolean;
    job?: { phase: string };
    units: { state: string }[];
  }[];
}
const status = async (): Promise<Status> =>
  (await json<{ deployments: Status[] }>('status', 'toy')).deployments[0]!;
const onIdleNodes = async (): Promise<Status['launches']> =>
  (await status()).launches.filter(({ scavenged, superseded }) => scavenged && !superseded);
const servingOnIdleNodes = async (): Promise<number> =>
  (await onIdleNodes()).filter(({ units }) => units.every(({ state }) => state === 'serving')).length;

/** Requests that run on replicas of idle nodes now, as the gateway sees it. */
async function runningOnIdleNodes(): Promise<number> {
  const answer = await fetch(new URL('/mesh/table?tier=scavenger', door.url), {
    headers: { authorization: `Bearer ${door.key}` },
    signal: AbortSignal.timeout(5_000),
  });
  const { sessions } = (await answer.json()) as { sessions: { models: { running: number }[] }[] };
  return sessions.flatMap(({ models }) => models).reduce((sum, { running }) => sum + running, 0);
}

/** Answers that replicas went on with, whose KV had come from others, and tokens that they did not compute again. */
async function cameWithKv(): Promise<{ continued: number; continued_tokens: number }> {
  const { devices } = await json<{ devices: SharedDevice[] }>('top', '--once');
  const sum = { continued: 0, continued_tokens: 0 };
  for (const { report } of devices) {
    sum.continued += report?.moves?.continued ?? 0;
    sum.continued_tokens += report?.moves?.continued_tokens ?? 0;
  }
  return sum;
}

async function stream(seed: number): Promise<string> {
  const client = new OpenAI({ baseURL: door.url, apiKey: door.key, maxRetries: 0 });
  let text: string | undefined;
  const read = async (): Promise<string> => {
    const chunks = await client.chat.completions.create({
      model: 'toy',
      seed,
      stream: true,
      // One of them greedy.
      temperature: seed === 1 ? 0 : 0.8,
      // Twelve seconds at the least: Slurm takes some of them until it preempts.
      max_tokens: 200,
      messages: [{ role: 'user', content: `Tell me story ${seed}.` }],
      ...{ ignore_eos: true },
    });
    text = '';
    for await (const { choices } of chunks) text += choices[0]?.delta.content ?? '';
    return text;
  };
  const late = async (): Promise<never> => {
    await delay(30_000, undefined, { ref: false });
    const stands = text === undefined ? 'has not begun' : `has come to its character ${text.length}`;
    throw new Error(`after 30 s story ${seed} ${stands}`);
  };
  return Promise.race([read(), late()]);
}

/** Of each replica. */
const max_sequences = 8;

/** A stream that nobody but replicas of a tier may serve. */
function onTier(tier: 'stable' | 'scavenger', max_tokens: number): APIPromise<Stream<OpenAI.Completion>> {
  const client = new OpenAI({ baseURL: door.url, apiKey: door.key, maxRetries: 0 });
  const body = {
    model: 'toy',
    prompt: 'Idle nodes',
    max_tokens,
    stream: true,
    ...{ ignore_eos: true },
  } as const;
  return client.completions.create(body, { headers: { 'x-hpcserve-qos': `tier=${tier}` } });
}

describe('replicas on idle nodes', () => {
  it('are submitted for idle holes, as many as the model wants, and none twice', async () => {
    const model = {
      name: 'toy',
      source: './toy.gguf',
      cpu_threads: 1,
      context_tokens: 512,
      // Room for all streams at the one that stays, whoever of the three has begun which.
      max_sequences,
      batch_invariant: true,
      tier: 'stable',
      devices: { kind: 'gpu', node_kinds: ['a100', 'scavenge-gh200'] },
      scavenger: { replicas: 2 },
    };
    const file = home.write('toy.yaml', { name: 'toy', models: [model] });
    door = await json('deploy', '--yes', file, '--timeout', '60s');
    const first = await json<ScavengerRound>('backfill', '--once');
    expect(first).toMatchObject({ submitted: 2, replicas: 2, held_back: [] });
    const second = await json<ScavengerRound>('backfill', '--once');
    expect(second).toMatchObject({ submitted: 0, replicas: 2 });
    const [launch] = await onIdleNodes();
    const script = readFileSync(
      join(folder, '.hpcserve/idle/deployments/toy/launches', launch!.launch_id, 'job.sh'),
      'utf8',
    );
    // Two thirds of the cluster's KillWait of 3 s, which is shorter than the GraceTime of the partition.
    const spec = join(folder, '.hpcserve/idle/deployments/toy/launches', launch!.launch_id, 'launch.json');
    expect(JSON.parse(readFileSync(spec, 'utf8'))).toMatchObject({ drain_s: 2, leaves_when_warned: true });
    for (const option of [
      '--time=04:00:00',
      '--time-min=00:04:00',
      '--partition=scavenge',
      '--requeue',
      '--open-mode=append',
      '--signal=B:USR1@30',
      `--comment=hpcserve:${launch!.launch_id}`,
    ])
      expect(script).toContain(`#SBATCH ${option}\n`);
    await expect.poll(servingOnIdleNodes, { timeout: 30_000 }).toBe(2);
    // The deployment itself has one replica, and is whole with it.
    expect(await status()).toMatchObject({ phase: 'serving', replicas_wanted: 1 });
  }, 120_000);

  it('leave for a job of higher priority within the grace time, and no stream notices', async () => {
    const seeds = [1, 2, 3, 4, 5, 6];
    const expected = await Promise.all(seeds.map(stream));
    expect(new Set(expected).size).toBe(seeds.length);
    // Somebody has looked while they served.
    await json('backfill', '--once');
    const before = (await onIdleNodes()).map(({ job_id }) => job_id);
    // The replica that stays is full meanwhile, so that all of them begin on idle nodes.
    const others = await Promise.all(Array.from({ length: max_sequences }, () => onTier('stable', 400)));
    const streams = Promise.all(seeds.map(stream));
    await expect.poll(runningOnIdleNodes, { timeout: 10_000, interval: 50 }).toBe(seeds.length);
    for (const other of others) other.controller.abort();
    const urgent = await cluster.runAs('user', [
      'sbatch',
      '--parsable',
      '--partition=gh200',
      '--nodes=2',
      '--gres=gpu:gh200:4',
      '--output=/dev/null',
      '--wrap=sleep 8',
    ]);
    expect(urgent.code, urgent.stderr).toBe(0);
    const job_id = urgent.stdout.trim();
    const facts = async (): Promise<Map<string, string>> => {
      const { stdout } = await cluster.runAs('user', ['scontrol', '--oneliner', 'show', 'job', job_id]);
      return new Map(stdout.split(' ').map((pair) => pair.split('=', 2) as [string, string]));
    };
    await expect.poll(async () => (await facts()).get('JobState'), { timeout: 30_000 }).toBe('RUNNING');
    const job = await facts();
    const waited_s = (Date.parse(job.get('StartTime')!) - Date.parse(job.get('SubmitTime')!)) / 1000;
    // Slurm's times are whole seconds, and its scheduler takes its turns.
    expect(waited_s).toBeLessThanOrEqual(scavenge_grace_s + 2);
    expect(await streams).toEqual(expected);
    // A worker that computes answers what it has to report between two iterations: one question may come too early.
    await expect.poll(async () => (await cameWithKv()).continued, { timeout: 10_000 }).toBeGreaterThan(0);
    const { continued, continued_tokens } = await cameWithKv();
    // Prompts and what had been said, not only the last tokens of each.
    expect(continued_tokens).toBeGreaterThan(10 * continued);
    const requeued = await cluster.runAs('user', ['squeue', '--noheader', '--format=%i', '--states=PD']);
    expect(before.filter((id) => requeued.stdout.split('\n').includes(id))).not.toEqual([]);
  }, 90_000);

  it('come back when the nodes are idle again, and say what was gained', async () => {
    await expect
      .poll(
        async () => {
          await json<ScavengerRound>('backfill', '--once');
          return servingOnIdleNodes();
        },
        { timeout: 60_000, interval: 1000 },
      )
      .toBeGreaterThan(0);
    // An answer counts where it ended, so that one ends there.
    for await (const _ of await onTier('scavenger', 8));
    const report = await json<ScavengerReport>('backfill', '--report');
    expect(report.all.preempted).toBe(2);
    expect(report.all.completion_tokens).toBeGreaterThan(0);
    expect(report.all.serving_device_s).toBeGreaterThan(1);
    expect(report.idle_device_s).toBeGreaterThan(report.all.serving_device_s);
    expect(report.node_kinds).toMatchObject([{ node_kind: 'scavenge-gh200', preemptions: 2 }]);
    expect((await hpcserve('stop', 'toy')).code).toBe(0);
    expect((await cluster.runAs('user', ['squeue', '--noheader'])).stdout).toBe('');
  }, 120_000);

  it('are refused where nothing is preemptible', async () => {
    const refused = await cluster.runAs(
      'user',
      [...hpcserveProgram, 'backfill', '--once', '--site', 'local'],
      { cwd: folder, env: { HOME: folder } },
    );
    expect(refused.code).toBe(5);
    expect(refused.stderr).toMatch(/no nodes of tier scavenger[\s\S]*tier: scavenger/);
  });
});
