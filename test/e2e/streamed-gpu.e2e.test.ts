/** Layers of a streamed model that stay in what a plan leaves of a device: a real Slurm cluster, typed commands. */
import OpenAI from 'openai';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';
import { UserHome } from '../cluster/user-home.ts';

let home: UserHome;
let file: string;

beforeAll(async () => {
  home = await UserHome.open({ site: smallDevices, command_timeout_ms: 150_000 });
  const shape = '--embd 256 --heads 4 --heads-kv 2 --ff 1024 --layers 24 --vocab 2000'.split(' ');
  const argv = ['model', 'synth', 'deep.gguf', '--preset', 'tiny-llama', '--quantization', 'F16', ...shape];
  const made = await home.hpcserve(...argv);
  expect(made.code, made.stderr).toBe(0);
  const common = {
    source: './deep.gguf',
    engine: 'native',
    cpu_threads: 1,
    context_tokens: 512,
    max_sequences: 2,
    kernels: 'ggml',
    batch_invariant: false,
    devices: { node_kinds: ['small'] },
  };
  const models = [
    { name: 'lies', ...common },
    { name: 'streams', ...common, weights: 'streamed' },
  ];
  file = home.write('both.yaml', { name: 'both', models });
}, 120_000);
afterAll(() => home?.close());

/** Beside the margin of a model, some of its 46 MB have room there. */
function smallDevices(shipped: string): string {
  const device = { kind: 'gpu', model: 'A100-40GB', count: 2, memory_gb: 0.285, cores: 1, emulated: 'cpu' };
  const kind = {
    name: 'small',
    count: 1,
    partition: 'scavenge',
    tier: 'scavenger',
    devices: [device],
    cpus: 4,
    memory_gb: 15,
    max_time: '04:00:00',
  };
  return shipped.replace('node_kinds:\n', `node_kinds:\n  - ${JSON.stringify(kind)}\n`);
}

it('stay as the plan says, and answers are those of the resident model', async () => {
  const planned = await home.hpcserve('plan', file);
  expect(planned.code, planned.stderr + planned.stdout).toBe(0);
  expect(planned.stdout.replaceAll(/\s+/g, ' ')).toMatch(
    /of weights are streamed, but for [\d.]+ MiB that stay, .*layers of [\d.]+ MiB stay on A100-40GB, in memory that nothing else of the plan takes: a step brings [\d.]+ MiB/,
  );
  const deployed = await home.hpcserve('deploy', '--yes', file, '--json', '--timeout', '120s');
  expect(deployed.code, deployed.stderr + deployed.stdout).toBe(0);
  const { url, key } = JSON.parse(deployed.stdout.trim().split('\n').at(-1)!) as { url: string; key: string };
  const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
  const answer = async (model: string): Promise<string> => {
    const body = { model, prompt: 'Layers that stay', max_tokens: 24, temperature: 0 };
    const { choices } = await client.completions.create({ ...body, ...{ ignore_eos: true } });
    return choices[0]!.text;
  };
  // The second time the prompt is in both caches.
  for (let time = 0; time < 3; time++) {
    const expected = await answer('lies');
    expect(expected.length).toBeGreaterThan(10);
    expect(await answer('streams'), `time ${time}`).toBe(expected);
  }

  const { stdout } = await home.hpcserve('status', 'both');
  expect(stdout.replaceAll(/\s+/g, ' ')).toMatch(
    /weights in host memory: .*layers of [\d.]+ MiB stay there; a step brings [\d.]+ MiB/,
  );
  const { deployments } = JSON.parse((await home.hpcserve('status', 'both', '--json')).stdout);
  const units = deployments[0].launches.flatMap((launch: { units: object[] }) => launch.units);
  const told = (units as { model: string; streamed?: StreamedWeights }[]).find(
    ({ model }) => model === 'streams',
  )!.streamed!;
  const share = told.resident_bytes / (told.resident_bytes + told.step_bytes);
  expect(share).toBeGreaterThan(0.2);
  expect(share).toBeLessThan(0.8);
}, 240_000);
