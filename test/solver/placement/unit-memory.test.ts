/** What a replica gets of a device: memory, KV, context and sequences, by engine. */
import { describe, expect, it } from 'vitest';
import { findDevice } from '../../../solver/catalog/devices.ts';
import { engineDefaults } from '../../../solver/catalog/engine-defaults.ts';
import { place } from '../../../solver/placement/placement.ts';
import {
  ownPrograms_bytes,
  sequencesOf,
  sizeUnit,
  type UnitMemory,
} from '../../../solver/placement/unit-memory.ts';
import { chunkOf_tokens } from '../../../spec/launch.ts';
import {
  type DeviceOffer,
  defaultPlacementSettings,
  type PlacementModel,
  type ResolvedEngine,
} from '../../../spec/plan.ts';
import { ask, cpus, gguf, gpus, llama } from './support.ts';

const gib = 2 ** 30;
const h100: DeviceOffer = { kind: 'gpu', model: 'H100', count: 8, memory_bytes: 80 * gib };
const node: DeviceOffer = { kind: 'cpu', model: 'Xeon', count: 1, memory_bytes: 192 * gib };
const long = (asked: Record<string, unknown> = {}): PlacementModel => ({
  ...llama('m', '8b', asked),
  trained_context_tokens: 131_072,
});

function sized(model: PlacementModel, engine: ResolvedEngine, device: DeviceOffer, tensor = 1): UnitMemory {
  const { weight_bytes, spec } = model;
  const programs_bytes = ownPrograms_bytes(engine, device, defaultPlacementSettings);
  const split = { tensor, pipeline: 1, weight_bytes, precision: spec.precision, programs_bytes };
  const defaults = engineDefaults(
    engine,
    { ...findDevice('H100'), ...device, name: device.model } as never,
    tensor,
  );
  const memory = sizeUnit(model, engine, device, split, defaultPlacementSettings, defaults);
  if ('because' in memory) throw new Error(memory.because);
  return memory;
}

describe('a wrapped engine on a GPU', () => {
  it('has its share of the device, and the context that the model was trained for, which it is not told', () => {
    const memory = sized(long(), 'vllm', h100);
    expect(memory).toMatchObject({ context_tokens: 131_072, context_told: false, share: 0.9 });
    expect(memory.bytes_per_device).toBe(Math.floor(0.9 * 80 * gib));
    // 72 GiB less 15 of weights and what it computes in, 128 KiB a token.
    expect(memory.kv_tokens).toBeGreaterThan(420_000);
    expect(memory.kv_tokens).toBeLessThan(460_000);
    expect(memory.kv_bytes).toBe(memory.kv_tokens * 131_072);
  });

  it('has half the KV where it runs at 32 bits', () => {
    const at = (precision: string): number => sized(long({ precision }), 'vllm', h100).kv_tokens;
    expect(at('f32')).toBe(Math.floor(at('bf16') / 2));
  });

  it('is told a context that memory bounds, so that it starts', () => {
    const small: DeviceOffer = { ...h100, model: 'A10', memory_bytes: 24 * gib };
    const memory = sized(long(), 'vllm', small);
    expect(memory.context_told).toBe(true);
    expect(memory.context_tokens % 256).toBe(0);
    expect(memory.context_tokens).toBeGreaterThan(8192);
    expect(memory.context_tokens).toBeLessThan(40_000);
    expect(memory.kv_tokens).toBeGreaterThanOrEqual(memory.context_tokens);
  });

  it('is told what model.yaml asks for, though it be what it would take', () => {
    expect(sized(long({ context_tokens: 131_072 }), 'vllm', h100)).toMatchObject({
      context_tokens: 131_072,
      context_told: true,
    });
    expect(sized(long({ context_tokens: 4096 }), 'sglang', h100).context_tokens).toBe(4096);
  });

  it('fits wherever weights, margin and 8192 tokens do', () => {
    const model = { ...llama('m', '70b'), trained_context_tokens: 131_072 };
    const small: DeviceOffer = { ...h100, model: 'A100-40GB', memory_bytes: 39.4 * gib };
    const memory = sized(model, 'vllm', small, 4);
    expect(memory.context_tokens).toBe(8192);
    expect(memory.context_told).toBe(true);
    expect(memory.kv_tokens).toBe(8192);
  });

  it('of SGLang leaves room for its graphs', () => {
    expect(sized(long(), 'sglang', h100).kv_tokens).toBeLessThan(sized(long(), 'vllm', h100).kv_tokens);
  });
});

