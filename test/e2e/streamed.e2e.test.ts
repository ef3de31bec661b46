/** Models whose weights stay in host memory, from model.yaml to answers: real agents and workers, typed commands. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';
import { type Home, temporaryHome } from '../cli/support.ts';

const layers = 24;
let home: Home;
let client: OpenAI;

beforeAll(async () => {
  home = temporaryHome();
  const shape = `--embd 256 --heads 4 --heads-kv 2 --ff 1024 --layers ${layers} --vocab 2000`.split(' ');
  const argv = ['model', 'synth', 'deep.gguf', '--preset', 'tiny-llama', '--quantization', 'F16', ...shape];
  const made = await home.run(argv);
  expect(made.code, made.stderr).toBe(0);
  const common = {
    source: './deep.gguf',
    engine: 'native',
    cpu_threads: 1,
    context_tokens: 512,
    max_sequences: 2,
    // One that is streamed cannot choose it for all of its layers.
    batch_invariant: false,
  };
  const models = [
    { name: 'lies', ...common },
    { name: 'streams', ...common, weights: 'streamed' },
    { name: 'too', ...common, weights: 'streamed' },
    { name: 'gives-way', ...common, weights: 'reuse' },
  ];
  // JSON is YAML.
  writeFileSync(join(home.folder, 'model.yaml'), JSON.stringify({ name: 'both', models }));
}, 60_000);
afterAll(async () => {
  await home.run(['stop', '--all', '--yes']);
  home.dispose();
});

async function answer(model: string): Promise<string> {
  const { choices } = await client.completions.create({
    model,
    prompt: 'Weights that are',
    max_tokens: 24,
    temperature: 0,
    ...{ ignore_eos: true },
  });
  return choices[0]!.text;
}

it('is planned with an arena in place of its weights', async () => {
  const { code, stdout, stderr } = await home.run(['plan', 'model.yaml', '--json']);
  expect(code, stderr).toBe(0);
  const plan = JSON.parse(stdout) as {
    models: { model: string; arena_bytes?: number; weight_bytes: number }[];
  };
  const [lies, streams] = ['lies', 'streams'].map((name) => plan.models.find(({ model }) => model === name)!);
  expect(lies!.arena_bytes).toBeUndefined();
  // A few of its layers.
  expect(streams!.arena_bytes).toBeGreaterThan(streams!.weight_bytes / layers);
  expect(streams!.arena_bytes).toBeLessThan(streams!.weight_bytes / 4);
  const text = (await home.run(['plan', 'model.yaml'])).stdout.replaceAll(/\s+/g, ' ');
  expect(text).toMatch(/memory of a replica: [\d.]+ MiB through which [\d.]+ MiB of weights are streamed/);
});

it('answers as one whose weights lie on the device, and in turn with another', async () => {
  const deploy = ['deploy', '--yes', 'model.yaml', '--json', '--timeout', '60s'];
  const { code, stdout, stderr } = await home.run(deploy);
  expect(code, stderr).toBe(0);
  const { url, key } = JSON.parse(stdout.trim().split('\n').at(-1)!) as { url: string; key: string };
  client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
  const expected = await answer('lies');
  expect(expected.length).toBeGreaterThan(10);
  for (const model of ['streams', 'too', 'gives-way', 'streams'])
    expect(await answer(model), model).toBe(expected);
  const both = await Promise.all([answer('streams'), answer('too')]);
  expect(both).toEqual([expected, expected]);
}, 120_000);

it('is shown as such', async () => {
  const { stdout } = await home.run(['status', 'both']);
  expect(stdout.replaceAll(/\s+/g, ' ')).toMatch(
    /weights in host memory: .*streamed through [\d.]+ MiB of the device, which all such models there share/,
  );
  const { deployments } = JSON.parse((await home.run(['status', 'both', '--json'])).stdout);
  const units = deployments[0].launches.flatMap((launch: { units: object[] }) => launch.units);
  const streamed = units.map((unit: { model: string; streamed?: StreamedWeights }) => [
    unit.model,
    unit.streamed !== undefined,
  ]);
  expect(Object.fromEntries(streamed)).toEqual({
    lies: false,
    streams: true,
    too: true,
    'gives-way': false,
  });
});

it('is planned again with the rate that its link was measured at', async () => {
  const { code, stdout, stderr } = await home.run(['plan', 'model.yaml']);
  expect(code, stderr).toBe(0);
  expect(stdout.replaceAll(/\s+/g, ' ')).toMatch(
    /weights: streamed: .* ms at least \(copies in its memory, [\d.]+ GB\/s measured\)/,
  );
});

it('is left to the plan, which says where weights lie and why', async () => {
  const model = { name: 'open', source: './deep.gguf', engine: 'native', weights: 'auto', cpu_threads: 1 };
  writeFileSync(join(home.folder, 'open.yaml'), JSON.stringify({ name: 'open', models: [model] }));
  const { code, stdout, stderr } = await home.run(['plan', 'open.yaml']);
  expect(code, stderr).toBe(0);
  expect(stdout.replaceAll(/\s+/g, ' ')).toMatch(/weights: auto: resident: the devices hold all models so/);
});

it('is refused by name where another engine is to compute it', async () => {
  const model = { name: 'm', source: './deep.gguf', engine: 'llama.cpp', weights: 'streamed' };
  writeFileSync(join(home.folder, 'other.yaml'), JSON.stringify({ name: 'other', models: [model] }));
  const { code, stderr } = await home.run(['plan', 'other.yaml']);
  expect(code).not.toBe(0);
  expect(stderr).toMatch(/weights of m would have no effect: engine llama\.cpp .*E_CONFIG_CONFLICT/);
});
