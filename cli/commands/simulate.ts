import { existsSync, readFileSync, statSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { resolveModelSource } from '../../control/model-source/resolve.ts';
import type { DeviceSpec } from '../../solver/catalog/device-spec.ts';
import {
  type DeviceOverrides,
  findDevice,
  findInterconnect,
  variantsOf,
} from '../../solver/catalog/devices.ts';
import { shapeOfConfig } from '../../solver/catalog/hugging-face-config.ts';
import { findModel } from '../../solver/catalog/known-models.ts';
import { migSlice } from '../../solver/catalog/mig.ts';
import { type ModelShape, parameterCount, shapeOfSummary } from '../../solver/catalog/model-shape.ts';
import { weightPrecision } from '../../solver/catalog/weight-precision.ts';
import { roofline, type SimulatedEngine, simulatedEngines } from '../../solver/simulator/calibration.ts';
import { replicaOf } from '../../solver/simulator/deployment.ts';
import type { RequestColumns } from '../../solver/simulator/requests.ts';
import {
  type ReplicaGroup,
  type ServingReport,
  type ServingResult,
  simulateDisaggregated,
  simulateServing,
} from '../../solver/simulator/simulate.ts';
import type { Distribution } from '../../solver/simulator/statistics.ts';
import { parseTrace } from '../../solver/simulator/trace.ts';
import { drawRequests, type LengthDistribution } from '../../solver/simulator/workload.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { CliContext } from '../context.ts';
import { readDeviceFile } from '../format/device-file.ts';
import { formatBytes } from '../format/quantities.ts';
import { style } from '../format/style.ts';
import { fittedTable } from '../format/table.ts';
import { plotCdf } from '../format/text-plot.ts';
import { textWidth } from '../format/wrap.ts';

interface SimulateOptions {
  model?: string;
  device: string;
  engine: SimulatedEngine;
  precision?: string;
  kvPrecision: '8' | '16';
  tp: number;
  pp: number;
  dp: number;
  prefillDp?: number;
  prefillDevice?: string;
  prefillTp?: number;
  interconnect: string;
  devices?: string;
  rate: number;
  cv: number;
  requests: number;
  input: LengthDistribution;
  output: LengthDistribution;
  concurrency?: number;
  trace?: string;
  maxBatch?: number;
  maxBatchTokens?: number;
  memoryUtilization: number;
  chunkedPrefill: boolean;
  seed: number;
  calibration: boolean;
}

export function registerSimulate(command: Command, context: CliContext): void {
  command
    .option('--model <name>', 'a model of the catalog, instead of a file')
    .requiredOption('--device <name>', 'device of the catalog: A100, GH200, MI300X, Xeon-8480+ …')
    .addOption(new Option('--engine <name>', 'whose behaviour').choices(simulatedEngines).default('vllm'))
    .option('--precision <name>', 'weights: bf16, fp8, int4, nvfp4, Q4_K_M …; the model’s own if not given')
    .addOption(new Option('--kv-precision <bits>', 'bits of the KV cache').choices(['8', '16']).default('16'))
    .option('--tp <n>', 'tensor-parallel degree', natural, 1)
    .option('--pp <n>', 'pipeline stages', natural, 1)
    .option('--dp <n>', 'replicas', natural, 1)
    .option('--prefill-dp <n>', 'replicas for prompts only; the others then only decode', natural)
    .option('--prefill-device <name>', 'device of the prompt replicas, if another')
    .option('--prefill-tp <n>', 'tensor-parallel degree of the prompt replicas, if another', natural)
    .option('--devices <file>', 'JSON file of your own devices, or of changes to the catalog’s')
    .option('--interconnect <name>', 'network between nodes', 'slingshot-11')
    .option('--rate <per_s>', 'requests per second', numeric, 1)
    .option('--cv <x>', 'burstiness of arrivals: 1 is Poisson, above it Gamma, 0 even', numeric, 1)
    .option('--requests <n>', 'how many requests', natural, 1000)
    .addOption(
      new Option('--input <tokens>', 'prompt lengths: N, LOW-HIGH, or MEAN~DEVIATION')
        .argParser(lengths)
        .default({ kind: 'fixed', tokens: 1024 }, '1024'),
    )
    .addOption(
      new Option('--output <tokens>', 'answer lengths, likewise')
        .argParser(lengths)
        .default({ kind: 'fixed', tokens: 256 }, '256'),
    )
    .option('--concurrency <n>', 'keep so many requests outstanding, instead of --rate', natural)
    .option('--trace <file>', 'recorded requests (CSV or JSON lines), instead of --rate and lengths')
    .option('--max-batch <n>', 'sequences that run at once', natural)
    .option('--max-batch-tokens <n>', 'tokens of one step', natural)
    .option('--memory-utilization <share>', 'share of device memory the engine may use', numeric, 0.9)
    .option('--no-chunked-prefill', 'whole prompts in steps of their own')
    .option('--no-calibration', 'a roofline alone: what the hardware could do at best')
    .option('--seed <n>', 'seed of arrivals and lengths', natural, 1)
    .addHelpText(
      'after',
      `
FILE is a GGUF file, a Hugging Face folder or a config.json; nothing is loaded but its header. The figures
are estimates: docs/simulator.md says how they are made and how far off they were where it was measured.

Examples:
  $ hpcserve simulate --model llama-3.1-8b --device A100 --rate 8
  $ hpcserve simulate --model llama-3.3-70b --device GH200 --tp 4 --dp 2 --rate 10 --input 800~300 --output 300~100
  $ hpcserve simulate model.gguf --device L40S --concurrency 16 --json | jq .report.tpot_ms.p50
  $ hpcserve simulate --model llama-3.1-8b --device H100 --trace azure.csv
  $ hpcserve simulate --model qwen3-32b --device H100 --tp 2 --prefill-dp 2 --dp 2 --rate 4`,
    )
    .action(async (file: string | undefined, options: SimulateOptions) => {
      const shape = await shapeOf(context, file, options);
      const overrides =
        options.devices === undefined
          ? {}
          : readDeviceFile(resolve(context.working_folder, options.devices), options.devices);
      const group = groupOf(shape, options, overrides);
      const requests = requestsOf(context, options);
      const { result, prefill } = simulated(group, requests, options, overrides);
      if (result.report.refused === result.report.requests) throw nothingFits(group, requests);
      if (context.json) {
        context.out(JSON.stringify(jsonOf(shape, group, prefill, result)));
        return;
      }
      print(context, shape, group, prefill, result);
    });
}

async function shapeOf(
  context: CliContext,
  file: string | undefined,
  options: SimulateOptions,
): Promise<ModelShape> {
  if ((file === undefined) === (options.model === undefined))
    throw new HpcserveError('E_USAGE', {
      what: file === undefined ? 'no model is named' : 'both a file and --model are given',
      try: 'name a model file, or give --model NAME',
    });
  const shape = await readShape(context, file ?? options.model!, file !== undefined);
  return options.precision === undefined ? shape : { ...shape, weights: weightPrecision(options.precision) };
}

async function readShape(context: CliContext, name: string, isFile: boolean): Promise<ModelShape> {
  const path = resolve(context.working_folder, name);
  if (!isFile || !existsSync(path)) return findModel(name);
  // A config.json tells more of the shape than the headers of the weights beside it.
  const config = statSync(path).isDirectory() ? join(path, 'config.json') : path;
  if (config.endsWith('.json') && existsSync(config))
    return shapeOfConfig(parseJson(readFileSync(config, 'utf8'), name), basename(dirname(config)));
  const { summary } = await resolveModelSource(path, {
    base_folder: context.working_folder,
    environment: context.environment,
  });
  return shapeOfSummary(summary);
}

function parseJson(text: string, name: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new HpcserveError('E_MODEL_SHAPE', { what: `${name} is not JSON`, because: String(cause), cause });
  }
}

