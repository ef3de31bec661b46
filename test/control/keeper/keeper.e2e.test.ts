/** Deployments that outlive their jobs, on a real Slurm cluster: time limits, cancelled jobs, killed agents. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { CommandResult } from '../../../slurm/command-runner.ts';
import type { AgentState } from '../../../spec/agent-state.ts';
import { launchFiles } from '../../../spec/state-layout.ts';
import type { Cluster } from '../../cluster/cluster.ts';
import { UserHome } from '../../cluster/user-home.ts';

let home: UserHome;
let cluster: Cluster;
let folder: string;

beforeAll(async () => {
  home = await UserHome.open({
    site: (shipped) =>
      shipped
        .replace('name: test-cluster', 'name: kept')
        .replace('signal_s: 30', 'signal_s: 10')
        .concat('keeper:\n  move_after_s: 2\n'),
  });
  ({ cluster, folder } = home);
});
afterAll(() => home?.close());

const hpcserve = (...argv: string[]): Promise<CommandResult> => home.hpcserve(...argv);

function deployment(name: string, slurm: Record<string, string> = {}): string {
  const model = {
    name,
    source: './toy.gguf',
    cpu_threads: 1,
    context_tokens: 512,
    max_sequences: 4,
    batch_invariant: true,
    devices: { kind: 'gpu' },
    tier: 'stable',
  };
  return home.write(`${name}.yaml`, { name, models: [model], slurm });
}

async function deploy(file: string): Promise<OpenAI> {
  const { code, stdout, stderr } = await hpcserve('deploy', '--yes', file, '--json', '--timeout', '60s');
  expect(code, stderr + stdout).toBe(0);
  const { url, key } = JSON.parse(stdout.trim().split('\n').at(-1)!) as { url: string; key: string };
  return new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
}

interface Status {
  phase: string;
  launches: {
    launch_id: string;
    job_id: string;
    node_kind: string;
    job: { phase: string; nodes?: string };
  }[];
}
async function status(name: string): Promise<Status> {
  return JSON.parse((await hpcserve('status', name, '--json')).stdout).deployments[0] as Status;
}

/** What the keeper did, by its log. */
const log = (): string => readFileSync(join(folder, '.hpcserve/kept/keeper/keeper.log'), 'utf8');
const kept = (deployment: string): { do: string; because: string }[] =>
  log()
    .split('\n')
    .filter((line) => line.includes('"kind":"kept"'))
    .map((line) => JSON.parse(line))
    .filter((event) => event.deployment === deployment);

/** A job of somebody that takes all of a partition. */
async function submitHolder(partition: string): Promise<string> {
  const what = [`--partition=${partition}`, '--nodes=2', '--exclusive', '--time=10', '--output=/dev/null'];
  const { stdout } = await cluster.runAs('user', ['sbatch', '--parsable', ...what, '--wrap=sleep 600']);
  return stdout.trim();
}

/** The process of the agent itself: srun, which has its command line too, is another. */
function agentOf(deployment: string, { launch_id, job }: Status['launches'][number]): number {
  const launch = join(folder, '.hpcserve/kept/deployments', deployment, 'launches', launch_id);
  const said = readFileSync(join(launch, launchFiles.agentState(job.nodes!)), 'utf8');
  return (JSON.parse(said) as AgentState).pid;
}

const jobState = async (job_id: string): Promise<string> =>
  (await cluster.runAs('user', ['squeue', '--noheader', '--format=%t', `--jobs=${job_id}`])).stdout.trim();

const text = async (client: OpenAI, model: string, seed: number): Promise<string> => {
  const answer = await client.chat.completions.create({
    model,
    seed,
    messages: [{ role: 'user', content: 'Go on.' }],
    max_tokens: 24,
  });
  return answer.choices[0]!.message.content ?? '';
};

/** Of a replica that has just begun to serve: that is written down a moment before the gateway has found it. */
async function answer(client: OpenAI, model: string, seed: number): Promise<string> {
  const listed = async (): Promise<string[]> => (await client.models.list()).data.map(({ id }) => id);
  await expect.poll(listed, { timeout: 20_000 }).toContain(model);
  return text(client, model, seed);
}

