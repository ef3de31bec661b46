/** A model that sleeps when nobody asks and wakes for a request, with real gateway, agents and keeper. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Home, temporaryHome } from '../cli/support.ts';

let home: Home;
let client: OpenAI;

beforeAll(async () => {
  home = temporaryHome();
  const made = await home.run(['model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1']);
  expect(made.code, made.stderr).toBe(0);
  // Two nodes of a declared speed, so that several answers at once take a while on any machine.
  writeFileSync(
    join(home.folder, 'site.yaml'),
    JSON.stringify({
      name: 'local',
      kind: 'local',
      node_kinds: [
        {
          name: 'small',
          count: 2,
          cpus: 1,
          memory_gb: 4,
          devices: [
            {
              kind: 'cpu',
              model: 'CPU',
              count: 1,
              memory_gb: 2,
              cores: 1,
              emulated: 'cpu',
              emulated_step_ms: 40,
            },
          ],
        },
      ],
    }),
  );
  const model = {
    name: 'tiny',
    aliases: ['small'],
    source: './toy.gguf',
    cpu_threads: 1,
    context_tokens: 512,
    max_sequences: 2,
    batch_invariant: true,
    scaling: { min: 0, max: 2, window_s: 3, target: 0.7 },
  };
  writeFileSync(join(home.folder, 'model.yaml'), JSON.stringify({ name: 'demo', models: [model] }));
  const { code, stdout, stderr } = await home.run([
    '--site',
    'site.yaml',
    'deploy',
    'model.yaml',
    '--json',
    '--timeout',
    '60s',
  ]);
  expect(code, stderr + stdout).toBe(0);
  const { url, key } = JSON.parse(stdout.trim().split('\n').at(-1)!) as { url: string; key: string };
  client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
});
afterAll(async () => {
  await home.run(['--site', 'site.yaml', 'stop', '--all', '--yes']);
  home.dispose();
});

interface Status {
  phase: string;
  reasons: string[];
  replicas_serving: number;
}
async function status(): Promise<Status> {
  const { code, stdout, stderr } = await home.run(['--site', 'site.yaml', 'status', 'demo', '--json']);
  expect(code, stderr).toBe(0);
  return (JSON.parse(stdout) as { deployments: Status[] }).deployments[0]!;
}
const phase = async (): Promise<string> => (await status()).phase;

async function ask(model: string, max_tokens: number): Promise<string> {
  const answer = await client.chat.completions.create({
    model,
    seed: 1,
    max_tokens,
    messages: [{ role: 'user', content: 'Hello' }],
    ...{ ignore_eos: true },
  });
  return answer.choices[0]!.message.content ?? '';
}

describe('a model with scaling', () => {
  let first: string;

  it('sleeps when nobody has asked for its window', async () => {
    first = await ask('tiny', 8);
    await expect.poll(phase, { timeout: 30_000 }).toBe('asleep');
    expect((await status()).reasons.join()).toMatch(
      /tiny sleeps since .*Z; a request wakes it in about \d+ s/,
    );
  });

  it('wakes for a request, by any of its names, which is answered as before', async () => {
    expect(await ask('small', 8)).toBe(first);
    // While somebody asks it stays awake, however long the look takes.
    let looked = false;
    const look = async (): Promise<string> => {
      try {
        return await phase();
      } finally {
        looked = true;
      }
    };
    const asking = async (): Promise<void> => {
      do await ask('tiny', 8);
      while (!looked);
    };
    const [seen] = await Promise.all([look(), asking()]);
    expect(seen).toBe('serving');
  });

  it('gets a second replica under load, and gives it back', async () => {
    let two = false;
    const answers = new Set<string>();
    const client = async (): Promise<void> => {
      do answers.add(await ask('tiny', 100));
      while (!two);
    };
    const load = Promise.all(Array.from({ length: 4 }, client));
    await expect.poll(async () => (await status()).replicas_serving, { timeout: 40_000 }).toBe(2);
    two = true;
    await load;
    expect(answers.size).toBe(1);
    await expect.poll(phase, { timeout: 30_000 }).toBe('asleep');
    expect((await home.run(['--site', 'site.yaml', 'deploy', 'model.yaml'])).stderr).toMatch(
      /deployed already and unchanged/,
    );
  });
});
