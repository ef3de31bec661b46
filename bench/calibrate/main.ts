/**
 * `node dist/bench/calibrate/main.js [--quick] [STAGE…]`: fits the simulator's constants to the measured tables and
 * writes them, with their sources, to `solver/simulator/calibration/constants.ts`.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import type { DeviceFamily } from '../../solver/catalog/device-spec.ts';
import type {
  DeviceConstants,
  EngineConstants,
  SimulatedEngine,
} from '../../solver/simulator/calibration.ts';
import {
  fitIterations,
  fitOperators,
  fitRecorded,
  fitTensorRt,
  fitVllmOnHopper,
  initialDevice,
} from './stages.ts';
import { truthFolder } from './tables.ts';

const vidur = 'Vidur profiles (github.com/microsoft/vidur, MIT), TP 1 and 4';
const silicon = 'NVIDIA AIConfigurator silicon data (Apache-2.0)';
const llmMesh = 'LLM-Mesh measurements, llama-2-7b and llama-3.1-8b';
const recorded = 'LLMServingSim recorded run of vLLM 0.19 (MIT), first 100 requests';

main(process.argv.includes('--quick') ? 0.2 : 1);

function main(effort: number): void {
  const folder = truthFolder();
  if (folder === undefined) {
    process.stderr.write(
      'error: the measured tables are not there\n  try: set HPCSERVE_TRUTH to their folder\n',
    );
    process.exit(2);
  }
  const log = (line: string): void => void process.stderr.write(`${line}\n`);
  const evaluations = (full: number): number => Math.ceil(full * effort);

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
  writeFileSync(join(packageRoot, 'solver/simulator/calibration/constants.ts'), text(devices, engines));
}

interface Entry<T> {
  constants: T;
  source: string;
}

/** Three digits are more than the measurements carry. */
function entry<T extends object>(constants: T, source: string): Entry<T> {
  const rounded = Object.entries(constants).map(([name, value]) => [
    name,
    Number((value as number).toPrecision(3)),
  ]);
  return { constants: Object.fromEntries(rounded) as T, source };
}

function text(devices: object, engines: object): string {
  return `/** Written by \`node dist/bench/calibrate/main.js\`; docs/simulator.md says how. Do not edit by hand. */
// biome-ignore-all lint/suspicious/noApproximativeNumericConstant: measured, and near a constant by chance
import type { DeviceFamily } from '../../catalog/device-spec.ts';
import type { DeviceConstants, EngineConstants, SimulatedEngine } from '../constants.ts';

export interface Fitted<T> {
  constants: T;
  /** The measurements they were fitted to. */
  source: string;
}

export const deviceConstants: Readonly<Partial<Record<DeviceFamily, Fitted<DeviceConstants>>>> = ${literal(devices)};

export const engineConstants: Readonly<Partial<Record<SimulatedEngine, Fitted<EngineConstants>>>> = ${literal(engines)};
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
