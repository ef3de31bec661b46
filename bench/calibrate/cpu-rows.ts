/**
 * Engines on two cores of CPUs without AMX, random weights, closed loops of so many clients. An AMD EPYC (Zen 5), shape
 * of Qwen3-0.6B: vLLM 0.32, and the native engine with ggml's kernels, which stands for llama.cpp. An AMD EPYC (Zen 4),
 * shape of Llama-3.2-1B: the native engine with its own kernels (`npm run bench -- engine --beside vllm --clients
 * 1,4,16,32 --pairs 1`). Both have AVX-512 with BF16 and VNNI.
 */
import { partOfSocket } from '../../solver/catalog/cpu-estimate.ts';
import type { DeviceSpec } from '../../solver/catalog/device-spec.ts';
import { findDevice } from '../../solver/catalog/devices.ts';
import { findModel } from '../../solver/catalog/known-models.ts';
import { weightPrecision } from '../../solver/catalog/weight-precision.ts';
import type { Calibration } from '../../solver/simulator/calibration.ts';
import { requestColumns } from '../../solver/simulator/requests.ts';
import { simulateServing } from '../../solver/simulator/simulate.ts';

export type CpuEngine = 'vllm' | 'native' | 'llamacpp';

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

const zen5 = 'two cores of an AMD EPYC (Zen 5, AVX-512 BF16, no AMX), shape of Qwen3-0.6B';
export const cpuSources: Readonly<Record<CpuEngine, string>> = {
  vllm: `vLLM 0.32 on ${zen5}`,
  native:
    'the native engine with its own kernels on two cores of an AMD EPYC (Zen 4, AVX-512 BF16 and VNNI, no AMX), shape of Llama-3.2-1B',
  llamacpp: `the native engine with ggml’s kernels on ${zen5}`,
};

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
  ['llamacpp', 'bf16', 2, 512, 64, { 1: 15, 4: 18, 16: 22 }],
  ['llamacpp', 'q8_0', 2, 512, 64, { 1: 17, 4: 17, 16: 23 }],
  ['llamacpp', 'q4_0', 2, 512, 64, { 1: 28, 4: 33, 16: 37 }],
  ['vllm', 'bf16', 1, 512, 64, { 1: 15, 4: 26, 16: 32 }],
  ['llamacpp', 'bf16', 1, 512, 64, { 1: 9.5, 4: 12, 16: 13.5 }],
  ['vllm', 'bf16', 2, 8, 128, { 1: 26, 8: 140, 16: 228, 32: 306 }],
  ['llamacpp', 'bf16', 2, 8, 128, { 1: 29, 8: 89, 16: 137, 32: 138 }],
  ['llamacpp', 'q4_0', 2, 8, 128, { 1: 63, 8: 129, 16: 161, 32: 174 }],
  ['native', 'q8_0', 2, 512, 64, { 1: 11, 4: 20.9, 16: 25.5, 32: 26.5 }],
  ['native', 'q4_0', 2, 512, 64, { 1: 15.5, 4: 22.4, 16: 25.2, 32: 26.5 }],
  ['native', 'q8_0', 2, 8, 128, { 1: 13.6, 4: 74.6, 16: 128.1, 32: 156.7 }],
  ['native', 'q4_0', 2, 8, 128, { 1: 26, 4: 71.9, 16: 116, 32: 140.1 }],
];
const firstTokens: readonly (readonly [CpuEngine, CpuRow['weights'], seconds: number])[] = [
  ['vllm', 'bf16', 0.66],
  ['llamacpp', 'bf16', 1.9],
  ['llamacpp', 'q8_0', 2.1],
  ['llamacpp', 'q4_0', 1.1],
  ['native', 'q8_0', 2.103],
  ['native', 'q4_0', 1.759],
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
 * The catalog's peaks are at base clock (2.7 and 2.4 GHz), at which a socket works as a whole; two cores alone run at
 * the boost clock (4.1 and 3.7 GHz), and shares are of what they could do.
 */
const measuredOn = {
  zen5: { socket: 'EPYC-9755', boost: 4.1 / 2.7, model: 'qwen3-0.6b' },
  zen4: { socket: 'EPYC-9654', boost: 3.7 / 2.4, model: 'llama-3.2-1b' },
} as const;

function cpuOf({ engine }: CpuRow): (typeof measuredOn)[keyof typeof measuredOn] {
  return measuredOn[engine === 'native' ? 'zen4' : 'zen5'];
}

function deviceOf(row: CpuRow): DeviceSpec {
  const { socket, boost } = cpuOf(row);
  const device = partOfSocket(findDevice(socket), row.cores, 1);
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
  native: { max_sequences: 32, max_batched_tokens: 256 },
  llamacpp: { max_sequences: 16, max_batched_tokens: 256 },
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
        model: { ...findModel(cpuOf(row).model), weights: weightPrecision(row.weights) },
        device: deviceOf(row),
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
