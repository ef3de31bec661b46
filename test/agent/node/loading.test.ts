/** What is told of a wrapped engine while it loads. */
import { chmod, mkdir, readdir, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { phaseSign } from '../../../agent/adapters/load-phases.ts';
import type { SessionModel } from '../../../spec/session-record.ts';
import { writeVllmSources } from '../adapters/vllm-sources.ts';
import { type RunningAgent, Site, unitOf } from '../support.ts';

const weight_bytes = 8 * 1024 * 1024;

test.each([
  [
    'INFO 11-22 18:00:05 [gpu_model_runner.py:4801] Starting to load model /models/m...',
    { phase: 'weights' },
  ],
  [
    '(EngineCore pid=9) Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.20s/it]',
    { phase: 'weights', share: 0.25 },
  ],
  ['Loading weights using some words of a prompt', undefined],
  ['INFO:     Application startup complete.', undefined],
])('phase of %j', (line, expected) => expect(phaseSign('vllm', line)).toEqual(expected));

// As they stand in logs that people have published, and in the sources named in load-phases.ts.
test.each<['sglang' | 'llama.cpp' | 'tgi', string, ReturnType<typeof phaseSign>]>([
  ['sglang', '[2026-07-01 15:18:59 TP9] Load weight begin. avail mem=61.12 GB', { phase: 'weights' }],
  [
    'sglang',
    'Multi-thread loading shards:  25% Completed | 1/4 [00:00<00:02,  1.29it/s]',
    { phase: 'weights', share: 0.25 },
  ],
  ['sglang', 'Loading safetensors checkpoint shards:  50% Completed | 1/2', { phase: 'weights', share: 0.5 }],
  [
    'sglang',
    '[2026-02-09 03:51:05] KV Cache is allocated. #tokens: 20480, K size: 1.25 GB',
    { phase: 'kv_cache' },
  ],
  ['sglang', '[22:30:53 TP0] Memory pool end. avail mem=22.83 GB', { phase: 'kv_cache' }],
  ['sglang', 'Compiling num tokens (num_tokens=4): 100% | 74/74 [00:09<00:00]', { phase: 'compiling' }],
  [
    'sglang',
    '[2026-05-24 00:52:54] Capture cuda graph begin. This can take up to several minutes. avail mem=24.16 GB',
    { phase: 'warming_up' },
  ],
  [
    'sglang',
    '[2026-05-24 00:53:00] Capture piecewise CUDA graph begin. avail mem=23.56 GB',
    { phase: 'warming_up' },
  ],
  ['sglang', '[2026-05-24 00:53:00] Capture cuda graph end. Time elapsed: 5.38 s.', undefined],
  [
    'llama.cpp',
    '0.00.022.811 I load_tensors: loading model tensors, this can take a while... (mmap = true)',
    { phase: 'weights' },
  ],
  ['llama.cpp', 'load_tensors: offloading 28 repeating layers to GPU', undefined],
  ['llama.cpp', 'llama_context: constructing llama_context', { phase: 'kv_cache' }],
  ['llama.cpp', '0.00.028.429 I llama_init_from_model: n_seq_max     = 1', { phase: 'kv_cache' }],
  [
    'llama.cpp',
    '0.00.047.192 W common_init_from_params: warming up the model with an empty run - please wait ... (--no-warmup to disable)',
    { phase: 'warming_up' },
  ],
  [
    'tgi',
    '2024-05-02T10:02:21.337263Z  INFO shard-manager: text_generation_launcher: Starting shard rank=0',
    { phase: 'weights' },
  ],
  [
    'tgi',
    '2025-01-09T17:19:35.412345Z  INFO text_generation_router_v3: backends/v3/src/lib.rs:125: Warming up model',
    { phase: 'warming_up' },
  ],
  [
    'tgi',
    '2024-05-02T10:02:21.337263Z  INFO text_generation_router: Warming up model',
    { phase: 'warming_up' },
  ],
])('phase of %s: %j', (engine, line, expected) => expect(phaseSign(engine, line)).toEqual(expected));

test('its phases and bytes in order, and how long it took the last time', async () => {
  await using site = await Site.open();
  const folder = join(site.folder, 'model');
  const bin = join(site.folder, 'bin');
  const cache = join(site.folder, 'cache');
  await mkdir(folder);
  await mkdir(bin);
  const model_path = join(folder, 'weights.safetensors');
  await writeFile(model_path, Buffer.alloc(weight_bytes, 1));
  const engine = fileURLToPath(new URL('loading-engine.mjs', import.meta.url));
  await writeFile(join(bin, 'vllm'), `#!/bin/sh\nexec '${process.execPath}' '${engine}' "$@"\n`);
  await chmod(join(bin, 'vllm'), 0o755);
  // What the probe reads of a version with --uds.
  const sources = join(site.folder, 'sources');
  await writeVllmSources(sources, '0.32.0');
  const environment = {
    PATH: `${bin}${delimiter}${process.env.PATH}`,
    PYTHONPATH: sources,
    XDG_CACHE_HOME: cache,
  };
  const unit = unitOf({ name: 'm' }, { engine: 'vllm', model_path, weight_bytes });
  const modelOf = async (
    agent: RunningAgent,
    accept: (model: SessionModel) => boolean,
  ): Promise<SessionModel> => {
    const isIt = (model: SessionModel) => model.name === 'm' && accept(model);
    const { sessions } = await agent.stateWhere(
      (state) => state.sessions.some(({ models }) => models.some(isIt)),
      'that of the model',
      15_000,
    );
    return sessions.flatMap(({ models }) => models).find(isIt)!;
  };
  const step = (at: number) => writeFile(join(folder, String(at)), '');

  const agent = await site.start([unit], {}, environment);
  const starting = await modelOf(agent, ({ phase }) => phase === 'starting');
  expect(starting.usual_load_s).toBeUndefined();
  expect(Math.abs(Date.now() - starting.loading_since_ms!)).toBeLessThan(10_000);
  await step(0);
  const half = await modelOf(agent, ({ bytes_loaded = 0 }) => bytes_loaded >= weight_bytes / 2);
  expect(half).toMatchObject({ state: 'loading', phase: 'weights', bytes_total: weight_bytes });
  expect(half.bytes_loaded).toBeLessThan(0.6 * weight_bytes);
  await step(1);
  await modelOf(agent, ({ bytes_loaded }) => bytes_loaded === weight_bytes);
  for (const [at, phase] of [
    [2, 'compiling'],
    [3, 'kv_cache'],
    [4, 'warming_up'],
  ] as const) {
    await step(at);
    const now = await modelOf(agent, (model) => model.phase === phase);
    expect(now.bytes_loaded).toBeUndefined();
  }
  const told = await site.session(({ metadata }) => metadata.models[0]?.phase === 'warming_up');
  expect(told.metadata.models[0]!.state).toBe('loading');
  await step(5);
  const record = await site.serving('m');
  expect(record.metadata.models[0]).not.toHaveProperty('phase');
  expect(record.metadata.models[0]).not.toHaveProperty('loading_since_ms');
  expect(await readdir(join(cache, 'hpcserve/load-times'))).toHaveLength(1);
  await agent.kill();

  const again = await site.start([unit], {}, environment);
  const known = await modelOf(again, ({ usual_load_s }) => usual_load_s !== undefined);
  expect(known.usual_load_s).toBeGreaterThan(1);
}, 90_000);
