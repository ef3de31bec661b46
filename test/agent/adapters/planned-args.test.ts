/** What the plan gave a replica is what its engine is told: memory, context, sequences; a person's own words win. */
import { describe, expect, it } from 'vitest';
import type { CommandLine } from '../../../agent/adapters/adapter.ts';
import { isGiven } from '../../../agent/adapters/engine-args.ts';
import { adapterOf } from '../../../agent/adapters/index.ts';
import { kvGibibytes, shareOfAll, shareOfFree, shareOfWeightsAndKv } from '../../../spec/engine-memory.ts';
import type { UnitSpec } from '../../../spec/launch.ts';
import type { ModelSpec } from '../../../spec/model-yaml.ts';
import { unitOf } from '../support.ts';

const gib = 2 ** 30;
/** 0.9 of 80 GiB: 16 of weights, 50 of KV, 6 to compute in. */
const memory = { device_bytes: 72 * gib, kv_bytes: 50 * gib, share: 0.9 };
type Engine = Parameters<typeof adapterOf>[0];

function unit(model: Partial<ModelSpec> = {}, change: Partial<UnitSpec> = {}): UnitSpec {
  return unitOf(
    { name: 'm', ...model },
    {
      device_kind: 'gpu',
      context_tokens: 131_072,
      kv_tokens: 400_000,
      weight_bytes: 16 * gib,
      max_sequences: 1024,
      memory,
      ...change,
    },
  );
}

function line(engine: Engine, of: UnitSpec, version = '0.32.0'): CommandLine {
  return adapterOf(engine).commandLine(of, {
    runtime_folder: '/run/u',
    port: 40_000,
    key: 'k'.repeat(64),
    engine_prefix: [],
    probed: { version, unix_socket: true },
    emulated: false,
  });
}
const wordAfter = (argv: readonly string[], name: string): string | undefined =>
  argv.includes(name) ? argv[argv.indexOf(name) + 1] : undefined;
const value = (engine: Engine, of: UnitSpec, name: string, version?: string): string | undefined =>
  wordAfter(line(engine, of, version).argv, name);

describe('the shares', () => {
  it('are of all, of weights and KV, and of what weights leave', () => {
    expect(shareOfAll(unit())).toBe(0.9);
    expect(shareOfWeightsAndKv(unit())).toBe(0.825);
    expect(shareOfFree(unit())).toBe(0.781);
    // Weights are divided over the devices.
    const two = unit({}, { tensor: 2, device_count: 2 });
    expect(shareOfWeightsAndKv(two)).toBe(0.725);
    expect(shareOfFree(two)).toBe(0.694);
  });

  it('are none where the plan says nothing, and never all or nothing by rounding', () => {
    const before = unit({}, { memory: undefined });
    expect([shareOfAll, shareOfWeightsAndKv, shareOfFree, kvGibibytes].map((of) => of(before))).toEqual(
      Array(4).fill(undefined),
    );
    const tiny = unit({}, { weight_bytes: 0, memory: { device_bytes: gib, kv_bytes: 1, share: 1 } });
    expect([shareOfWeightsAndKv(tiny), shareOfFree(tiny), kvGibibytes(tiny)]).toEqual([0.001, 0.001, 1]);
    const full = unit({}, { weight_bytes: 79 * gib, memory: { ...memory, kv_bytes: 20 * gib } });
    expect(shareOfFree(full)).toBe(1);
  });
});

