/** What engines keep of each element of their KV caches. */
import { describe, expect, it } from 'vitest';
import { kvBits, kvBytesPerToken } from '../../../solver/catalog/kv-type.ts';
import type { ResolvedEngine } from '../../../spec/plan.ts';
import { llama } from '../placement/support.ts';

function bits(engine: ResolvedEngine, precision: string, asked = {}, files = 'BF16'): number {
  const { spec, summary } = llama('m', '8b', asked);
  return kvBits(engine, { spec, summary: { ...summary!, quantization: files } }, precision);
}

describe('KV without an option for it', () => {
  it.each<[ResolvedEngine, string, number]>([
    ['vllm', 'auto', 16],
    ['vllm', 'bf16', 16],
    ['vllm', 'f32', 32],
    ['vllm', 'fp32', 32],
    ['vllm', 'fp8', 16],
    ['sglang', 'f32', 32],
    ['transformers', 'f32', 32],
    ['lmdeploy', 'fp16', 16],
    ['tgi', 'bf16', 16],
    ['tensorrt-llm', 'auto', 16],
    ['command', 'f32', 16],
  ])('of %s at precision %s', (engine, precision, expected) => {
    expect(bits(engine, precision)).toBe(expected);
  });

  it('follows files of 32 bits where the engine does not make 16 of them', () => {
    const of = (engine: ResolvedEngine): number => bits(engine, 'auto', {}, 'F32');
    expect([of('transformers'), of('vllm'), of('sglang')]).toEqual([32, 16, 16]);
  });

  it('is of the type that model.yaml says where ggml computes', () => {
    const of = (engine: ResolvedEngine, kv_type: string): number => bits(engine, 'auto', { kv_type });
    expect(['f16', 'q8_0', 'f32'].map((type) => of('native', type))).toEqual([16, 8.5, 32]);
    expect(['f16', 'q8_0', 'f32'].map((type) => of('llama.cpp', type))).toEqual([16, 8.5, 32]);
    expect(['f16', 'q8_0', 'f32'].map((type) => of('ollama', type))).toEqual([16, 8.5, 16]);
  });
});

describe('KV with an option in engine_args', () => {
  it.each<[ResolvedEngine, string[], number]>([
    ['vllm', ['--kv-cache-dtype', 'fp8'], 8],
    ['vllm', ['--kv_cache_dtype=fp8_e4m3'], 8],
    ['vllm', ['--kv-cache-dtype', 'auto', '--dtype', 'float32'], 32],
    ['sglang', ['--kv-cache-dtype', 'fp4_e2m1'], 4.5],
    ['tgi', ['--kv-cache-dtype', 'fp8_e5m2'], 8],
    ['lmdeploy', ['--quant-policy', '8'], 8],
    ['llama.cpp', ['-ctk', 'q8_0', '-ctv', 'f16'], (8.5 + 16) / 2],
  ])('of %s with %s', (engine, engine_args, expected) => {
    expect(bits(engine, 'auto', { engine_args })).toBe(expected);
  });
});

it('counts twice as many bytes for a model that vLLM runs at f32', () => {
  const model = llama('m', '8b');
  const [half, full] = ['bf16', 'f32'].map((precision) => kvBytesPerToken('vllm', model, precision));
  expect([half, full]).toEqual([model.kv_bytes_per_token, 2 * model.kv_bytes_per_token]);
});