function groupOf(model: ModelShape, options: SimulateOptions, overrides: DeviceOverrides): ReplicaGroup {
  return {
    model,
    device: deviceOf(options.device, overrides),
    engine: options.engine,
    tp: options.tp,
    pp: options.pp,
    dp: options.dp,
    interconnect: findInterconnect(options.interconnect),
    kv_bits: options.kvPrecision === '8' ? 8 : 16,
    memory_utilization: options.memoryUtilization,
    max_sequences: options.maxBatch,
    max_batched_tokens: options.maxBatchTokens,
    chunked_prefill: options.chunkedPrefill ? undefined : false,
    calibration: options.calibration ? undefined : roofline,
  };
}

function nothingFits(group: ReplicaGroup, requests: RequestColumns): HpcserveError {
  const { limits, memory } = replicaOf(group);
  let shortest = Number.POSITIVE_INFINITY;
  for (const [row, input] of requests.input_tokens.entries())
    shortest = Math.min(shortest, input + requests.output_tokens[row]!);
  return new HpcserveError('E_SIMULATION_MEMORY', {
    what: 'no request of this workload fits into the KV cache',
    because: `the shortest has ${shortest} tokens with its answer, and the cache of a replica holds ${limits.kv_tokens}`,
    try: ['shorten the requests', 'use more devices per replica, or an 8-bit KV cache'],
    details: { ...memory, shortest_tokens: shortest },
  });
}