describe('on GPUs', () => {
  it.each([
    ['vllm', '--gpu-memory-utilization', '0.9'],
    ['sglang', '--mem-fraction-static', '0.825'],
    ['lmdeploy', '--cache-max-entry-count', '0.781'],
    ['tensorrt-llm', '--kv_cache_free_gpu_memory_fraction', '0.781'],
    ['tgi', '--cuda-memory-fraction', '0.9'],
  ] as const)('%s is told its memory by %s', (engine, name, expected) => {
    expect(value(engine, unit(), name)).toBe(expected);
    expect(value(engine, unit({}, { memory: undefined }), name)).toBeUndefined();
    const own = line(engine, unit({ engine_args: [`${name}=0.5`] })).argv.filter((word) =>
      word.startsWith(name),
    );
    expect(own).toEqual([`${name}=0.5`]);
  });

  it.each([
    ['vllm', '--max-model-len', '--max-num-seqs', '--max-num-batched-tokens'],
    ['sglang', '--context-length', '--max-running-requests', '--chunked-prefill-size'],
    ['lmdeploy', '--session-len', '--max-batch-size', '--max-prefill-token-num'],
    ['tensorrt-llm', '--max_seq_len', '--max_batch_size', '--max_num_tokens'],
    ['tgi', '--max-total-tokens', '--max-concurrent-requests', '--max-batch-prefill-tokens'],
  ] as const)(
    '%s chooses its own limits unless it was asked for others',
    (engine, context, sequences, tokens) => {
      const plain = line(engine, unit()).argv;
      for (const name of [context, sequences, tokens]) expect(plain).not.toContain(name);
      const asked = line(
        engine,
        unit({ max_sequences: 40, prefill_chunk_tokens: 256 }, { context_told: true }),
      ).argv;
      expect([context, sequences, tokens].map((name) => wordAfter(asked, name))).toEqual([
        '131072',
        '40',
        '256',
      ]);
      const own = unit({ max_sequences: 40, engine_args: [sequences, '7'] });
      expect(line(engine, own).argv.filter((word) => word === sequences)).toHaveLength(1);
    },
  );

  it('TGI is not told a longest prompt without a longest sequence', () => {
    expect(value('tgi', unit(), '--max-input-tokens')).toBeUndefined();
    expect(value('tgi', unit({}, { context_told: true }), '--max-input-tokens')).toBe('131071');
  });
});

describe('on CPUs', () => {
  const cpu = (model: Partial<ModelSpec> = {}): UnitSpec =>
    unit(model, { device_kind: 'cpu', memory: { ...memory, kv_bytes: 1.5 * gib } });

  it('vLLM is told its KV in bytes, or in whole GiB where its version knows nothing else', () => {
    const now = line('vllm', cpu());
    expect(wordAfter(now.argv, '--kv-cache-memory-bytes')).toBe(String(1.5 * gib));
    expect(now.env).not.toHaveProperty('VLLM_CPU_KVCACHE_SPACE');
    for (const version of ['0.29.1', '0.8.5', 'unknown']) {
      const before = line('vllm', cpu(), version);
      expect(before.argv).not.toContain('--kv-cache-memory-bytes');
      expect(before.env.VLLM_CPU_KVCACHE_SPACE).toBe('1');
    }
    // A share would be one of all of the node's memory.
    expect(now.argv).not.toContain('--gpu-memory-utilization');
  });

  it('vLLM is told nothing where model.yaml says how much, in whichever way', () => {
    for (const model of [
      { engine_args: ['--gpu-memory-utilization', '0.3'] },
      { engine_args: ['--kv_cache_memory_bytes=1g'] },
      { environment: { VLLM_CPU_KVCACHE_SPACE: '7' } },
    ])
      for (const version of ['0.32.0', '0.10.0']) {
        const { argv, env } = line('vllm', cpu(model), version);
        expect(argv.filter((word) => word === '--kv-cache-memory-bytes')).toEqual([]);
        expect(env).not.toHaveProperty('VLLM_CPU_KVCACHE_SPACE');
      }
  });

  it('SGLang is told how many tokens its KV holds', () => {
    expect(value('sglang', cpu(), '--max-total-tokens')).toBe('400000');
    expect(value('sglang', cpu(), '--mem-fraction-static')).toBeUndefined();
    expect(value('sglang', cpu({ engine_args: ['--max-total-tokens', '9'] }), '--max-total-tokens')).toBe(
      '9',
    );
  });
});

it('llama-server has all of the KV in its context, and as many slots as the plan counts', () => {
  const of = unit({}, { context_tokens: 8192, kv_tokens: 40_000, max_sequences: 4 });
  expect(value('llama.cpp', of, '--ctx-size')).toBe('40000');
  expect(value('llama.cpp', of, '--parallel')).toBe('4');
  const own = { ...of, model: { ...of.model, engine_args: ['-c', '512', '-np', '1', '-ngl', '3'] } };
  for (const name of ['--ctx-size', '--parallel', '--n-gpu-layers'])
    expect(line('llama.cpp', own).argv).not.toContain(name);
});

it('Ollama has as many slots as the plan counts', () => {
  const of = unit({}, { context_tokens: 8192, max_sequences: 3 });
  expect(line('ollama', of).env).toMatchObject({ OLLAMA_NUM_PARALLEL: '3', OLLAMA_CONTEXT_LENGTH: '8192' });
});

it('options are the same with a value behind them, and with the other dash', () => {
  expect(isGiven(['--max_num_seqs=3'], ['--max-num-seqs'])).toBe(true);
  expect(isGiven(['--max-num-seqs-more', '3'], ['--max-num-seqs'])).toBe(false);
  expect(isGiven(['x'], ['--max-num-seqs'])).toBe(false);
});
