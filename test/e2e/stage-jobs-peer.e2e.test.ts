/**
 * The job of a stage is killed in mid-answer, and the stage starts on another node, whose disk is slow: its weights
 * come from the memory of a node that has them, the stages which stayed load nothing, and the answer goes on. On a
 * cluster of its own, since other jobs take its nodes.
 */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import OpenAI from 'openai';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import type { WeightSources } from '../../spec/weight-sources.ts';
import { forgetFile } from '../agent/memory/page-cache.ts';
import { SlowReads } from '../agent/memory/peers/slow-reads.ts';
import { UserHome } from '../cluster/user-home.ts';
import { greedyAnswer } from './greedy-answer.ts';

/** Two threads have a group of 8 MiB each to read, and a peer brings all others meanwhile. */
const disk_bytes_per_s = 2e6;
const lenders = ['gh1', 'gh2'];

interface Launch {
  launch_id: string;
  job_id: string;
  superseded: boolean;
  job?: { state: string; nodes?: string };
  units: {
    state: string;
    stages?: { stage: number; node: string; begin: number; end: number; loaded?: WeightSources }[];
  }[];
}

const probe = SlowReads.from(fileURLToPath(import.meta.url), disk_bytes_per_s);
const suite = probe ? describe : describe.skip;
probe?.[Symbol.dispose]();

