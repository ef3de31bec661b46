/**
 * A pipeline over several jobs on a real Slurm cluster whose stages change while it serves: the answer goes on, and
 * jobs that take the place of those that end have the stages that it has by then. On a cluster of its own, since other
 * jobs take its nodes.
 */
import OpenAI from 'openai';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import type { CommandResult } from '../../slurm/command-runner.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { UserHome } from '../cluster/user-home.ts';
import { eventually } from '../mesh/support.ts';

let home: UserHome;
let cluster: Cluster;
let client: OpenAI;
/** What the whole model answers to each prompt. */
let expected: string[];
const prompts = Array.from({ length: 16 }, (_, index) => `Stage ${index} of a pipeline`);

beforeAll(async () => {
  home = await UserHome.open({
    cluster: 'stage-jobs-move',
    // A change of stages under sixteen answers takes seconds here, and a job that ends waits for it.
    shape: 'long-graces',
    site: (shipped) =>
      shipped
        .replace('name: test-cluster', 'name: stage-jobs-move')
        // Answers take seconds, so that changes meet them.
        .replaceAll(/^( +)emulated: cpu$/gm, '$1emulated: cpu\n$1emulated_step_ms: 40'),
  });
  ({ cluster } = home);
  const synth = ['model', 'synth', 'layers.gguf', '--preset', 'small-llama', '--seed', '1'];
  const { code, stderr } = await hpcserve(...synth);
  expect(code, stderr).toBe(0);
}, 120_000);
afterAll(() => home?.close(), 120_000);
beforeEach(() => {
  home.explainFailure();
});

const hpcserve = (...argv: string[]): Promise<CommandResult> => home.hpcserve(...argv);

async function deploy(name: string, parallel: object): Promise<void> {
  const model = {
    name: 'cut',
    source: './layers.gguf',
    engine: 'native',
    parallel,
    cpu_threads: 1,
    context_tokens: 1024,
    max_sequences: prompts.length,
    batch_invariant: true,
    tier: 'scavenger',
    devices: { kind: 'gpu', node_kinds: ['scavenge-gh200'] },
  };
  // Each job has a node for itself: where two share one, a device of it has no name of its own.
  const file = home.write(`${name}.yaml`, { name, models: [model], slurm: { extra: ['--exclusive'] } });
  const { code, stdout, stderr } = await hpcserve('deploy', '--yes', file, '--json', '--timeout', '90s');
  expect(code, stderr + stdout).toBe(0);
  const { url, key } = JSON.parse(stdout.trim().split('\n').at(-1)!) as { url: string; key: string };
  client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
}

interface Launch {
  job_id: string;
  superseded: boolean;
  job?: { state: string; nodes?: string };
  units: { state: string; stages?: { stage: number; node: string }[] }[];
}

/** The jobs that the pipeline is to consist of, the one that has the requests first. */
async function parts(): Promise<[Launch, Launch]> {
  const { code, stdout, stderr } = await hpcserve('status', 'cut', '--json');
  expect(code, stderr).toBe(0);
  const { launches } = (JSON.parse(stdout) as { deployments: { launches: Launch[] }[] }).deployments[0]!;
  return launches.filter(({ superseded }) => !superseded) as [Launch, Launch];
}

/** Resolves once it serves with so many stages on each of its nodes. */
const untilStages = (wanted: [number, number]): Promise<[Launch, Launch]> =>
  eventually(
    async () => {
      const launches = await parts();
      const stages = launches[0].units[0]?.stages ?? [];
      const isServed = launches[0].units[0]?.state === 'serving';
      const found = launches.map(({ job }) => stages.filter(({ node }) => node === job?.nodes).length);
      return isServed && found.join() === wanted.join() ? launches : undefined;
    },
    `stages on its two jobs: ${wanted.join()}`,
    60_000,
  );