/** A device of the file or the catalog, or a slice of one: `H100 MIG 3g.40gb`. */
function deviceOf(name: string, overrides: DeviceOverrides): DeviceSpec {
  const slice = migSlice(name);
  return slice === undefined ? findDevice(name, overrides) : { ...slice.device, ...overrides[name] };
}

function requestsOf(context: CliContext, options: SimulateOptions): RequestColumns {
  if (options.trace === undefined)
    return drawRequests({
      rate_per_s: options.rate,
      arrival_cv: options.cv,
      requests: options.requests,
      input: options.input,
      output: options.output,
      seed: options.seed,
    });
  const path = resolve(context.working_folder, options.trace);
  if (!existsSync(path) || !statSync(path).isFile())
    throw new HpcserveError('E_SIMULATION_INPUT', { what: `there is no trace file ${options.trace}` });
  return parseTrace(readFileSync(path, 'utf8'), options.trace);
}

function simulated(
  group: ReplicaGroup,
  requests: RequestColumns,
  options: SimulateOptions,
  overrides: DeviceOverrides,
): { result: ServingResult; prefill: ReplicaGroup | undefined } {
  const { prefillDp, prefillDevice, prefillTp, concurrency } = options;
  if (concurrency === 0)
    throw new HpcserveError('E_SIMULATION_INPUT', {
      what: 'with a concurrency of 0 no request is ever sent',
      try: 'give --concurrency 1 or more, or --rate',
    });
  if (prefillDp === undefined) {
    if (prefillDevice !== undefined || prefillTp !== undefined)
      throw new HpcserveError('E_USAGE', {
        what: 'prompt replicas are described, and none are asked for',
        try: 'give --prefill-dp N too',
      });
    return {
      result: simulateServing([group], requests, concurrency === undefined ? {} : { concurrency }),
      prefill: undefined,
    };
  }
  if (concurrency !== undefined)
    throw new HpcserveError('E_USAGE', { what: '--concurrency and --prefill-dp cannot be combined' });
  const prefill: ReplicaGroup = {
    ...group,
    dp: prefillDp,
    tp: prefillTp ?? group.tp,
    device: prefillDevice === undefined ? group.device : deviceOf(prefillDevice, overrides),
  };
  return { result: simulateDisaggregated({ prefill, decode: group }, requests), prefill };
}

function jsonOf(
  shape: ModelShape,
  group: ReplicaGroup,
  prefill: ReplicaGroup | undefined,
  { report }: ServingResult,
): object {
  const { memory, limits, model } = replicaOf(group);
  return {
    model: shape.name,
    weights: shape.weights.name,
    device: group.device.name,
    engine: group.engine,
    tp: group.tp,
    pp: group.pp,
    dp: group.dp,
    ...(prefill && { prefill: { device: prefill.device.name, tp: prefill.tp, dp: prefill.dp } }),
    memory,
    limits,
    calibration: {
      device: model.input.calibration.device_source,
      engine: model.input.calibration.engine_source,
    },
    report,
  };
}

