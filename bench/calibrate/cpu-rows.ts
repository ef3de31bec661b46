/**
 * Engines on two cores of an AMD EPYC (Zen 5: AVX-512 BF16, no AMX) with a model of the shape of Qwen3-0.6B and random
 * weights: vLLM 0.32 and the native engine, side by side on the same day. Closed loops of so many clients.
 */
import { partOfSocket } from '../../solver/catalog/cpu-estimate.ts';
import type { DeviceSpec } from '../../solver/catalog/device-spec.ts';
import { findDevice } from '../../solver/catalog/devices.ts';
import { findModel } from '../../solver/catalog/known-models.ts';
import { weightPrecision } from '../../solver/catalog/weight-precision.ts';
import type { Calibration } from '../../solver/simulator/calibration.ts';
import { requestColumns } from '../../solver/simulator/requests.ts';
import { simulateServing } from '../../solver/simulator/simulate.ts';

export type CpuEngine = 'vllm' | 'native';

export interface CpuRow {
  engine: CpuEngine;
  weights: 'bf16' | 'q8_0' | 'q4_0';
  cores: number;
  input_tokens: number;
  output_tokens: number;
  clients: number;
  /** Output tokens per second of all clients, or the time of the first token of one prompt alone. */
  metric: 'tokens_per_s' | 'ttft_s';
  measured: number;
}

export const cpuSource =
  'vLLM 0.32 and the native engine on two cores of an AMD EPYC (Zen 5, AVX-512 BF16, no AMX), shape of Qwen3-0.6B';

type Series = readonly [
  engine: CpuEngine,
  weights: CpuRow['weights'],
  cores: number,
  input: number,
  output: number,
  measured: Readonly<Record<number, number>>,
];

// biome-ignore format: one measured series a line reads as the table it is
const series: readonly Series[] = [
  ['vllm', 'bf16', 2, 512, 64, { 1: 19, 4: 42, 16: 58 }],
  ['native', 'bf16', 2, 512, 64, { 1: 15, 4: 18, 16: 22 }],
  ['native', 'q8_0', 2, 512, 64, { 1: 17, 4: 17, 16: 23 }],
  ['native', 'q4_0', 2, 512, 64, { 1: 28, 4: 33, 16: 37 }],
  ['vllm', 'bf16', 1, 512, 64, { 1: 15, 4: 26, 16: 32 }],
  ['native', 'bf16', 1, 512, 64, { 1: 9.5, 4: 12, 16: 13.5 }],
  ['vllm', 'bf16', 2, 8, 128, { 1: 26, 8: 140, 16: 228, 32: 306 }],
  ['native', 'bf16', 2, 8, 128, { 1: 29, 8: 89, 16: 137, 32: 138 }],
  ['native', 'q4_0', 2, 8, 128, { 1: 63, 8: 129, 16: 161, 32: 174 }],
];
const firstTokens: readonly (readonly [CpuEngine, CpuRow['weights'], seconds: number])[] = [
  ['vllm', 'bf16', 0.66],
  ['native', 'bf16', 1.9],
  ['native', 'q8_0', 2.1],
  ['native', 'q4_0', 1.1],
];

export const cpuRows: readonly CpuRow[] = [
  ...series.flatMap(([engine, weights, cores, input_tokens, output_tokens, measured]) =>
    Object.entries(measured).map(
      ([clients, value]): CpuRow => ({
        engine,
        weights,
        cores,
        input_tokens,
        output_tokens,
        clients: Number(clients),
        metric: 'tokens_per_s',
        measured: value,
      }),
    ),
  ),
  ...firstTokens.map(
    ([engine, weights, seconds]): CpuRow => ({
      engine,
      weights,
      cores: 2,
      input_tokens: 512,
      output_tokens: 1,
      clients: 1,
      metric: 'ttft_s',
      measured: seconds,
    }),
  ),
];

/** Kept out: one core, and four clients. */
export function cpuIsFitted({ cores, clients }: CpuRow): boolean {
  return cores === 2 && clients !== 4;
}

/**
 * The catalog's peaks are at base clock (2.7 GHz), at which a socket works as a whole; two cores alone run at the
 * boost clock (4.1 GHz), and shares are of what they could do.
 */
const boost = 4.1 / 2.7;

function deviceOf(cores: number): DeviceSpec {
  const device = partOfSocket(findDevice('EPYC-9755'), cores, 1);
  return {
    ...device,
    peak_flops_per_s: Object.fromEntries(
      Object.entries(device.peak_flops_per_s).map(([precision, peak]) => [precision, peak * boost]),
    ),
  };
}

/** What each engine computed at once, and in one step. */
const batches = {
  vllm: { max_sequences: 128, max_batched_tokens: 2048 },
  native: { max_sequences: 16, max_batched_tokens: 256 },
} as const;

/** As measured: tokens per second of a closed loop, or seconds. */
export function predictCpu(row: CpuRow, calibration?: Calibration): number {
  const requests = requestColumns(
    Array.from({ length: 8 * row.clients }, () => ({
      arrival_s: 0,
      input_tokens: row.input_tokens,
      output_tokens: row.output_tokens,
    })),
  );
  const { report } = simulateServing(
    [
      {
        model: { ...findModel('qwen3-0.6b'), weights: weightPrecision(row.weights) },
        device: deviceOf(row.cores),
        engine: row.engine,
        tp: 1,
        pp: 1,
        dp: 1,
        kv_tokens: 131_072,
        ...batches[row.engine],
        calibration,
      },
    ],
    requests,
    { concurrency: row.clients },
  );
  return row.metric === 'ttft_s' ? report.ttft_ms.mean / 1000 : report.output_tokens_per_s;
}
