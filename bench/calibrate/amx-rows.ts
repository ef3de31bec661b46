/**
 * Steps of the native engine and of libllama on two cores of a Xeon with AMX (`npm run bench -- engine`, quiet, medians
 * of three alternating pairs): the true shape of Llama-3.2-1B with random weights. Left out: types that the native
 * engine leaves to ggml's kernels, where it has libllama's rates within a tenth; and BF16 by libllama (8.86, 80.7 and
 * 51.0 tokens/s), whose products are another kind than those of its quantized types.
 */
import type { DeviceSpec } from '../../solver/catalog/device-spec.ts';
import { findDevice } from '../../solver/catalog/devices.ts';
import { findModel } from '../../solver/catalog/known-models.ts';
import { weightPrecision } from '../../solver/catalog/weight-precision.ts';
import type { Calibration } from '../../solver/simulator/calibration.ts';
import { replicaOf } from '../../solver/simulator/deployment.ts';

export type AmxEngine = 'native' | 'llamacpp';

export interface AmxRow {
  engine: AmxEngine;
  weights: 'bf16' | 'q8_0' | 'q4_0';
  step: keyof typeof steps;
  tokens_per_s: number;
}

/** What one step computes: rows that decode, keys before each, and tokens of a prompt. */
const steps = {
  alone: { decoding: 1, keys: 68, prompt_tokens: 0 },
  prompt: { decoding: 0, keys: 0, prompt_tokens: 512 },
  batch: { decoding: 16, keys: 36, prompt_tokens: 0 },
} as const;

export const amxSource =
  'the native engine and libllama on two cores of a Xeon with AMX (26 GB/s), shape of Llama-3.2-1B';

// biome-ignore format: one measured series a line reads as the table it is
const series: readonly (readonly [AmxEngine, AmxRow['weights'], alone: number, prompt: number, batch: number])[] = [
  ['native', 'bf16', 11.7, 772, 161],
  ['native', 'q8_0', 18.7, 524, 178],
  ['llamacpp', 'q8_0', 20.2, 233, 133],
  ['llamacpp', 'q4_0', 27.5, 206, 105],
];

export const amxRows: readonly AmxRow[] = series.flatMap(([engine, weights, alone, prompt, batch]) =>
  Object.entries({ alone, prompt, batch }).map(
    ([step, tokens_per_s]): AmxRow => ({ engine, weights, step: step as AmxRow['step'], tokens_per_s }),
  ),
);

/** What one core of a large socket has at 2.6 GHz; decoding drew 29 GB/s, more than one large product does. */
const core_hz = 2.6e9;
const amx_flops_per_cycle = 2048;
const bandwidth_bytes_per_s = 30e9;

const cores = 2;

function device(): DeviceSpec {
  const bf16 = cores * core_hz * amx_flops_per_cycle;
  return {
    ...findDevice('Xeon-8480+'),
    name: 'two cores of a Xeon',
    cores,
    peak_flops_per_s: { fp32: bf16 / 32, bf16, int8: 2 * bf16 },
    memory_bandwidth_bytes_per_s: bandwidth_bytes_per_s,
  };
}

/** Tokens per second of one step after another. */
export function predictAmx({ engine, weights, step }: AmxRow, calibration?: Calibration): number {
  const { model } = replicaOf({
    model: { ...findModel('llama-3.2-1b'), weights: weightPrecision(weights) },
    device: device(),
    engine,
    tp: 1,
    pp: 1,
    kv_tokens: 1e5,
    calibration,
  });
  const { decoding, keys, prompt_tokens } = steps[step];
  const chunks = prompt_tokens > 0 ? [{ tokens: prompt_tokens, before: 0, last: true }] : [];
  const all_keys = decoding * keys;
  return (decoding + prompt_tokens) / model.stepTime_s(decoding, all_keys, all_keys, chunks);
}
