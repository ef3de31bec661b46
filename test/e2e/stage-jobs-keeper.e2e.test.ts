/**
 * A pipeline over several jobs on a real Slurm cluster that the keeper gives more stages while it answers. Its devices
 * are declared as slow as they are emulated, so that what the keeper predicts is what happens; on a cluster of its own,
 * since those of other suites are not.
 */
import OpenAI from 'openai';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { UserHome } from '../cluster/user-home.ts';
import { eventually } from '../mesh/support.ts';

const slow = { bandwidth_gb_per_s: 0.15, tflops: { fp32: 0.3, fp16: 0.3, bf16: 0.3, fp8: 0.3, int8: 0.3 } };
// What prompts take, stages share: those of long prompts and short answers are faster if there are more of them.
const prompt = 'Why do queues grow? '.repeat(40);

let home: UserHome;
let client: OpenAI;

beforeAll(async () => {
  home = await UserHome.open({
    cluster: 'stage-jobs-keeper',
    site: (shipped) =>
      shipped
        .replace('name: test-cluster', 'name: stage-jobs-keeper')
        .replaceAll(
          /^( +)emulated: cpu$/gm,
          (_, at) => `${at}emulated: cpu\n${at}emulated_step_ms: 40\n${at}figures: ${JSON.stringify(slow)}`,
        ),
  });
  const { code, stderr } = await home.hpcserve(
    ...['model', 'synth', 'layers.gguf', '--preset', 'small-llama', '--seed', '1'],
  );
  expect(code, stderr).toBe(0);
}, 120_000);
afterAll(() => home?.close(), 120_000);
beforeEach(() => {
  home.explainFailure();
});

async function answer(): Promise<string> {
  const { choices } = await client.completions.create({
    model: 'cut',
    prompt,
    max_tokens: 4,
    temperature: 0,
  });
  return choices[0]!.text;
}

interface Status {
  deployments: {
    launches: {
      superseded: boolean;
      units: { state: string; stages?: { node: string }[] }[];
    }[];
  }[];
}

/** Nodes of its stages, once it serves with so many of them. */
const untilStages = (count: number, deadline_ms = 90_000): Promise<string[]> =>
  eventually(
    async () => {
      const { code, stdout, stderr } = await home.hpcserve('status', 'cut', '--json');
      expect(code, stderr).toBe(0);
      const { launches } = (JSON.parse(stdout) as Status).deployments[0]!;
      const units = launches.flatMap(({ superseded, units: own }) => (superseded ? [] : own));
      const stages = units.find(({ state }) => state === 'serving')?.stages ?? [];
      return stages.length === count ? stages.map(({ node }) => node) : undefined;
    },
    `${count} stages`,
    deadline_ms,
  );

/** Agents tell of their stages before the keeper has heard what came of its change. */
async function untilSaid(words: RegExp): Promise<void> {
  const said = async (): Promise<boolean> => words.test((await home.hpcserve('status', 'cut')).stdout);
  await eventually(async () => (await said()) || undefined, `status to say ${words}`, 30_000);
}

it('begins with the most stages over its two jobs, and has half as many once it is calm', async () => {
  const model = {
    name: 'cut',
    source: './layers.gguf',
    engine: 'native',
    parallel: { pipeline: { stages_min: 2, stages_max: 4 }, jobs: 2 },
    cpu_threads: 1,
    context_tokens: 1024,
    max_sequences: 4,
    batch_invariant: true,
    tier: 'scavenger',
    devices: { kind: 'gpu', node_kinds: ['scavenge-gh200'] },
  };
  const file = home.write('cut.yaml', { name: 'cut', models: [model], slurm: { extra: ['--exclusive'] } });
  const { code, stdout, stderr } = await home.hpcserve('deploy', '--yes', file, '--json', '--timeout', '90s');
  expect(code, stderr + stdout).toBe(0);
  const { url, key } = JSON.parse(stdout.trim().split('\n').at(-1)!) as { url: string; key: string };
  client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
  expect(new Set(await untilStages(4)).size).toBe(2);
  // Consolidations are held for a minute.
  expect(new Set(await untilStages(2, 120_000)).size).toBe(2);
  await untilSaid(/cut-0 went from 4 to 2 stages/);
}, 240_000);

it('gets them again as requests come, and no answer changes', async () => {
  const expected = await answer();
  let isEnough = false;
  const ask = async (): Promise<void> => {
    while (!isEnough) expect(await answer()).toBe(expected);
  };
  // Several times as many as are computed at once.
  const asking = Promise.all(Array.from({ length: 24 }, ask));
  const nodes = await untilStages(4).finally(() => {
    isEnough = true;
  });
  await asking;
  expect(new Set(nodes).size).toBe(2);
  await untilSaid(/cut-0 went from 2 to 4 stages/);
  expect(await answer()).toBe(expected);
}, 240_000);
