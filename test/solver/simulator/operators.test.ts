/** Times worked out by hand, on a device of round numbers. */
import { describe, expect, it } from 'vitest';
import type { DeviceSpec } from '../../../solver/catalog/device-spec.ts';
import { findDevice, findInterconnect } from '../../../solver/catalog/devices.ts';
import { findModel } from '../../../solver/catalog/known-models.ts';
import type { ModelShape } from '../../../solver/catalog/model-shape.ts';
import { weightPrecision } from '../../../solver/catalog/weight-precision.ts';
import { calibrationFor, roofline, simulatedEngines } from '../../../solver/simulator/calibration.ts';
import { allReduceTime_s } from '../../../solver/simulator/collectives.ts';
import { gemmTime_s, smoothMaximum } from '../../../solver/simulator/gemm.ts';
import { computeOn } from '../../../solver/simulator/operators.ts';
import { StepModel } from '../../../solver/simulator/step-model.ts';

/** 100 TFLOP/s, 1 TB/s, links of 100 GB/s. */
const device: DeviceSpec = {
  ...findDevice('A100'),
  peak_flops_per_s: { bf16: 100e12 },
  memory_bandwidth_bytes_per_s: 1e12,
  link: { name: 'test', bandwidth_bytes_per_s: 100e9, devices: 8 },
};
const interconnect = findInterconnect('slingshot-11');
const shape: ModelShape = {
  name: 'hand',
  n_layer: 2,
  n_embd: 1000,
  n_head: 10,
  n_head_kv: 5,
  head_dim: 100,
  n_ff: 4000,
  gated_ffn: true,
  n_vocab: 10_000,
  tied_embeddings: false,
  weights: weightPrecision('bf16'),
};
const model = (change: Partial<ModelShape> = {}, tp = 1): StepModel =>
  new StepModel({
    shape: { ...shape, ...change },
    device,
    tp,
    pp: 1,
    interconnect,
    kv_bits: 16,
    calibration: roofline,
  });

describe('roofline of one product', () => {
  const gemm = { name: 'g', inner: 1000, columns: 2000, bits_per_weight: 16, compute: 'bf16' as const };
  it('is memory-bound for one row: weights and activations at 1 TB/s', () => {
    const bytes = 1000 * 2000 * 2 + (1000 + 2000) * 2;
    expect(gemmTime_s(gemm, 1, device, roofline.device)).toBeCloseTo(bytes / 1e12, 15);
  });
  it('is compute-bound for ten thousand rows: 2·m·n·k at 100 TFLOP/s', () => {
    expect(gemmTime_s(gemm, 10_000, device, roofline.device)).toBeCloseTo(
      (2 * 1e4 * 1000 * 2000) / 100e12,
      12,
    );
  });
  it('reads half the bytes of 8-bit weights', () => {
    const narrow = gemmTime_s({ ...gemm, bits_per_weight: 8 }, 1, device, roofline.device);
    expect(narrow).toBeCloseTo((1000 * 2000 + 3000 * 2) / 1e12, 15);
  });
  it('takes the precision that the device has', () => {
    expect(computeOn(findDevice('V100'), 'bf16')).toBe('fp16');
    expect(computeOn(findDevice('A100'), 'fp8')).toBe('bf16');
    expect(computeOn(findDevice('H100'), 'fp8')).toBe('fp8');
    expect(computeOn(findDevice('H100'), 'fp4')).toBe('bf16');
    expect(computeOn(findDevice('B200'), 'fp4')).toBe('fp4');
    expect(computeOn(findDevice('EPYC-7763'), 'bf16')).toBe('fp32');
  });
  it('smooths between the two as a p-norm', () => {
    expect(smoothMaximum(3, 4, 2)).toBeCloseTo(5);
    expect(smoothMaximum(3, 4, Number.POSITIVE_INFINITY)).toBe(4);
    expect(smoothMaximum(0, 0, 2)).toBe(0);
  });
});

describe('one decode step by hand', () => {
  // Per layer: qkv 1000×2000, out 1000×1000, up 1000×8000, down 4000×1000 = 15 M weights of 2 bytes.
  const weights = 15e6 * 2;
  const activations = (1000 + 2000 + 1000 + 1000 + 1000 + 8000 + 4000 + 1000) * 2;
  const small = (8 * 1000 + 2 * (10 + 5) * 100 + 3 * 4000) * 2;
  const output = (1000 * 10_000 + 1000 + 10_000) * 2;
  it('reads weights, keys and values once', () => {
    const keys = 2 * 5 * 100 * 2;
    const seconds = model().stepTime_s(1, 500, 500);
    expect(seconds * 1e12).toBeCloseTo(2 * (weights + activations + small + 500 * keys) + output, 0);
  });
  it('attends within the window only, in the layers that slide', () => {
    const sliding = model({ sliding_window: { tokens: 100, n_layer: 1 } });
    const keys = 2 * 5 * 100 * 2;
    const gap = model().stepTime_s(1, 500, 500) - sliding.stepTime_s(1, 500, 100);
    expect(gap * 1e12).toBeCloseTo(400 * keys, 0);
  });
  it('reads of the experts those that are hit', () => {
    const experts = { count: 8, used_per_token: 2, n_ff: 500, shared_n_ff: 0, n_layer: 2 };
    const moe = model({ n_ff: 0, experts });
    // One token hits 2 of 8; many tokens hit all 8.
    const matrix = 3 * 1000 * 500 * 2;
    expect(moe.parts(1, 0).experts * 1e12).toBeCloseTo(
      2 * (2 * matrix + 2 * (1000 + 1000 + 500 + 1000) * 2),
      0,
    );
    const hit = 8 * (1 - (1 - 2 / 8) ** 4);
    expect(moe.parts(4, 0).experts * 1e12).toBeCloseTo(2 * (hit * matrix + 8 * 3500 * 2), 0);
  });
  it('keeps one latent vector a token for latent attention, on every device', () => {
    const latent = { kv_rank: 512, q_rank: 0, rope_dim: 64, nope_dim: 128, v_dim: 128 };
    const mla = (tp: number): number => model({ latent }, tp).decodeAttention_s(1e6, 0);
    // 10 heads × 2 × (2·512 + 64) operations at 100 TFLOP/s are less than 576 × 2 bytes at 1 TB/s.
    expect(mla(1)).toBeCloseTo((2 * 1e6 * 576 * 2) / 1e12, 9);
    expect(mla(2)).toBe(mla(1));
  });
});

