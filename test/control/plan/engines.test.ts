/** Which wrapped engines a site offers, and how they are started there. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { offersOf } from '../../../control/plan/site-offers.ts';
import { describeLaunch } from '../../../control/runner/prepare-launch.ts';
import { DeploymentStore } from '../../../control/state/deployment-store.ts';
import { chooseEngine } from '../../../solver/placement/engine-choice.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import type { PlacementModel } from '../../../spec/plan.ts';
import { type SiteConfig, siteSchema } from '../../../spec/site.ts';
import { stateLayout } from '../../../spec/state-layout.ts';
import { parseYaml } from '../../../spec/yaml-document.ts';
import { plannedLaunch } from '../support.ts';

function site(engines: string): SiteConfig {
  return parseYaml(
    `name: s\nkind: slurm\nnode_kinds:\n  - {name: g, partition: p, devices: [{kind: gpu, model: A100, count: 1, memory_gb: 80}]}\nruntime: {${engines}}\n`,
    'site.yaml',
    siteSchema,
  ).value;
}

const folder: PlacementModel = {
  spec: modelSchema.parse({ name: 'm', source: '/m' }),
  model_path: '/m',
  format: 'huggingface',
  architecture: 'llama',
  weight_bytes: 1,
  kv_bytes_per_token: 1,
  trained_context_tokens: 4096,
  native: { supported: true },
};
const choice = (engines: string) => chooseEngine(folder, offersOf(site(engines), undefined, {})[0]!);

it('auto takes an engine for there where the site says nothing, and says so', () => {
  expect(choice('')).toMatchObject({
    engine: 'vllm',
    reason: expect.stringMatching(/nobody has looked.*runtime\.engines/),
  });
});

it('auto passes by what the site does not have', () => {
  expect(choice('engines: {sglang: true}')).toEqual({
    engine: 'sglang',
    reason: 'engine sglang: first that runs a Hugging Face folder (llama) on A100',
  });
  expect(choice('engines: {vllm: false, transformers: {prefix: [apptainer, exec, /t.sif]}}')).toMatchObject({
    engine: 'transformers',
  });
  expect(choice('engines: {llama.cpp: true}')).toMatchObject({
    constraint: 'engine_unavailable',
    because: expect.stringMatching(/vllm: runtime\.engines of the site config does not offer vllm/),
  });
  expect(() => site('engines: {vlm: true}')).toThrow(/wrong entry/);
});

it('its prefix goes into the launch, and two that differ do not share a job', () => {
  const config = site('engines: {vllm: {prefix: [apptainer, exec, /v.sif]}, transformers: true}');
  const store = new DeploymentStore(stateLayout('/state', 's'));
  const [unit] = plannedLaunch('m-0').units;
  const prefixOf = (...engines: ('vllm' | 'transformers' | 'native' | 'command')[]): string[] =>
    describeLaunch(
      'd',
      '0'.repeat(16),
      { ...plannedLaunch('m-0'), units: engines.map((engine) => ({ ...unit!, engine })) },
      config,
      store,
      { user: 'u', environment: {} },
    ).launch.engine_prefix;
  expect(prefixOf('vllm', 'native')).toEqual(['apptainer', 'exec', '/v.sif']);
  expect(prefixOf('transformers', 'command')).toEqual([]);
  expect(() => prefixOf('vllm', 'transformers')).toThrow(/start in different ways/);
  expect(() => prefixOf('vllm', 'command')).toThrow(/start in different ways/);
});

it('its parts talk where the site says', () => {
  const store = new DeploymentStore(stateLayout('/state', 's'));
  const launchOf = (config: SiteConfig) =>
    describeLaunch('d', '0'.repeat(16), plannedLaunch('m-0'), config, store, { user: 'u', environment: {} });
  const config = site('engines: {vllm: true}');
  const there = { ...config, network: { ...config.network, engine_interfaces: ['hsn0', 'hsn1'] } };
  expect(launchOf(there).launch.engine_interfaces).toEqual(['hsn0', 'hsn1']);
  expect(launchOf(config).launch.engine_interfaces).toBeUndefined();
});

const cpuSite = (isa: string, engines = '', kind = 'slurm'): SiteConfig =>
  parseYaml(
    `name: s\nkind: ${kind}\nnode_kinds:\n  - {name: c, cpus: 64, memory_gb: 256, isa: [${isa}], devices: [{kind: cpu, model: EPYC-9755, count: 1, memory_gb: 256}]}\nruntime: {${engines}}\n`,
    'site.yaml',
    siteSchema,
  ).value;

it('on CPUs auto takes vLLM for a Hugging Face folder, and SGLang only with AMX', () => {
  const choose = (isa: string, engines: string) =>
    chooseEngine(folder, offersOf(cpuSite(isa, engines), undefined, {})[0]!);
  expect(choose('avx512_bf16', '')).toMatchObject({ engine: 'vllm' });
  expect(choose('avx512_bf16', 'engines: {vllm: true, transformers: true}')).toMatchObject({
    engine: 'vllm',
  });
  expect(choose('amx_bf16', 'engines: {sglang: true, transformers: true}')).toMatchObject({
    engine: 'sglang',
  });
  expect(choose('avx512_bf16', 'engines: {sglang: true, transformers: true}')).toMatchObject({
    engine: 'transformers',
  });
  const offer = offersOf(cpuSite('avx2', 'engines: {sglang: true}'), undefined, {})[0]!;
  expect(offer.engines.sglang).toMatchObject({ available: false, because: expect.stringMatching(/AMX/) });
});

it('on the local site engines are there whose program or package is on PATH', () => {
  const place = mkdtempSync(join(tmpdir(), 'hpcserve-engines-'));
  try {
    const bin = join(place, 'bin');
    const packages = join(place, 'lib', 'python3.12', 'site-packages');
    for (const each of [bin, packages]) mkdirSync(each, { recursive: true });
    const program = (name: string): void => writeFileSync(join(bin, name), '', { mode: 0o755 });
    const engines = () => offersOf(cpuSite('amx_bf16', '', 'local'), undefined, { PATH: bin })[0]!.engines;
    program('python3');
    expect(engines().vllm).toMatchObject({ available: false, because: 'there is no program vllm on PATH' });
    expect(engines().sglang).toMatchObject({ because: 'the python3 on PATH has no package sglang' });
    program('vllm');
    mkdirSync(join(packages, 'sglang'));
    expect(engines()).toMatchObject({ vllm: { available: true }, sglang: { available: true } });
  } finally {
    rmSync(place, { recursive: true });
  }
});
