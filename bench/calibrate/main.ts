/**
 * `node dist/bench/calibrate/main.js [--quick] [--only-cpu]`: fits the simulator's constants to the measured tables and
 * writes them, with their sources, to `solver/simulator/calibration/constants.ts`. `--only-cpu` fits the engines on
 * CPUs, whose measurements are in the project, and leaves the others as they are.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import type { DeviceFamily } from '../../solver/catalog/device-spec.ts';
import { deviceConstants, engineConstants } from '../../solver/simulator/calibration/constants.ts';
import type {
  DeviceConstants,
  EngineConstants,
  SimulatedEngine,
} from '../../solver/simulator/calibration.ts';
import type { CpuConstants } from '../../solver/simulator/constants.ts';
import { amxSource } from './amx-rows.ts';
import { cpuSources } from './cpu-rows.ts';
import {
  fitAmx,
  fitCpu,
  fitIterations,
  fitOperators,
  fitRecorded,
  fitTensorRt,
  fitVllmOnHopper,
  initialDevice,
  initialEngine,
} from './stages.ts';
import { truthFolder } from './tables.ts';

const vidur = 'Vidur profiles (github.com/microsoft/vidur, MIT), TP 1 and 4';
const silicon = 'NVIDIA AIConfigurator silicon data (Apache-2.0)';
const llmMesh = 'LLM-Mesh measurements, llama-2-7b and llama-3.1-8b';
const recorded = 'LLMServingSim recorded run of vLLM 0.19 (MIT), first 100 requests';

const cpuStart = {
  device: { ...initialDevice, gemm_compute: 0.5, gemm_pad_rows: 4, gemm_s: 5e-6, gemm_sharpness: 3 },
  engine: { ...initialEngine, layer_s: 1e-4, step_s: 2e-3, prompt_step_s: 1e-3 },
};

const effort = process.argv.includes('--quick') ? 0.2 : 1;
if (process.argv.includes('--only-cpu')) write(deviceConstants, engineConstants, fitCpus(), fitTiles());
else main();

function log(line: string): void {
  process.stderr.write(`${line}\n`);
}

function evaluations(full: number): number {
  return Math.ceil(full * effort);
}

/** Attention over prompts is a small part of what was measured, and as OpenVINO has it on such devices. */
function fitTiles(): Partial<Record<SimulatedEngine, Entry<CpuConstants>>> {
  const { attention_compute, attention_memory } = deviceConstants['cpu-amx']!.constants;
  const start = {
    device: { ...cpuStart.device, gemm_compute: 0.2, gemm_pad_rows: 16, attention_compute, attention_memory },
    engine: { ...cpuStart.engine, step_s: 1e-3, prompt_step_s: 0 },
  };
  return Object.fromEntries(
    (['native', 'llamacpp'] as const).map((engine) => {
      const { device, engine: own } = fitAmx(engine, start, log, evaluations(800));
      return [engine, { constants: { device: rounded(device), engine: rounded(own) }, source: amxSource }];
    }),
  );
}

function fitCpus(): Partial<Record<SimulatedEngine, Entry<CpuConstants>>> {
  return Object.fromEntries(
    (['vllm', 'native', 'llamacpp'] as const).map((engine) => {
      const { device, engine: own } = fitCpu(engine, cpuStart, log, evaluations(800));
      return [
        engine,
        { constants: { device: rounded(device), engine: rounded(own) }, source: cpuSources[engine] },
      ];
    }),
  );
}

