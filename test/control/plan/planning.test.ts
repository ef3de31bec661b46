/** A deployment's plan as it is made and carried out, where the plan says where weights lie. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type PlannedDeployment, planDeployment, useFresh } from '../../../control/plan/planning.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { deploymentSchema, type ModelSpec } from '../../../spec/model-yaml.ts';
import type { NodeKindOffer, PlacementModel } from '../../../spec/plan.ts';
import { siteSchema } from '../../../spec/site.ts';
import { gguf, gpus, llama } from '../../solver/placement/support.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-planning-'));
  writeFileSync(join(folder, 'm'), '');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function planned(
  asked: object,
  offer: NodeKindOffer,
  inspected: (name: string) => PlacementModel,
  keeper: 'login' | 'none' = 'login',
  slurm: object = {},
): Promise<PlannedDeployment> {
  const source = join(folder, 'm');
  return planDeployment({
    spec: deploymentSchema.parse({ name: 'demo', models: [{ name: 'm', source, ...asked }], slurm }),
    spec_file: join(folder, 'model.yaml'),
    site: siteSchema.parse({ name: 'here', kind: 'slurm', node_kinds: [], keeper: { place: keeper } }),
    offers: [offer],
    inspect: async (spec: ModelSpec) => ({ ...inspected(spec.name), spec, model_path: source }),
    now_ms: 1,
  });
}

/** It holds a layer of the model, and not all of it. */
const small = gpus('T4', 16, 1, { engines: { native: { available: true } }, count: 1 });
const open = { weights: 'auto', context_tokens: 2048, max_sequences: 1 };

it('is carried out as it was made, with weights where it has chosen that they lie', async () => {
  const made = (): Promise<PlannedDeployment> => planned(open, small, (name) => gguf(name, '70b'));
  const { plan } = await made();
  expect(plan.launches[0]!.units[0]!.model.weights).toBe('streamed');
  expect(useFresh(plan, await made()).plan).toBe(plan);
});

it('is read from a file as it was made, also where jobs have no time limit', async () => {
  const offer = { ...gpus('A100-80GB', 80, 1), time_limit_default_s: 3600 };
  for (const [time_limit, expected] of [
    ['1-00:00:00', 86_400],
    ['UNLIMITED', undefined],
  ]) {
    const model = (name: string): PlacementModel => llama(name, '8b');
    const { plan } = await planned({ engine: 'vllm' }, offer, model, 'login', { time_limit });
    expect(plan.launches[0]!.time_limit_s).toBe(expected);
    expect(JSON.parse(JSON.stringify(plan))).toEqual(plan);
  }
});

it('is not carried out where it leaves open what its jobs must know', async () => {
  const made = await planned(open, small, (name) => gguf(name, '70b'));
  const [launch] = made.plan.launches;
  const units = launch!.units.map((unit) => ({
    ...unit,
    model: { ...unit.model, weights: 'auto' as const },
  }));
  const left = { ...made.plan, launches: [{ ...launch!, units }] };
  const refusal = (): readonly string[] => {
    try {
      useFresh(left, made);
    } catch (error) {
      return HpcserveError.from(error).because;
    }
    return [];
  };
  expect(refusal().join()).toMatch(/weights of m-0 are auto/);
});

it('lets weights lie on the device for an engine that has them nowhere else', async () => {
  const offer = gpus('A100-80GB', 80, 1);
  for (const engine of ['auto', 'vllm']) {
    const { plan } = await planned({ engine, weights: 'auto' }, offer, (name) => llama(name, '8b'));
    expect(plan.launches[0]!.units[0]).toMatchObject({ engine: 'vllm', model: { weights: 'resident' } });
  }
});

it('leaves a pipeline as it runs whose stages change, with however many it would begin now', async () => {
  const four = gpus('T4', 16, 1, { engines: { native: { available: true } }, count: 4 });
  const plan = (pipeline: unknown, keeper: 'login' | 'none'): Promise<PlannedDeployment> =>
    planned({ parallel: { pipeline } }, four, (name) => gguf(name, '8b'), keeper);
  const range = { stages_min: 2, stages_max: 4 };
  const [fine, coarse] = [await plan(range, 'login'), await plan(range, 'none')];
  const begins = ({ plan: { launches } }: PlannedDeployment) => launches[0]!.units[0]!.stages!.length;
  expect([fine, coarse].map(begins)).toEqual([4, 2]);
  expect(coarse.fingerprint(fine.plan.launches[0]!)).toBe(coarse.fingerprint(coarse.plan.launches[0]!));
  // One whose stages stay is another one with others.
  const [two, three] = [await plan(2, 'login'), await plan(3, 'login')];
  expect(two.fingerprint(two.plan.launches[0]!)).not.toBe(two.fingerprint(three.plan.launches[0]!));
});