function print(
  context: CliContext,
  shape: ModelShape,
  group: ReplicaGroup,
  prefill: ReplicaGroup | undefined,
  result: ServingResult,
): void {
  const { report } = result;
  const { memory, limits, model } = replicaOf(group);
  const bold = (text: string): string => style('bold', text, context.colour && context.tty.stdout);
  const billions = (parameterCount(shape).total / 1e9).toPrecision(3);
  context.out(
    bold(
      `${shape.name} (${billions} B parameters, ${shape.weights.name}) on ${describe(group)}, ${group.engine}`,
    ),
  );
  if (prefill) context.out(`prompts on ${describe(prefill)}`);
  context.out(
    `per device: ${formatBytes(memory.weight_bytes)} of weights, ${formatBytes(memory.reserve_bytes)} of buffers; KV for ${limits.kv_tokens} tokens per replica`,
  );
  context.out('');
  const titles = ['', 'MEAN', 'P50', 'P90', 'P99', 'MAX'];
  const rows = (
    [
      ['TTFT ms', report.ttft_ms],
      ['TPOT ms', report.tpot_ms],
      ['ITL ms', report.itl_ms],
      ['E2E ms', report.e2e_ms],
    ] as const
  ).map(([name, values]) => [name, ...figures(values)]);
  for (const line of fittedTable(
    titles.map((title, index) => ({ title, ...(index > 0 ? { align: 'right' as const } : {}) })),
    rows,
    textWidth(context),
  ))
    context.out(line);
  context.out('');
  for (const line of summary(report)) context.out(line);
  context.out('');
  const width = Math.max(30, Math.min(72, context.columns - 24));
  const sorted_ms = (values: Float64Array): Float64Array =>
    values
      .filter((value) => !Number.isNaN(value))
      .map((value) => value * 1e3)
      .sort();
  for (const line of plotCdf(
    [
      { label: 'TTFT', mark: '·', sorted: sorted_ms(result.ttft_s) },
      { label: 'E2E', mark: '•', sorted: sorted_ms(result.e2e_s) },
    ],
    { width, height: 11, unit: 'ms' },
  ))
    context.out(line);
  const { device_source, engine_source } = model.input.calibration;
  context.note(`device constants: ${device_source}`);
  context.note(`engine constants: ${engine_source}`);
  const variants = variantsOf(group.device.name.split('-')[0]!).filter(
    ({ kind }) => kind === group.device.kind,
  );
  if (variants.length > 1)
    context.note(`variants of this device: ${variants.map(({ name }) => name).join(', ')}`);
}

function describe({ dp, tp, pp, device }: ReplicaGroup): string {
  const replica = `${tp * pp} × ${device.name}${pp > 1 ? ` (TP ${tp}, PP ${pp})` : tp > 1 ? ` (TP ${tp})` : ''}`;
  return dp === 1 ? replica : `${dp} replicas of ${replica}`;
}

function summary(report: ServingReport): string[] {
  const share = (value: number): string => `${(100 * value).toFixed(0)}%`;
  return [
    `${report.requests} requests in ${report.duration_s.toFixed(1)} s: ${report.requests_per_s.toPrecision(3)} requests/s, ${report.output_tokens_per_s.toFixed(0)} output tokens/s, ${report.total_tokens_per_s.toFixed(0)} tokens/s in all`,
    `KV cache: ${share(report.kv.mean)} in use on average, ${share(report.kv.peak)} at most; ${report.preemptions} preemptions; replicas busy ${share(report.busy)} of the time`,
    ...(report.refused === 0
      ? []
      : [`${report.refused} requests are longer than the KV cache and were refused`]),
  ];
}

function figures(values: Distribution): string[] {
  return [values.mean, values.p50, values.p90, values.p99, values.max].map((value) =>
    Number.isNaN(value) ? '-' : value >= 100 ? value.toFixed(0) : value.toPrecision(3),
  );
}

function numeric(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value)) throw new InvalidArgumentError('a number is needed');
  return value;
}

function natural(text: string): number {
  const value = numeric(text);
  if (!Number.isSafeInteger(value) || value < 0) throw new InvalidArgumentError('a whole number is needed');
  return value;
}

/** `800`, `100-2000` (uniform), `800~300` (normal). */
function lengths(text: string): LengthDistribution {
  const range = /^(\d+)-(\d+)$/.exec(text);
  if (range) return { kind: 'uniform', low: Number(range[1]), high: Number(range[2]) };
  const spread = /^(\d+(?:\.\d+)?)~(\d+(?:\.\d+)?)$/.exec(text);
  if (spread) return { kind: 'normal', mean: Number(spread[1]), deviation: Number(spread[2]) };
  if (/^\d+$/.test(text)) return { kind: 'fixed', tokens: Number(text) };
  throw new InvalidArgumentError('N, LOW-HIGH or MEAN~DEVIATION is needed');
}