describe('the keeper', () => {
  // Side by side: a time limit of Slurm is a minute at least.
  it.concurrent('submits a successor before the time limit, and no request fails when the first job ends', async () => {
    const client = await deploy(deployment('limited', { time_limit: '00:01:00' }));
    const [first] = (await status('limited')).launches;
    const expected = await text(client, 'limited', 1);
    // Until the job that answered first is over, and two answers beyond.
    let after = 0;
    for (let turn = 0; after < 2; turn++) {
      expect(await text(client, 'limited', 1), `answer ${turn}`).toBe(expected);
      await sleep(250);
      const { stdout } = await cluster.runAs('user', ['squeue', '--noheader', '--format=%i']);
      if (!stdout.split('\n').includes(first!.job_id)) after++;
    }
    expect(kept('limited')[0]).toMatchObject({
      do: 'renew',
      because: expect.stringMatching(/time limit is \d+ s away/),
    });
    const now = await status('limited');
    expect(now.phase).toBe('serving');
    expect((await hpcserve('stop', 'limited')).code).toBe(0);
  }, 150_000);

  it.concurrent('replaces a job that was cancelled and one whose agent was killed', async () => {
    const client = await deploy(deployment('killed'));
    const expected = await text(client, 'killed', 2);
    const jobs = new Set<string>();
    for (const way of ['scancel', 'SIGKILL'] as const) {
      const { launches } = await status('killed');
      const running = launches.find(({ job }) => job?.phase === 'running')!;
      jobs.add(running.job_id);
      if (way === 'scancel') await cluster.runAs('user', ['scancel', running.job_id]);
      else process.kill(agentOf('killed', running), 'SIGKILL');
      await expect
        .poll(async () => kept('killed').filter((event) => event.do === 'replace').length, {
          timeout: 20_000,
        })
        .toBe(jobs.size);
      await expect.poll(async () => (await status('killed')).phase, { timeout: 30_000 }).toBe('serving');
      expect(await answer(client, 'killed', 2)).toBe(expected);
    }
    expect((await hpcserve('stop', 'killed')).code).toBe(0);
  }, 120_000);

  it('starts a gateway again that was killed, at the same address, and not one that was stopped', async () => {
    const client = await deploy(deployment('door'));
    const expected = await text(client, 'door', 3);
    const gateway = join(folder, '.hpcserve/kept/gateway');
    const { pid } = JSON.parse(readFileSync(join(gateway, 'process.json'), 'utf8')) as { pid: number };
    // The gateway, and the holder of its port that would start it again: both are of one group.
    process.kill(-pid, 'SIGKILL');
    expect(await answer(client, 'door', 3)).toBe(expected);
    // The gateway may answer before the keeper has said that it is there.
    await expect.poll(log, { timeout: 30_000 }).toMatch(/gateway_up/);
    expect((await hpcserve('stop', '--gateway')).code).toBe(0);
    const lines = log().split('\n').length;
    // Two rounds of the keeper.
    await sleep(3_000);
    expect(
      log()
        .split('\n')
        .slice(lines - 1)
        .join(''),
    ).not.toMatch(/gateway_up/);
  });

  it('gives a job that waits nodes of another kind, as soon as such are free', async () => {
    // Nodes that others are to take whole.
    expect((await hpcserve('stop', '--all', '--yes')).code).toBe(0);
    const ordinary: { partition: string; job_id: string }[] = [];
    try {
      for (const partition of ['gh200', 'a100'])
        ordinary.push({ partition, job_id: await submitHolder(partition) });
      for (const { job_id } of ordinary)
        await expect.poll(() => jobState(job_id), { timeout: 60_000 }).toBe('R');
      const deployed = await hpcserve('deploy', '--yes', deployment('waiting'), '--detach');
      expect(deployed.code, deployed.stderr).toBe(0);
      const [first] = (await status('waiting')).launches;
      const free = ordinary.find(({ partition }) => partition !== first!.node_kind)!;
      await cluster.runAs('user', ['scancel', free.job_id]);
      const there = async (): Promise<object> => {
        const { phase, launches } = await status('waiting');
        return { phase, node_kinds: launches.map(({ node_kind }) => node_kind) };
      };
      // The new job may serve before the keeper has heard that the old one has left the queue.
      await expect
        .poll(there, { timeout: 60_000 })
        .toEqual({ phase: 'serving', node_kinds: [free.partition] });
      const because = expect.stringMatching(new RegExp(`waited for \\d+ s; ${free.partition} is free`));
      expect(kept('waiting')).toMatchObject([{ do: 'move', because }]);
      const left = await cluster.runAs('user', ['squeue', '--noheader', '--format=%i']);
      expect(left.stdout.split('\n')).not.toContain(first!.job_id);
    } finally {
      await cluster.runAs('user', ['scancel', ...ordinary.map(({ job_id }) => job_id)]);
    }
  }, 180_000);

  it('is there once, and ends with the last deployment', async () => {
    const second = await hpcserve('keep', '--once');
    expect(second.code).toBe(10);
    expect(second.stderr).toMatch(/kept already[\s\S]*hpcserve keep/);
    expect((await hpcserve('stop', '--all', '--yes')).code).toBe(0);
    const ps = await cluster.runAs('user', ['ps', '-u', cluster.user.name, '-o', 'args=']);
    // Others may run tests as the same user.
    const ours = ps.stdout.split('\n').filter((line) => line.includes(folder));
    expect(ours.filter((line) => line.includes('keeper/main.js'))).toEqual([]);
  });
});