function main(): void {
  const folder = truthFolder();
  if (folder === undefined) {
    process.stderr.write(
      'error: the measured tables are not there\n  try: set HPCSERVE_TRUTH to their folder\n',
    );
    process.exit(2);
  }
  const ampereOperators = fitOperators(folder, 'a100', log);
  const hopperOperators = fitOperators(folder, 'h100', log);
  const vllm = fitVllmOnHopper(folder, hopperOperators, log, evaluations(600));
  const trtllm = fitTensorRt(folder, vllm.device, vllm.engine, log, evaluations(400));
  const a100 = fitIterations(folder, 'a100-80gb', ampereOperators, log, evaluations(600));
  const amx = fitIterations(
    folder,
    'xeon-32core-amx',
    { ...initialDevice, gemm_compute: 0.3, gemm_s: 5e-6 },
    log,
    evaluations(800),
  );
  const workstation = fitRecorded(
    folder,
    { ...vllm.device, gemm_memory: 0.85 },
    vllm.engine,
    log,
    evaluations(300),
  );

  const devices: Partial<Record<DeviceFamily, Entry<DeviceConstants>>> = {
    ampere: entry(
      a100.device,
      `products, small operators and rings: ${vidur}; attention: ${llmMesh} on A100-80GB`,
    ),
    hopper: entry(
      vllm.device,
      `products, small operators and rings: ${vidur}; 8-bit products and attention: ${silicon}, H100`,
    ),
    'blackwell-gddr': entry(workstation, `${recorded}; what it does not tell is hopper's`),
    'cpu-amx': entry(amx.device, `${llmMesh} on a 32-core AMX Xeon`),
  };
  const engines: Partial<Record<SimulatedEngine, Entry<EngineConstants>>> = {
    vllm: entry(vllm.engine, `${silicon}: vLLM on H100, TP 2 and 8, batches 4, 16, 64`),
    'vllm-v0': entry(a100.engine, `${llmMesh} (vLLM 0.x on A100)`),
    trtllm: entry(trtllm, `${silicon}: TensorRT-LLM on H200, TP 2 and 8, batches 4, 16, 64`),
    openvino: entry(amx.engine, `${llmMesh} (OpenVINO)`),
  };
  write(devices, engines, fitCpus(), fitTiles());
}

function write(devices: object, engines: object, cpus: object, tiles: object): void {
  const file = join(packageRoot, 'solver/simulator/calibration/constants.ts');
  writeFileSync(file, text(devices, engines, cpus, tiles));
}

interface Entry<T> {
  constants: T;
  source: string;
}

/** Three digits are more than the measurements carry. */
function entry<T extends object>(constants: T, source: string): Entry<T> {
  return { constants: rounded(constants), source };
}

function rounded<T extends object>(constants: T): T {
  const entries = Object.entries(constants).map(([name, value]) => [
    name,
    Number((value as number).toPrecision(3)),
  ]);
  return Object.fromEntries(entries) as T;
}

function text(devices: object, engines: object, cpus: object, tiles: object): string {
  return `/** Written by \`node dist/bench/calibrate/main.js\`; docs/simulator.md says how. Do not edit by hand. */
// biome-ignore-all lint/suspicious/noApproximativeNumericConstant: measured, and near a constant by chance
import type { DeviceFamily } from '../../catalog/device-spec.ts';
import type { CpuConstants, DeviceConstants, EngineConstants, SimulatedEngine } from '../constants.ts';

export interface Fitted<T> {
  constants: T;
  /** The measurements they were fitted to. */
  source: string;
}

export const deviceConstants: Readonly<Partial<Record<DeviceFamily, Fitted<DeviceConstants>>>> = ${literal(devices)};

export const engineConstants: Readonly<Partial<Record<SimulatedEngine, Fitted<EngineConstants>>>> = ${literal(engines)};

/** Of engines on CPUs without tiles: kernels and the engine's own time were measured together. */
export const cpuConstants: Readonly<Partial<Record<SimulatedEngine, Fitted<CpuConstants>>>> = ${literal(cpus)};

/** Of engines on CPUs with tiles (AMX), likewise. */
export const amxConstants: Readonly<Partial<Record<SimulatedEngine, Fitted<CpuConstants>>>> = ${literal(tiles)};
`;
}

/** As the formatter writes object literals. */
function literal(value: unknown, indent = ''): string {
  if (typeof value === 'string') return `'${value.replaceAll("'", "\\'")}'`;
  if (typeof value !== 'object' || value === null) return String(value);
  const inner = `${indent}  `;
  const lines = Object.entries(value).map(([name, item]) => {
    const key = /^\w+$/.test(name) ? name : `'${name}'`;
    const line = `${inner}${key}: ${literal(item, inner)},`;
    return line.length > 110 && typeof item === 'string'
      ? `${inner}${key}:\n${inner}  ${literal(item)},`
      : line;
  });
  return `{\n${lines.join('\n')}\n${indent}}`;
}