/** A long greedy answer. @param begun called once, with its first words */
async function answer(prompt: string, begun: () => void): Promise<string> {
  const chunks = await client.completions.create({
    model: 'cut',
    prompt,
    max_tokens: 150,
    temperature: 0,
    stream: true,
    ...{ ignore_eos: true },
  });
  let text = '';
  for await (const { choices } of chunks) {
    if (text === '' && choices[0]?.text) begun();
    text += choices[0]?.text ?? '';
  }
  return text;
}

/** Long greedy answers to all prompts at a time. @param meanwhile once each of them has begun */
async function answers(meanwhile: () => Promise<void> = async () => undefined): Promise<string[]> {
  let running = 0;
  let start: () => void;
  const all = new Promise<void>((resolve) => {
    start = resolve;
  });
  const begun = (): void => {
    if (++running === prompts.length) start();
  };
  const told = Promise.all(prompts.map((prompt) => answer(prompt, begun)));
  // One that fails begins perhaps never.
  const [texts] = await Promise.all([told, Promise.race([all, told]).then(meanwhile)]);
  return texts;
}

async function move(stages: number): Promise<void> {
  const { code, stdout, stderr } = await hpcserve('move', 'cut', '--stages', String(stages));
  expect(code, stderr).toBe(0);
  expect(stdout).toMatch(new RegExp(`cut-0 has ${stages} stages: .* moved.*, no token for \\d+ ms`));
}

async function end({ job_id }: Launch): Promise<void> {
  const { code, stderr } = await cluster.runAs('user', ['scancel', job_id]);
  expect(code, stderr).toBe(0);
}

it('gets half the stages over its two jobs under sixteen answers, and as many again', async () => {
  await deploy('whole', {});
  expected = await answers();
  for (const text of expected) expect(text.length).toBeGreaterThan(150);
  const stopped = await hpcserve('stop', 'whole', '--yes');
  expect(stopped.code, stopped.stderr).toBe(0);

  await deploy('cut', { pipeline: { stages_min: 2, stages_max: 4 }, jobs: 2 });
  // Loaded side by side.
  await untilStages([2, 2]);
  expect(await answers(() => move(2))).toEqual(expected);
  await untilStages([1, 1]);
  expect(await answers(() => move(4))).toEqual(expected);
  await untilStages([2, 2]);
  const { stdout } = await hpcserve('status', 'cut');
  expect(stdout).toMatch(/stages of cut-0: (operators \d+-\d+ on gpu [01] of \S+ ?){4}/);
  expect(stdout).not.toContain('not as planned');
}, 240_000);

it('leaves a job that is told to end, and has its stages again in the jobs that take the place of its own', async () => {
  const [first, second] = await parts();
  expect(await answers(() => end(second))).toEqual(expected);
  await untilStages([2, 0]);
  const divide = async (): Promise<true | undefined> =>
    (await hpcserve('move', 'cut', '--stages', '4')).code === 0 || undefined;
  await eventually(divide, 'the job in its place to take stages', 60_000);
  const [, second2] = await untilStages([2, 2]);
  expect(second2.job_id).not.toBe(second.job_id);
  expect(await answers(() => end(first))).toEqual(expected);
  const [first3, second3] = await untilStages([2, 2]);
  expect(first3.job_id).not.toBe(first.job_id);
  expect(second3.job_id).toBe(second2.job_id);
  expect(await answers(() => move(2))).toEqual(expected);
}, 240_000);

it('comes back with one layout or the other where a job ends in the middle of a change', async () => {
  const [, second] = await parts();
  const change = async (): Promise<void> => {
    const moving = hpcserve('move', 'cut', '--stages', '4');
    await end(second);
    const { code, stderr } = await moving;
    if (code !== 0) expect(stderr).toMatch(/E_REFACTOR|E_STAGE_LOST|E_STAGES_IMPOSSIBLE|E_GATEWAY_ANSWER/);
  };
  expect(await answers(change)).toEqual(expected);
  expect(await answers()).toEqual(expected);
}, 240_000);
