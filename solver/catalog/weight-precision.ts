/** Storage formats of weights: how many bits each takes, and at which precision it is multiplied. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { nearest } from '../../spec/nearest.ts';
import type { ComputePrecision } from './device-spec.ts';

export interface WeightPrecision {
  name: string;
  /** Scales and minima included. */
  bits_per_weight: number;
  /**
   * What the multiplication runs at where the device can; weight-only formats are widened to 16 bits first,
   * so they save memory traffic and no arithmetic.
   */
  compute: ComputePrecision;
}

const wide = 'bf16' as const;
/**
 * GGUF's block layouts: bits = block bytes × 8 / block weights (ggml-common.h); K mixtures (`_M`, `_S`) as
 * llama.cpp's quantize lists them for an 8 B Llama. GPTQ and AWQ: 4 bits, 16-bit scale and 4-bit zero per 128.
 * NVFP4: 4 bits and an 8-bit scale per 16; MXFP4: per 32 (OCP Microscaling Formats 1.0).
 */
const formats: Readonly<Record<string, readonly [bits: number, compute: ComputePrecision]>> = {
  f32: [32, 'fp32'],
  f16: [16, 'fp16'],
  bf16: [16, wide],
  fp8: [8, 'fp8'],
  int8: [8, 'int8'],
  int4: [4.16, wide],
  nvfp4: [4.5, 'fp4'],
  mxfp4: [4.25, 'fp4'],
  q8_0: [8.5, wide],
  q6_k: [6.5625, wide],
  q5_k_m: [5.7, wide],
  q5_k_s: [5.57, wide],
  q5_1: [6, wide],
  q5_0: [5.5, wide],
  q4_k_m: [4.89, wide],
  q4_k_s: [4.67, wide],
  q4_1: [5, wide],
  q4_0: [4.5, wide],
  iq4_nl: [4.5, wide],
  q3_k_m: [4, wide],
  q2_k: [3.16, wide],
};

const spellings: Readonly<Record<string, string>> = {
  float32: 'f32',
  fp32: 'f32',
  float16: 'f16',
  fp16: 'f16',
  half: 'f16',
  bfloat16: 'bf16',
  float8: 'fp8',
  fp8_e4m3: 'fp8',
  fp8_e5m2: 'fp8',
  w8a8: 'int8',
  awq: 'int4',
  gptq: 'int4',
  awq_4bit: 'int4',
  gptq_4bit: 'int4',
  w4a16: 'int4',
  fp4: 'nvfp4',
};

export const weightPrecisionNames: readonly string[] = Object.keys(formats);

/** @throws E_SIMULATION_INPUT with the nearest known name. */
export function weightPrecision(name: string): WeightPrecision {
  const found = weightPrecisionIfKnown(name);
  if (found !== undefined) return found;
  const close = nearest(name, [...weightPrecisionNames, ...Object.keys(spellings)]);
  throw new HpcserveError('E_SIMULATION_INPUT', {
    what: `there is no weight precision "${name}"`,
    because: close === undefined ? `known: ${weightPrecisionNames.join(', ')}` : `did you mean ${close}?`,
    try: `name one of ${weightPrecisionNames.join(', ')}`,
  });
}

export function weightPrecisionIfKnown(name: string): WeightPrecision | undefined {
  const folded = name.toLowerCase().replaceAll('-', '_');
  const key = spellings[folded] ?? folded;
  const format = formats[key];
  return format && { name: key, bits_per_weight: format[0], compute: format[1] };
}
