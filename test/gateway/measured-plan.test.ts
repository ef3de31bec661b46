/** What gateways measure decides what is planned: the whole way, from clients' requests to `hpcserve plan`. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Plan, PlannedWorkload } from '../../spec/plan.ts';
import { stateLayout } from '../../spec/state-layout.ts';
import { hollowLlama } from '../cli/hollow-model.ts';
import { type Home, temporaryHome } from '../cli/support.ts';
import { json, startStage } from './support.ts';

/** Two models of the same files: one is asked often, the other seldom and with long prompts. */
const asked = {
  often: { requests: 400, input_tokens: 1024, output_tokens: 256 },
  long: { requests: 30, input_tokens: 6000, output_tokens: 300 },
} as const;
type Name = keyof typeof asked;
const names = Object.keys(asked) as Name[];

let home: Home;
beforeAll(() => {
  home = temporaryHome();
  hollowLlama(join(home.folder, '8b'), { hidden: 4096, ff: 14_336, layers: 32, heads: 32, kv: 8 });
  const kind = {
    name: 'a100',
    count: 8,
    partition: 'gpu',
    gres_type: 'a100',
    cpus: 64,
    memory_gb: 512,
    devices: [{ kind: 'gpu', model: 'A100-80GB', count: 4, memory_gb: 80 }],
    slurm: { time_limit: '12:00:00' },
    max_time: '24:00:00',
  };
  const runtime = { engines: { vllm: true } };
  write('lab.yaml', { name: 'lab', kind: 'slurm', runtime, node_kinds: [kind] });
});
afterAll(() => home.dispose());

/** JSON is YAML. */
function write(name: string, content: unknown): void {
  writeFileSync(join(home.folder, name), JSON.stringify(content));
}

type Load = Omit<PlannedWorkload, 'source'>;

/** What `hpcserve plan` says, where model.yaml tells the load of a model or leaves it to what was measured. */
async function plan(given: Partial<Record<Name, Load>> = {}): Promise<Plan> {
  const models = names.map((name) => ({
    ...{
      name,
      source: './8b',
      replicas: 'auto',
      slo: { ttft_ms: 2000, tpot_ms: name === 'long' ? 13 : 100 },
    },
    ...(given[name] ? { workload: given[name] } : {}),
  }));
  write('model.yaml', { name: 'demo', models });
  const options = ['--site', './lab.yaml', '--offline', '--json', '--deadline', '30s'];
  const { code, stdout, stderr } = await home.run(['plan', 'model.yaml', ...options]);
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout) as Plan;
}

/** Tensor parallelism of each replica of a model. */
function replicas({ launches }: Plan, name: Name): number[] {
  return launches.flatMap(({ units }) =>
    units.filter(({ model }) => model.name === name).map(({ tensor }) => tensor),
  );
}

/** A gateway of the site from its start to its end, asked by clients; what replicas count is what it measures. */
async function serve(): Promise<void> {
  const root = stateLayout(join(home.folder, '.hpcserve'), 'lab');
  const { gateway_folder, mesh_folder, deployments_folder, keys_folder } = root;
  const stage = await startStage({}, { gateway_folder, mesh_folder, deployments_folder, keys_folder });
  try {
    for (const name of names) {
      const { requests, input_tokens, output_tokens } = asked[name];
      const usage = {
        prompt_tokens: input_tokens,
        completion_tokens: output_tokens,
        total_tokens: input_tokens + output_tokens,
      };
      await stage.session(json({ choices: [], usage }), { name, engine: 'vllm', context_tokens: 8192 });
      let left: number = requests;
      const client = async (): Promise<void> => {
        while (left-- > 0) {
          const answer = await stage.post('/v1/chat/completions', { model: name, messages: [] });
          expect(answer.status, await answer.text()).toBe(200);
        }
      };
      await Promise.all(Array.from({ length: 6 }, client));
    }
  } finally {
    await stage.close();
  }
}

it('λ and the lengths that a gateway measured change how many replicas are planned, and how wide they are', async () => {
  const before = await plan();
  expect(before.models.map(({ workload }) => workload.source)).toEqual(['assumed', 'assumed']);
  for (const name of names) expect(replicas(before, name)).toEqual([1]);

  await serve();
  const after = await plan();
  const measured = Object.fromEntries(after.models.map(({ model, workload }) => [model, workload]));
  for (const name of names) {
    const { requests, input_tokens, output_tokens } = asked[name];
    expect(measured[name]).toMatchObject({ source: 'measured' });
    expect(measured[name]!.input_tokens).toBeCloseTo(input_tokens, 6);
    expect(measured[name]!.output_tokens).toBeCloseTo(output_tokens, 6);
    // Over ten seconds at least: shorter ones would make a high rate of few requests.
    expect(measured[name]!.rate_per_s).toBeLessThan(requests / 9);
    expect(measured[name]!.rate_per_s).toBeGreaterThan(requests / 60);
  }
  // Often asked: more replicas, none wider. Long prompts: a step reads more KV, which one GPU does too slowly.
  expect(replicas(after, 'often').length).toBeGreaterThan(2);
  expect(new Set(replicas(after, 'often'))).toEqual(new Set([1]));
  expect(Math.min(...replicas(after, 'long'))).toBeGreaterThan(1);

  // It is these numbers that do it: said in model.yaml, they give the same plan; and other words there come first.
  const { often, long } = measured as Record<Name, PlannedWorkload>;
  const loadOf = ({ source: _, ...load }: PlannedWorkload): Load => load;
  const given = await plan({ often: loadOf(often), long: loadOf(long) });
  for (const name of names) expect(replicas(given, name)).toEqual(replicas(after, name));
  const seldom = await plan({ often: { ...loadOf(often), rate_per_s: 1 } });
  expect(replicas(seldom, 'often').length).toBeLessThan(replicas(after, 'often').length);
}, 120_000);