describe('prompts by hand', () => {
  it('attends causally: n(n+1)/2 pairs of 4·heads·dim operations', () => {
    const pairs = (2000 * 2001) / 2;
    expect(model().prefillAttention_s(2000, 0)).toBeCloseTo((2 * pairs * 4 * 10 * 100) / 100e12, 9);
  });
  it('costs the same in chunks as whole', () => {
    const whole = model().prefillAttention_s(3000, 0);
    const chunks = [0, 1000, 2000].reduce((sum, before) => sum + model().prefillAttention_s(1000, before), 0);
    expect(chunks).toBeCloseTo(whole, 9);
  });
  it('counts pairs within a window as a plain loop does', () => {
    const sliding = model({ sliding_window: { tokens: 700, n_layer: 2 } });
    let pairs = 0;
    for (let position = 501; position <= 1500; position++) pairs += Math.min(position, 700);
    expect(sliding.prefillAttention_s(1000, 500)).toBeCloseTo((2 * pairs * 4000) / 100e12, 9);
  });
});

describe('collectives', () => {
  const { link } = device;
  it('move 2(n−1)/n of the message around a ring', () => {
    const seconds = allReduceTime_s(1e9, 4, link, interconnect, roofline.device, Number.POSITIVE_INFINITY);
    expect(seconds).toBeCloseTo((1.5 * 1e9) / 100e9, 9);
  });
  it('cost nothing on one device, and go at the network’s pace beyond the link’s domain', () => {
    expect(allReduceTime_s(1e9, 1, link, interconnect, roofline.device, 1)).toBe(0);
    const far = allReduceTime_s(1e9, 16, link, interconnect, roofline.device, 0);
    expect(far).toBeCloseTo((1.875 * 1e9) / 25e9 + 2 * interconnect.latency_s, 6);
  });
  it('take one shot for small messages', () => {
    const constants = { ...roofline.device, ring_s: 50e-6 };
    expect(allReduceTime_s(1000, 2, link, interconnect, constants, 5e-6)).toBeCloseTo(
      5e-6 + 1000 / 100e9,
      12,
    );
  });
  it('halve the weights and add two all-reduces a layer', () => {
    const one = model().parts(1, 0);
    const two = model({}, 2).parts(1, 0);
    expect(two.feed_forward / one.feed_forward).toBeGreaterThan(0.5);
    expect(two.feed_forward / one.feed_forward).toBeLessThan(0.51);
    expect(two.collectives).toBeCloseTo((4 * 1000 * 2) / 100e9, 12);
  });
});

it('has constants for every engine on every family, or names whose stand in', () => {
  for (const engine of simulatedEngines)
    for (const family of [
      'volta',
      'ampere',
      'ada',
      'hopper',
      'blackwell',
      'cdna3',
      'cpu-amx',
      'cpu',
    ] as const) {
      const { device: constants, device_source } = calibrationFor(engine, family);
      expect(constants.gemm_compute).toBeLessThanOrEqual(1);
      if (family === 'cdna3') expect(device_source).toMatch(/cdna3 is not measured; hopper/);
    }
});

/**
 * A few measured points, from NVIDIA AIConfigurator's silicon data (Apache-2.0) and Vidur (MIT), that keep the
 * calibration honest where the full tables are not at hand; bench/simulator judges it on all of them.
 */
it('comes near iterations measured on an A100', () => {
  // LLM-Mesh: llama-3.1-8b under vLLM 0.x; milliseconds.
  const a100 = new StepModel({
    shape: findModel('llama-3.1-8b'),
    device: findDevice('A100'),
    tp: 1,
    pp: 1,
    interconnect,
    kv_bits: 16,
    calibration: calibrationFor('vllm-v0', 'ampere'),
  });
  const decode = a100.stepTime_s(8, 8 * 2048, 0) * 1e3;
  const prompt = a100.stepTime_s(0, 0, 0, [{ tokens: 2048, before: 0, last: true }]) * 1e3;
  expect(Math.abs(decode / 17 - 1)).toBeLessThan(0.15);
  expect(Math.abs(prompt / 160 - 1)).toBeLessThan(0.15);
});
