/**
 * The constants that stand between a roofline and what devices and engines do. Shares are of the catalog's
 * peak; times are in seconds. They are fitted by `bench/calibrate` and stored in `calibration/constants.ts`.
 */
import type { DeviceFamily } from '../catalog/device-spec.ts';
import { amxConstants, cpuConstants, deviceConstants, engineConstants } from './calibration/constants.ts';
import type { DeviceConstants, EngineConstants, SimulatedEngine } from './constants.ts';

export {
  type DeviceConstants,
  type EngineConstants,
  type SimulatedEngine,
  simulatedEngines,
} from './constants.ts';

export interface Calibration {
  device: DeviceConstants;
  engine: EngineConstants;
  /** What the constants were fitted on, or which family's stand in for a family nobody measured. */
  device_source: string;
  engine_source: string;
}

/** A roofline alone: every share 1, nothing fixed, the larger of arithmetic and memory time. */
export const roofline: Calibration = {
  device: {
    gemm_compute: 1,
    gemm_compute_narrow: 1,
    gemm_memory: 1,
    gemm_pad_rows: 0,
    gemm_sharpness: Number.POSITIVE_INFINITY,
    gemm_s: 0,
    attention_compute: 1,
    attention_memory: 1,
    elementwise_memory: 1,
    ring_s: 0,
    ring_hop_s: 0,
    ring_bandwidth: 1,
    ring_bandwidth_many: 1,
  },
  engine: {
    layer_s: 0,
    step_s: 0,
    sequence_s: 0,
    prompt_token_s: 0,
    prompt_step_s: 0,
    request_s: 0,
    one_shot_s: Number.POSITIVE_INFINITY,
    expert_compute: 1,
    expert_memory: 1,
    attention_memory: 1,
  },
  device_source: 'roofline without calibration',
  engine_source: 'roofline without calibration',
};

/**
 * Vector units of CPUs without tiles: dense products reach some 60% of their peak, as do those of attention,
 * which ran at that share of the vector peak on the AMX CPU that was measured; their blocks have few rows. What
 * belongs to memory and links is as measured there.
 */
const vectorUnits = { gemm_compute: 0.6, gemm_compute_narrow: 0.6, gemm_pad_rows: 6, attention_compute: 0.6 };

/** Families without measurements take the constants of the most similar family that has them. */
const standIns: Readonly<Record<DeviceFamily, readonly DeviceFamily[]>> = {
  pascal: ['ampere'],
  volta: ['ampere'],
  turing: ['ampere'],
  ampere: [],
  'ampere-gddr': ['blackwell-gddr', 'ampere'],
  ada: ['blackwell-gddr', 'ampere'],
  hopper: [],
  blackwell: ['hopper'],
  'blackwell-gddr': [],
  cdna2: ['ampere'],
  cdna3: ['hopper'],
  cdna4: ['hopper'],
  'cpu-amx': [],
  cpu: ['cpu-amx'],
};

const engineStandIns: Readonly<Record<SimulatedEngine, SimulatedEngine>> = {
  vllm: 'vllm',
  'vllm-v0': 'vllm-v0',
  sglang: 'vllm',
  trtllm: 'trtllm',
  tgi: 'vllm-v0',
  llamacpp: 'openvino',
  native: 'openvino',
  openvino: 'openvino',
};

/** Of which engine's measurements on CPUs others take theirs. */
const cpuStandIns: Readonly<Partial<Record<SimulatedEngine, SimulatedEngine>>> = {
  vllm: 'vllm',
  sglang: 'vllm',
  native: 'native',
  llamacpp: 'llamacpp',
};

/**
 * Engines that were measured on CPUs. On tiles (AMX) one that was measured without them alone has the device as another
 * engine reached it.
 */
function cpuCalibration(engine: SimulatedEngine, family: DeviceFamily): Calibration | undefined {
  const tiles = family === 'cpu-amx' ? amxConstants[engine] : undefined;
  if (tiles !== undefined)
    return { ...tiles.constants, device_source: tiles.source, engine_source: tiles.source };
  const stands = cpuStandIns[engine];
  const pair = stands && cpuConstants[stands];
  if (stands === undefined || pair === undefined) return undefined;
  const { constants, source } = pair;
  const engine_source = stands === engine ? source : `${engine} is not measured; ${stands}: ${source}`;
  if (family === 'cpu')
    return { device: constants.device, engine: constants.engine, device_source: source, engine_source };
  const amx = deviceConstants['cpu-amx'];
  if (family !== 'cpu-amx' || amx === undefined) return undefined;
  return {
    device: amx.constants,
    engine: constants.engine,
    device_source: `as OpenVINO reaches it: ${amx.source}`,
    engine_source: `carried over from CPUs without AMX; ${engine_source}`,
  };
}

/**
 * Whose measurements stand in for those of an engine and of a device family that nobody measured, one clause each;
 * empty where both were measured.
 */
export function standInsFor(engine: SimulatedEngine, family: DeviceFamily): string[] {
  if (family === 'cpu-amx' && amxConstants[engine] !== undefined) return [];
  const onCpu = family === 'cpu' || family === 'cpu-amx' ? cpuStandIns[engine] : undefined;
  const measured = onCpu !== undefined && cpuConstants[onCpu] !== undefined;
  if (measured && family === 'cpu')
    return onCpu === engine ? [] : [`${engine} is uncalibrated; taken from ${onCpu}`];
  if (measured) return [`${engine} is uncalibrated on AMX; carried over from CPUs without`];
  const stands = [family, ...standIns[family]].find((candidate) => deviceConstants[candidate] !== undefined);
  const own = engineStandIns[engine];
  return [
    ...(own === engine ? [] : [`${engine} is uncalibrated; taken from ${own}`]),
    ...(stands === family ? [] : [`devices of family ${family} are uncalibrated; taken from ${stands}`]),
  ];
}

/** The constants for an engine on a family, with their sources; stand-ins say whose they are. */
export function calibrationFor(engine: SimulatedEngine, family: DeviceFamily): Calibration {
  const onCpu = cpuCalibration(engine, family);
  if (onCpu !== undefined) return onCpu;
  const stands = [family, ...standIns[family]].find((candidate) => deviceConstants[candidate] !== undefined);
  const device = stands === undefined ? undefined : deviceConstants[stands];
  const engineName = engineStandIns[engine];
  const measured = engineConstants[engineName];
  if (device === undefined || measured === undefined)
    throw new Error(`no constants for ${engine} on ${family}: run bench/calibrate`);
  const vectors = family === 'cpu' && stands !== family;
  return {
    device: vectors ? { ...device.constants, ...vectorUnits } : device.constants,
    engine: measured.constants,
    device_source:
      stands === family
        ? device.source
        : `${family} is not measured; ${stands}${vectors ? ', but for arithmetic' : ''}: ${device.source}`,
    engine_source:
      engineName === engine
        ? measured.source
        : `${engine} is not measured; ${engineName}: ${measured.source}`,
  };
}