describe('a model whose files do not say what it was trained for', () => {
  const unknown = (model: PlacementModel): PlacementModel => ({ ...model, trained_context_tokens: 0 });

  it.each([
    ['GPUs', unknown(llama('m', '8b')), gpus('H100', 80, 1)],
    ['CPUs', unknown(gguf('m', '8b')), cpus('Xeon-8480+', 1, [])],
  ])('has the default context on %s, and its engine is told so', (_, model, offer) => {
    const plan = place(ask([model], [offer]));
    expect(plan.unplaced).toEqual([]);
    expect(plan.launches[0]!.units[0]).toMatchObject({ context_tokens: 8192, context_told: true });
  });

  it('is not said to be asked for more', () => {
    const model = unknown(llama('m', '8b', { context_tokens: 4096 }));
    const { warnings } = place(ask([model], [gpus('H100', 80, 1)]));
    expect(warnings.join()).not.toContain('trained for');
  });
});

describe('latent attention', () => {
  const config = {
    model_type: 'deepseek_v2',
    num_hidden_layers: 27,
    hidden_size: 2048,
    num_attention_heads: 16,
    num_key_value_heads: 16,
    vocab_size: 102_400,
    intermediate_size: 10_944,
    max_position_embeddings: 163_840,
    kv_lora_rank: 512,
    qk_rope_head_dim: 64,
  };
  const kv_bytes_per_token = 2 * 27 * (512 + 64);
  const lite = llama('m', '8b');
  const summary = {
    ...lite.summary!,
    architecture: 'deepseek_v2',
    n_layer: 27,
    n_embd: 2048,
    n_head: 16,
    n_head_kv: 16,
    n_ctx_train: 163_840,
    kv_bytes_per_token,
  };
  const model: PlacementModel = {
    ...lite,
    weight_bytes: 31.4e9,
    kv_bytes_per_token,
    trained_context_tokens: 163_840,
    summary,
  };
  const a10: DeviceOffer = { kind: 'gpu', model: 'A10', count: 2, memory_bytes: 24e9 };

  it.each([
    ['its config', { ...model, config }],
    ['the headers of its files', model],
  ])('is known by %s, and has its KV whole on each device of a layer', (_, known) => {
    const memory = sized(known, 'vllm', a10, 2);
    expect(memory.kv_bytes).toBe(memory.kv_tokens * kv_bytes_per_token);
    // Less than the model was trained for: an engine that is not told so does not start.
    expect(memory.kv_tokens).toBeLessThan(163_840);
    expect(memory.context_told).toBe(true);
    expect(memory.context_tokens).toBeLessThanOrEqual(memory.kv_tokens);
  });

  it('has its KV divided over the stages of a pipeline', () => {
    const split = { pipeline: 3, weight_bytes: 31.4e9, precision: 'bf16', programs_bytes: 0 };
    const memory = sizeUnit(model, 'vllm', a10, { ...split, tensor: 2 }, defaultPlacementSettings);
    expect(memory).not.toHaveProperty('because');
    const { kv_bytes, kv_tokens } = memory as UnitMemory;
    expect(kv_bytes).toBe((kv_tokens * kv_bytes_per_token) / 3);
  });
});

describe('engines that reserve memory for whole sequences', () => {
  it('have at most 8192 tokens of context unless asked, and KV for their sequences', () => {
    const model = { ...gguf('m', '8b'), trained_context_tokens: 131_072 };
    expect(sized(model, 'native', node)).toMatchObject({ context_tokens: 8192, kv_tokens: 16 * 8192 });
    const asked = { ...gguf('m', '8b', { max_sequences: 4 }), trained_context_tokens: 131_072 };
    expect(sized(asked, 'llama.cpp', node)).toMatchObject({ context_tokens: 8192, kv_tokens: 4 * 8192 });
    const kv = { ...gguf('m', '8b', { kv_tokens: 20_000 }), trained_context_tokens: 131_072 };
    expect(sized(kv, 'llama.cpp', node).kv_tokens).toBe(20_000);
  });

  it('have no more slots than whole sequences fit', () => {
    const model = { ...gguf('m', '8b', { kv_tokens: 20_000 }), trained_context_tokens: 131_072 };
    const memory = sized(model, 'llama.cpp', node);
    const defaults = engineDefaults('llama.cpp', findDevice('Xeon-8480+'), 1);
    expect(sequencesOf(model, 'llama.cpp', memory, defaults)).toBe(2);
    expect(sequencesOf(model, 'native', memory, defaults)).toBe(16);
  });
});

