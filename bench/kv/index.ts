/**
 * What on-demand KV costs a decode step, and how fast weights come into the pool: Tangram's Table 1 and Figure 11b
 * here.
 */
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { backendOf, deviceOptions, deviceRows, useLibraries } from '../device.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { benchModels } from '../reuse/models.ts';
import { type Decode, decode_setting, measureDecode } from './decode.ts';
import { type LoadRate, type LoadRates, measureLoads } from './load-rate.ts';

export const kvBench: Bench = {
  name: 'kv',
  describe: 'decode with KV taken as it is needed against KV that is reserved, and rates of loads',
  run,
};

async function run({ log, args }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({
    args: [...args],
    options: { 'churn-minutes': { type: 'string', default: '0' }, ...deviceOptions },
  });
  const churn_minutes = Number(values['churn-minutes']);
  if (!(churn_minutes >= 0))
    throw new Error(`--churn-minutes takes a number, not ${values['churn-minutes']}`);
  useLibraries(values.libraries);
  const backend = backendOf(values.device);
  const models = await benchModels('kv', log, [
    { quantization: 'Q4_0', n_layer: 6 },
    { quantization: 'F16', n_layer: 4 },
  ]);
  try {
    const [quantized, plain] = models.paths as [string, string];
    const threads = availableParallelism();
    const peer = backend.upload ? 'upload from page-locked memory' : 'memory copy';
    const all = await measureLoads(backend, plain, quantized, threads);
    const one = await measureLoads(backend, plain, quantized, 1);
    const { fresh, churned, churned_requests } = await measureDecode(backend, quantized, log, churn_minutes);
    return [
      ...deviceRows(values.device),
      ...decodeResults(`decode step, ${decode_setting}`, fresh),
      ...decodeResults(`the same after ${churned_requests} requests that came and went`, churned),
      ...rateResults(`on all ${threads} cores`, peer, all),
      ...rateResults('on one thread', peer, one),
    ];
  } finally {
    models.remove();
  }
}

function decodeResults(what: string, decode: Decode): BenchResult[] {
  const { on_demand_ms, reserved_ms, ratio, allocation_share, extents } = decode;
  return [
    {
      what: `${what} (the paper: 3.2 % slower at most)`,
      unit: 'ms',
      ours: on_demand_ms,
      peer: 'reserved',
      theirs: reserved_ms,
      ratio,
      bar: 'ratio ≥ 0.97',
      holds: ratio >= 0.97,
    },
    {
      what: `${what}: share of taking memory (the paper: 1.3 to 4.1 %)`,
      unit: '%',
      ours: 100 * allocation_share,
      peer: '',
      theirs: null,
      ratio: null,
      bar: '≤ 1 %',
      holds: allocation_share <= 0.01,
    },
    {
      what: `${what}: extents of a sequence at most`,
      unit: '',
      ours: extents,
      peer: '',
      theirs: null,
      ratio: null,
      bar: '',
      holds: null,
    },
  ];
}

function rateResults(where: string, peer: string, { plain, converted }: LoadRates): BenchResult[] {
  return [
    rateResult(`load of a plain layout ${where}`, peer, plain, 0.8),
    ...(converted
      ? [rateResult(`load of a repacked layout ${where}`, 'repacking alone', converted, 0.9)]
      : []),
  ];
}

function rateResult(what: string, peer: string, { ours, theirs, ratio }: LoadRate, bar: number): BenchResult {
  return { what, unit: 'GB/s', ours, peer, theirs, ratio, bar: `ratio ≥ ${bar}`, holds: ratio >= bar };
}
