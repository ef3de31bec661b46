/** Prefill and decode pools on a machine without Slurm, by typed commands: planned, deployed, asked, lost, replaced. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { childrenOf } from '../../host/process-identity.ts';
import { type Home, temporaryHome } from '../cli/support.ts';
import { eventually } from '../mesh/support.ts';

let home: Home;
let url: string;
let key: string;

function write(model: string): void {
  writeFileSync(
    join(home.folder, 'model.yaml'),
    `name: demo\nmodels:\n  - name: tiny\n    source: ./toy.gguf\n    engine: native\n    cpu_threads: 1\n    context_tokens: 1024\n    max_sequences: 4\n    prefill_chunk_tokens: 64\n    batch_invariant: true\n${model}`,
  );
}

interface Unit {
  unit: string;
  pool?: string;
  state: string;
  moves?: { continued: number; handovers?: { handed_over: number; kept: Record<string, number> } };
}

async function units(): Promise<Unit[]> {
  const { deployments } = JSON.parse((await home.run(['status', '--json'])).stdout) as {
    deployments: { launches: { superseded: boolean; units: Unit[] }[] }[];
  };
  return deployments[0]!.launches.filter(({ superseded }) => !superseded).flatMap((launch) => launch.units);
}

beforeAll(async () => {
  home = temporaryHome();
  const made = await home.run(['model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1']);
  expect(made.code, made.stderr).toBe(0);
});
afterAll(async () => {
  await home.run(['stop', '--all', '--yes']);
  home.dispose();
});

const prompt = Array.from({ length: 120 }, (_, at) => `word${at % 7} `).join('');

async function answer(): Promise<string> {
  const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
  const stream = await client.completions.create({
    model: 'tiny',
    stream: true,
    max_tokens: 60,
    temperature: 0,
    prompt,
  });
  let text = '';
  for await (const chunk of stream) text += chunk.choices[0]?.text ?? '';
  return text;
}

describe('pools', () => {
  let alone: string;

  it('are refused where they cannot be, with the line and what to write', async () => {
    write('    pools:\n      prefill: { replicas: 1 }\n      decode: { replicas: 0 }\n');
    const none = await home.run(['plan', 'model.yaml']);
    expect(none.code).not.toBe(0);
    expect(none.stderr).toMatch(/model\.yaml:13:\d+[\s\S]*leave out pools and write replicas/);
    write('    replicas: 2\n    pools:\n      prefill: {}\n      decode: {}\n');
    expect((await home.run(['plan', 'model.yaml'])).stderr).toMatch(/pools\.prefill\.replicas/);
  });

  it('one replica answers before there are any', async () => {
    write('    replicas: 1\n');
    const { code, stdout, stderr } = await home.run(['deploy', '--yes', 'model.yaml', '--timeout', '60s']);
    expect(code, stderr).toBe(0);
    [, url] = /URL +(\S+)/.exec(stdout) as unknown as [string, string];
    [, key] = /key +(\S+)/.exec(stdout) as unknown as [string, string];
    alone = await answer();
    expect(alone.length).toBeGreaterThan(10);
  }, 90_000);

  it('are planned with what each is for, deployed, and answer alike', async () => {
    write('    pools:\n      prefill: { replicas: 1 }\n      decode: { replicas: 1 }\n');
    const plan = await home.run(['plan', 'model.yaml']);
    expect(plan.code, plan.stderr).toBe(0);
    expect(plan.stdout).toMatch(/tiny\+prefill-0/);
    expect(plan.stdout).toMatch(/tiny \(prefill\)[\s\S]*sends their KV to\s+tiny \(decode\)/);
    const { code, stderr } = await home.run(['deploy', '--yes', 'model.yaml', '--timeout', '60s']);
    expect(code, stderr).toBe(0);
    await eventually(async () => {
      const all = await units();
      return (all.length === 2 && all.every(({ state }) => state === 'serving')) || undefined;
    }, 'both pools to serve');
    expect((await units()).map(({ unit, pool }) => `${unit} ${pool}`).sort()).toEqual([
      'tiny+decode-0 decode',
      'tiny+prefill-0 prefill',
    ]);
    expect(await answer()).toBe(alone);
    // Until its file is hashed its KV does not move, and on a fast machine a short prompt is not worth it.
    await eventually(async () => {
      expect(await answer()).toBe(alone);
      const [prefill] = (await units()).filter(({ pool }) => pool === 'prefill');
      const { handed_over = 0, kept = {} } = prefill?.moves?.handovers ?? {};
      return handed_over + Object.values(kept).reduce((sum, count) => sum + count, 0) > 0 || undefined;
    }, 'the prefill replica to tell of handovers');
    expect((await home.run(['status', 'demo'])).stdout).toMatch(/handed over for decoding|decoded here/);
    expect((await home.run(['top', '--once'])).stdout).toMatch(/prefill pool of tiny: /);
  }, 120_000);

  it('get a replica that is lost back, in its pool', async () => {
    const report = JSON.parse((await home.run(['status', '--json'])).stdout) as {
      deployments: { launches: { job_id: string; superseded: boolean; units: Unit[] }[] }[];
    };
    const lost = report.deployments[0]!.launches.find(
      ({ superseded, units: own }) => !superseded && own[0]?.pool === 'decode',
    )!;
    // The agent, a child of the script.
    for (const agent of childrenOf(Number(lost.job_id.slice(1)))) process.kill(agent, 'SIGKILL');
    let seen = '';
    await eventually(
      async () => {
        const now = JSON.parse((await home.run(['status', '--json'])).stdout) as typeof report;
        const { launches } = now.deployments[0]!;
        seen = launches
          .map(({ job_id, units: own }) => `${job_id} ${own[0]?.unit} ${own[0]?.state}`)
          .join(', ');
        return launches.some(
          ({ job_id, units: own }) =>
            job_id !== lost.job_id && own[0]?.pool === 'decode' && own[0].state === 'serving',
        );
      },
      'another replica to decode',
      60_000,
    ).catch((error: Error) => {
      throw new Error(`${error.message}: ${seen}`);
    });
    expect((await units()).filter(({ pool }) => pool === 'prefill')).toMatchObject([{ state: 'serving' }]);
    expect(await answer()).toBe(alone);
  }, 120_000);
});