it('vLLM on a CPU node has KV for sequences, not all that is there, and room for its processes', () => {
  const memory = sized(long({ context_tokens: 8192 }), 'vllm', node);
  expect(memory.kv_tokens).toBe(16 * 8192);
  const { python_engine_bytes, margin_fixed_bytes } = defaultPlacementSettings;
  expect(memory.bytes_per_device).toBeGreaterThan(
    16.06e9 + memory.kv_bytes + python_engine_bytes + margin_fixed_bytes,
  );
  expect(memory.bytes_per_device).toBeLessThan(40 * gib);
});

describe('what engines choose', () => {
  it.each([
    ['vllm', 'H100', 1024, 8192],
    ['vllm', 'A100-80GB', 256, 2048],
    ['vllm', 'A100-40GB', 256, 2048],
    ['vllm', 'H200', 1024, 8192],
    ['vllm', 'Xeon-8480+', 128, 2048],
    ['sglang', 'A100-40GB', 2048, 4096],
    ['sglang', 'H100', 2048, 8192],
    ['lmdeploy', 'A100-80GB', 384, 8192],
    ['lmdeploy', 'H100', 1024, 8192],
    ['lmdeploy', 'L4', 128, 8192],
    ['native', 'H100', 16, 512],
    ['native', 'Xeon-8480+', 16, 512],
    ['native', 'EPYC-9654', 16, 256],
  ] as const)('%s on %s', (engine, device, max_sequences, batched_tokens) => {
    expect(engineDefaults(engine, findDevice(device), 1)).toEqual({ max_sequences, batched_tokens });
  });

  it('is what the plan counts with, until model.yaml asks for something else', () => {
    const unitsOf = (asked: Record<string, unknown>) =>
      place(ask([llama('m', '8b', asked)], [gpus('H100', 80, 1)])).launches[0]!.units;
    const [plain] = unitsOf({});
    expect(plain).toMatchObject({ max_sequences: 1024, memory: { share: 0.9 } });
    expect(plain!.context_told).toBeUndefined();
    expect(plain!.prefill_chunk_tokens).toBeUndefined();
    expect(unitsOf({ max_sequences: 8 })[0]!.max_sequences).toBe(8);
    // More at once, more requests: sixteen of them would leave most of the device idle.
    const rateOf = (asked: Record<string, unknown>) =>
      place(ask([llama('m', '8b', asked)], [gpus('H100', 80, 1)])).models[0]!.groups[0]!.predicted!
        .max_rate_per_s;
    expect(rateOf({})).toBeGreaterThan(3 * rateOf({ max_sequences: 16 }));
  });
});

it.each([
  ['Xeon-8480+', 512],
  ['EPYC-9654', 256],
])('the native engine is told how long its chunks are on %s', (device, chunk_tokens) => {
  const unitOf = (asked: Record<string, unknown>) =>
    place(ask([gguf('m', '8b', { engine: 'native', ...asked })], [cpus(device, 1, [])])).launches[0]!
      .units[0]!;
  expect(chunkOf_tokens(unitOf({}))).toBe(chunk_tokens);
  expect(chunkOf_tokens(unitOf({ prefill_chunk_tokens: 64 }))).toBe(64);
});

it('the plan says where memory bounds the context', () => {
  const model = { ...llama('m', '8b'), trained_context_tokens: 131_072 };
  const warnings = (device: string, memory: number) =>
    place(ask([model], [gpus(device, memory, 1, { count: 1 })])).warnings.join('\n');
  expect(warnings('A10', 24)).toMatch(
    /sequences of at most \d+ tokens, of the 131072 the model was trained for/,
  );
  expect(warnings('H100', 80)).not.toMatch(/sequences of at most/);
});

it('two replicas of a CPU node have memory and cores of their own', () => {
  const offer = cpus('EPYC-9755', 1, ['avx512_bf16'], {
    engines: { vllm: { available: true } },
    devices: { kind: 'cpu', model: 'EPYC-9755', count: 2, memory_bytes: 96 * gib },
    memory_bytes: 192 * gib,
  });
  const [launch] = place(ask([llama('m', '8b', { replicas: 2 })], [offer])).launches;
  expect(launch!.units.map(({ first_device, threads }) => [first_device, threads])).toEqual([
    [0, 24],
    [1, 24],
  ]);
  expect(launch!.cpus_per_node).toBe(48);
  const given = launch!.units.reduce((sum, { memory }) => sum + memory!.device_bytes, 0);
  expect(given + defaultPlacementSettings.host_overhead_bytes).toBe(launch!.memory_bytes_per_node);
});