suite('a stage whose job is killed', () => {
  let home: UserHome;
  let client: OpenAI;
  let file: string;
  let slow: SlowReads | undefined;
  /** What nobody disturbed. */
  let expected: string;

  beforeAll(async () => {
    home = await UserHome.open({
      cluster: 'stage-jobs-peer',
      site: (shipped) =>
        shipped
          .replace('name: test-cluster', 'name: stage-jobs-peer')
          // Answers take seconds, so that the loss meets one.
          .replaceAll(/^( +)emulated: cpu$/gm, '$1emulated: cpu\n$1emulated_step_ms: 40'),
    });
    // Each stage has more than a node asks its peers for at least. F32 lies in a pool as in its file.
    const shape = ['--preset', 'small-llama', '--layers', '14', '--quantization', 'F32'];
    const { code, stderr } = await home.hpcserve('model', 'synth', 'layers.gguf', ...shape);
    expect(code, stderr).toBe(0);
    file = join(home.folder, 'layers.gguf');
    await nameTensors();
  }, 120_000);
  afterAll(async () => {
    await home?.close();
    slow?.[Symbol.dispose]();
  }, 120_000);
  beforeEach(() => {
    home.explainFailure();
  });

  async function deploy(name: string, more: object): Promise<void> {
    const model = {
      name,
      source: './layers.gguf',
      engine: 'native',
      cpu_threads: 1,
      context_tokens: 512,
      max_sequences: 2,
      batch_invariant: true,
      devices: { kind: 'gpu', node_kinds: ['a100'] },
      ...more,
    };
    const path = home.write(`${name}.yaml`, { name, models: [model] });
    const { code, stdout, stderr } = await home.hpcserve(
      'deploy',
      '--yes',
      path,
      '--json',
      '--timeout',
      '90s',
    );
    expect(code, stderr + stdout).toBe(0);
    const { url, key } = JSON.parse(stdout.trim().split('\n').at(-1)!) as { url: string; key: string };
    client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
  }

  /**
   * Tensors are asked for by what they hold. A worker finds that out in a thread that gives way to all else, which on a
   * busy machine has no end; here it is found out first, as by a worker that was there before.
   */
  async function nameTensors(): Promise<void> {
    const module = (name: string): string => JSON.stringify(join(packageRoot, 'dist/agent/memory', name));
    const hashes = JSON.stringify(join(home.folder, '.cache/hpcserve/tensors'));
    const lines = [
      `import { ContentHashCache } from ${module('content-hashes.js')};`,
      `import { learnContents } from ${module('learn-contents.js')};`,
      `await learnContents(new ContentHashCache(${hashes}), ${JSON.stringify(file)});`,
    ];
    const program = join(home.folder, 'name-tensors.mjs');
    writeFileSync(program, lines.join('\n'), { mode: 0o644 });
    const { code, stderr } = await home.cluster.runAs('user', [process.execPath, program]);
    expect(code, stderr).toBe(0);
  }

  async function jobsOf(deployment: string): Promise<[Launch, Launch]> {
    const { code, stdout, stderr } = await home.hpcserve('status', deployment, '--json');
    expect(code, stderr).toBe(0);
    const { launches } = (JSON.parse(stdout) as { deployments: { launches: Launch[] }[] }).deployments[0]!;
    return launches.filter(({ superseded }) => !superseded) as [Launch, Launch];
  }

  /** Has Slurm begin nothing there any more. */
  async function close(node: string): Promise<void> {
    const argv = ['scontrol', 'update', `nodename=${node}`, 'state=drain', 'reason=test'];
    const { code, stderr } = await home.cluster.runAs('root', argv);
    expect(code, stderr).toBe(0);
  }

  const answer = (model: string, begun?: () => Promise<void>): Promise<string> =>
    greedyAnswer(client, { model, max_tokens: 60 }, begun);

  /** The worker of a stage, and what it has read from storage so far. */
  function workerOf(
    deployment: string,
    { launch_id }: Launch,
  ): { session_id: string; pid: number; read: number } {
    const launches = `.hpcserve/stage-jobs-peer/deployments/${deployment}/launches`;
    const folder = join(home.folder, launches, launch_id);
    const [name] = readdirSync(folder).filter((each) => /^[^.].*\.state\.json$/.test(each));
    const { sessions } = JSON.parse(readFileSync(join(folder, name!), 'utf8')) as AgentState;
    const { session_id, pid } = sessions.find(({ stages }) => stages !== undefined)!;
    const io = readFileSync(`/proc/${pid}/io`, 'utf8');
    return { session_id, pid: pid!, read: Number(/^read_bytes: (\d+)$/m.exec(io)![1]) };
  }

  it('answers like a second pipeline of the same file, whose stages have a node of their own', async () => {
    await deploy('twin', { parallel: { pipeline: 2, jobs: 2 } });
    expected = await answer('twin');
    expect(expected.length).toBeGreaterThan(60);
    await deploy('cut', { parallel: { pipeline: 2, jobs: 2, lenders: 'scavenger' } });
    expect(await answer('cut')).toBe(expected);
  }, 200_000);

  it('starts elsewhere from a peer’s memory: those that stay load nothing, and its answer goes on', async () => {
    const [first, second] = await jobsOf('cut');
    const lost = second.job!.nodes!;
    const other = lenders.find((node) => node !== lost)!;
    await close(lost);
    slow = SlowReads.from(file, disk_bytes_per_s)!;
    const { pid } = home.cluster.state.daemons.find(({ name }) => name === `slurmd-${other}`)!;
    writeFileSync(join(slow.folder, 'cgroup.procs'), String(pid));
    // From here on no page cache has it: what a peer sends lies in the memory of its devices.
    await forgetFile(file);
    const stayed = workerOf('cut', first);
    const [, twin] = await jobsOf('twin');
    const peer = workerOf('twin', twin);
    // As a node fails: nothing of it ends in order.
    const kill = async (): Promise<void> => {
      for (const argv of [
        ['pkill', '-KILL', '-f', `/${second.launch_id}/`],
        ['scancel', second.job_id],
      ]) {
        const { code, stderr } = await home.cluster.runAs('user', argv);
        expect(code, stderr).toBe(0);
      }
    };
    expect(await answer('cut', kill)).toBe(expected);

    const [first2, second2] = await jobsOf('cut');
    expect([first2.job_id, second2.job!.nodes]).toEqual([first.job_id, other]);
    const [head, tail] = first2.units[0]!.stages!;
    expect([head!.node, tail!.node]).toEqual([first.job!.nodes, other]);
    const loaded = tail!.loaded!;
    expect(loaded).toMatchObject({ reused_bytes: 0 });
    expect(loaded.loaded_bytes).toBeGreaterThan(95e6);
    // The threads of the file had the embedding, the first group of its tensors, and perhaps a second one.
    expect(loaded.from_nodes[twin.job!.nodes!]).toBeGreaterThan(0.7 * loaded.loaded_bytes);
    expect(workerOf('twin', twin).read - peer.read).toBeLessThan(1e6);
    // The first stage waited with what it had.
    expect(workerOf('cut', first2)).toMatchObject({ session_id: stayed.session_id, pid: stayed.pid });
    expect(head!.loaded).toMatchObject({ loaded_bytes: 0, from_nodes: {} });
    expect(head!.loaded!.reused_bytes).toBeGreaterThan(95e6);
    const told = (await home.hpcserve('status', 'cut')).stdout.replace(/\s+/g, ' ');
    expect(told).toMatch(
      new RegExp(
        `stage 0 on \\S+: 100 MiB were there; stage 1 on ${other}: 100 MiB in .* from the memory of a\\d`,
      ),
    );
  }, 200_000);
});
