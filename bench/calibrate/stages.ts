/**
 * The fit, stage by stage: devices' constants from operators first, so that engines' constants need to
 * explain only what operators do not.
 */
import { findDevice, findInterconnect } from '../../solver/catalog/devices.ts';
import {
  type Calibration,
  type DeviceConstants,
  type EngineConstants,
  roofline,
} from '../../solver/simulator/calibration.ts';
import { allReduceTime_s } from '../../solver/simulator/collectives.ts';
import { gemmTime_s } from '../../solver/simulator/gemm.ts';
import { type AmxEngine, amxRows, predictAmx } from './amx-rows.ts';
import {
  iterationIsFitted,
  iterationIsUsable,
  predictIteration,
  predictRecorded,
  predictSilicon,
  recorded_fitted,
  siliconIsFitted,
  siliconIsUsable,
  siliconSaturates,
} from './cases.ts';
import { type CpuEngine, type CpuRow, cpuIsFitted, cpuRows, predictCpu } from './cpu-rows.ts';
import { logError, minimize } from './nelder-mead.ts';
import {
  type AllReduceRow,
  allReduceRows,
  iterationRows,
  type OperatorRow,
  operatorRows,
  recordedRun,
  siliconRows,
} from './tables.ts';

type Log = (line: string) => void;
export type Pair = readonly [predicted: number, measured: number];

const devices = { a100: findDevice('A100'), h100: findDevice('H100') } as const;

/** Where a fit starts: what such devices and engines are known to reach, within a factor of two. */
export const initialDevice: DeviceConstants = {
  gemm_compute: 0.72,
  gemm_compute_narrow: 0.6,
  gemm_memory: 0.85,
  gemm_pad_rows: 40,
  gemm_sharpness: 4,
  gemm_s: 3e-6,
  attention_compute: 0.45,
  attention_memory: 0.8,
  elementwise_memory: 0.7,
  ring_s: 15e-6,
  ring_hop_s: 2e-6,
  ring_bandwidth: 0.6,
  ring_bandwidth_many: 0.75,
};
export const initialEngine: EngineConstants = {
  layer_s: 15e-6,
  step_s: 1.5e-3,
  sequence_s: 10e-6,
  prompt_token_s: 0.5e-6,
  prompt_step_s: 4e-3,
  request_s: 10e-3,
  one_shot_s: 8e-6,
  expert_compute: 0.6,
  expert_memory: 0.6,
  attention_memory: 1,
};

/** Rows that Vidur's operators are fitted on; TP 2 and 8 are kept out. */
export const operatorIsFitted = (row: OperatorRow): boolean => row.tp === 1 || row.tp === 4;
/** Four devices are kept out of the all-reduces. */
const allReduceIsFitted = (row: AllReduceRow): boolean => row.devices !== 4;

export function predictOperator(row: OperatorRow, constants: DeviceConstants): number {
  const device = devices[row.gpu];
  if (row.operator === 'elementwise')
    return (1e3 * row.bytes) / (device.memory_bandwidth_bytes_per_s * constants.elementwise_memory) + 0.02;
  const gemm = {
    name: row.operator,
    inner: row.inner,
    columns: row.columns,
    bits_per_weight: 16,
    compute: 'bf16' as const,
  };
  return 1e3 * gemmTime_s(gemm, row.tokens, device, constants);
}

function predictAllReduce(row: AllReduceRow, constants: DeviceConstants): number {
  const { link } = devices[row.gpu];
  const none = Number.POSITIVE_INFINITY;
  return (
    1e3 * allReduceTime_s(row.bytes, row.devices, link, findInterconnect('slingshot-11'), constants, none)
  );
}

/** Improves the named constants of a start against an objective. */
function improve<T extends object>(
  start: T,
  names: readonly (keyof T & string)[],
  objective: (constants: T) => number,
  evaluations: number,
): T {
  const values = names.map((name) => start[name] as number);
  const made = (x: readonly number[]): T => ({
    ...start,
    ...Object.fromEntries(names.map((name, index) => [name, x[index]!])),
  });
  const bounded = (constants: T): number =>
    objective(constants) +
    Object.entries(constants).reduce(
      (sum, [name, value]) => sum + 5 * Math.max(0, value - ceilingOf(name)),
      0,
    );
  let best = minimize((x) => bounded(made(x)), values, { evaluations: Math.ceil(evaluations * 0.6) });
  // A second simplex from the first's end: Nelder-Mead may have collapsed early.
  best = minimize((x) => bounded(made(x)), best.x, {
    evaluations: Math.ceil(evaluations * 0.4),
    spread: 0.15,
  });
  return made(best.x);
}

/**
 * What no kernel in use exceeds: products come to 80% of peak where power allows, streams to 95% of bandwidth.
 * A fit that wants more is making up for something else, and would carry it to other devices.
 */
function ceilingOf(name: string): number {
  if (/(gemm_compute|gemm_compute_narrow)$/.test(name)) return 0.8;
  if (name.endsWith('attention_compute')) return 0.75;
  // Switches that reduce in the network move a ring's worth of bytes at the full rate of the link.
  if (/expert_|engine\.attention|_many$/.test(name)) return 1;
  return /_(memory|bandwidth|many)$/.test(name) ? 0.95 : Number.POSITIVE_INFINITY;
}

const sample = <T>(rows: readonly T[], most: number): T[] => {
  const step = Math.max(1, rows.length / most);
  return Array.from({ length: Math.min(most, rows.length) }, (_, i) => rows[Math.floor(i * step)]!);
};

/** Products, small operators and rings of A100 or H100 from Vidur's profiles. */
export function fitOperators(folder: string, gpu: 'a100' | 'h100', log: Log): DeviceConstants {
  const rows = operatorRows(folder).filter((row) => row.gpu === gpu && operatorIsFitted(row));
  const all = rows.filter((row) => row.operator !== 'elementwise');
  // Decode, mixed and prompt sizes count alike, though the table has most rows of the last.
  const products = [
    ...sample(
      all.filter((row) => row.tokens <= 64),
      200,
    ),
    ...sample(
      all.filter((row) => row.tokens > 64 && row.tokens <= 512),
      200,
    ),
    ...sample(
      all.filter((row) => row.tokens > 512),
      200,
    ),
  ];
  // Below 256 tokens small operators are launches, which belong to the engine's layer_s.
  const small = sample(
    rows.filter((row) => row.operator === 'elementwise' && row.tokens >= 256),
    100,
  );
  const rings = sample(
    allReduceRows(folder).filter((row) => row.gpu === gpu && allReduceIsFitted(row)),
    400,
  );
  let constants = improve(
    initialDevice,
    ['gemm_compute', 'gemm_memory', 'gemm_pad_rows', 'gemm_sharpness', 'gemm_s'],
    (c) => logError(products.map((row) => [predictOperator(row, c), row.ms])),
    500,
  );
  constants = improve(
    constants,
    ['elementwise_memory'],
    (c) => logError(small.map((row) => [predictOperator(row, c), row.ms])),
    60,
  );
  constants = improve(
    constants,
    ['ring_s', 'ring_hop_s', 'ring_bandwidth', 'ring_bandwidth_many'],
    (c) => logError(rings.map((row) => [predictAllReduce(row, c), row.ms])),
    300,
  );
  log(`${gpu} operators: ${show(constants)}`);
  return { ...constants, gemm_compute_narrow: constants.gemm_compute };
}

/** vLLM and what is left open of Hopper, from the fitted silicon rows. */
export function fitVllmOnHopper(
  folder: string,
  device: DeviceConstants,
  log: Log,
  evaluations: number,
): { device: DeviceConstants; engine: EngineConstants } {
  const rows = siliconRows(folder).filter(
    (row) => row.backend === 'vllm' && siliconIsUsable(row) && siliconIsFitted(row) && !siliconSaturates(row),
  );
  const fitted = improve(
    { ...device, ...prefixed(initialEngine) },
    [
      'gemm_compute_narrow',
      'attention_compute',
      'attention_memory',
      'elementwise_memory',
      'ring_bandwidth_many',
      'engine.layer_s',
      'engine.step_s',
      'engine.sequence_s',
      'engine.prompt_token_s',
      'engine.prompt_step_s',
      'engine.request_s',
      'engine.one_shot_s',
      'engine.expert_compute',
      'engine.expert_memory',
    ],
    (constants) => siliconError(rows, calibrationOf(constants)),
    evaluations,
  );
  const { device: hopper, engine } = calibrationOf(fitted);
  log(`vllm on hopper, ${rows.length} rows, error ${siliconError(rows, calibrationOf(fitted)).toFixed(3)}`);
  log(`  ${show(hopper)}`);
  log(`  ${show(engine)}`);
  return { device: hopper, engine };
}

/** TensorRT-LLM on Hopper with the device's constants as they are. */
export function fitTensorRt(
  folder: string,
  device: DeviceConstants,
  start: EngineConstants,
  log: Log,
  evaluations: number,
): EngineConstants {
  const rows = siliconRows(folder).filter(
    (row) =>
      row.backend === 'trtllm' && siliconIsUsable(row) && siliconIsFitted(row) && !siliconSaturates(row),
  );
  const fitted = improve(
    { ...start, attention_memory: 0.9 },
    [
      'layer_s',
      'step_s',
      'sequence_s',
      'prompt_token_s',
      'prompt_step_s',
      'request_s',
      'one_shot_s',
      'attention_memory',
    ],
    (engine) => siliconError(rows, { ...roofline, device, engine }),
    evaluations,
  );
  log(
    `trtllm on hopper, ${rows.length} rows, error ${siliconError(rows, { ...roofline, device, engine: fitted }).toFixed(3)}`,
  );
  log(`  ${show(fitted)}`);
  return fitted;
}

/** vLLM 0.x on A100 with attention, or OpenVINO on AMX with all of the device, from LLM-Mesh's iterations. */
export function fitIterations(
  folder: string,
  table: 'a100-80gb' | 'xeon-32core-amx',
  start: DeviceConstants,
  log: Log,
  evaluations: number,
): { device: DeviceConstants; engine: EngineConstants } {
  const rows = iterationRows(folder).filter(
    (row) => row.device === table && iterationIsUsable(row) && iterationIsFitted(row),
  );
  const gpu = table === 'a100-80gb';
  const fitted = improve(
    { ...start, ...prefixed(gpu ? initialEngine : { ...initialEngine, layer_s: 1e-4, step_s: 5e-3 }) },
    gpu
      ? [
          'attention_compute',
          'attention_memory',
          'engine.layer_s',
          'engine.step_s',
          'engine.sequence_s',
          'engine.prompt_token_s',
        ]
      : [
          'gemm_compute',
          'gemm_memory',
          'gemm_pad_rows',
          'gemm_sharpness',
          'attention_compute',
          'attention_memory',
          'engine.layer_s',
          'engine.sequence_s',
        ],
    (constants) => {
      const calibration = calibrationOf(constants);
      return logError(rows.map((row) => [predictIteration(row, calibration), row.ms]));
    },
    evaluations,
  );
  const { device, engine } = calibrationOf(fitted);
  log(`${table}: ${show(device)}`);
  log(`  ${show(engine)}`);
  return { device, engine };
}

/**
 * An engine on CPUs without tiles: its kernels and its own time together, for both differ from engine to engine. Few
 * rows were measured, so that few constants are fitted; the others are what such devices reach.
 */
export function fitCpu(
  engine: CpuEngine,
  start: { device: DeviceConstants; engine: EngineConstants },
  log: Log,
  evaluations: number,
): { device: DeviceConstants; engine: EngineConstants } {
  const rows = cpuRows.filter((row) => row.engine === engine && cpuIsFitted(row));
  const pairs = (calibration: Calibration, of: readonly CpuRow[]): Pair[] =>
    of.map((row) => [predictCpu(row, calibration), row.measured]);
  const fitted = improve(
    { ...start.device, ...prefixed(start.engine) },
    [
      'gemm_compute',
      'gemm_memory',
      'gemm_pad_rows',
      'attention_memory',
      'engine.layer_s',
      'engine.sequence_s',
    ],
    (constants) => logError(pairs(calibrationOf(constants), rows)),
    evaluations,
  );
  const calibration = calibrationOf(fitted);
  const kept = cpuRows.filter((row) => row.engine === engine && !cpuIsFitted(row));
  log(
    `${engine} on CPUs, ${rows.length} rows, error ${logError(pairs(calibration, rows)).toFixed(3)}; ${kept.length} kept out: ${logError(pairs(calibration, kept)).toFixed(3)}`,
  );
  log(`  ${show(calibration.device)}`);
  log(`  ${show(calibration.engine)}`);
  return { device: calibration.device, engine: calibration.engine };
}

/** An engine on CPUs with tiles: three steps of each type of weights, so that few constants are fitted. */
export function fitAmx(
  engine: AmxEngine,
  start: { device: DeviceConstants; engine: EngineConstants },
  log: Log,
  evaluations: number,
): { device: DeviceConstants; engine: EngineConstants } {
  const rows = amxRows.filter((row) => row.engine === engine);
  const pairs = (calibration: Calibration): Pair[] =>
    rows.map((row) => [predictAmx(row, calibration), row.tokens_per_s]);
  const fitted = improve(
    { ...start.device, ...prefixed(start.engine) },
    ['gemm_compute', 'gemm_memory', 'gemm_pad_rows', 'engine.layer_s'],
    (constants) => logError(pairs(calibrationOf(constants))),
    evaluations,
  );
  const calibration = calibrationOf(fitted);
  log(`${engine} on AMX, ${rows.length} rows, error ${logError(pairs(calibration)).toFixed(3)}`);
  for (const row of rows)
    log(`  ${row.weights} ${row.step}: ${predictAmx(row, calibration).toFixed(1)} of ${row.tokens_per_s}`);
  return { device: calibration.device, engine: calibration.engine };
}

/** The RTX PRO 6000 from the first requests of the recorded run, with vLLM's constants as they are. */
export function fitRecorded(
  folder: string,
  start: DeviceConstants,
  engine: EngineConstants,
  log: Log,
  evaluations: number,
): DeviceConstants {
  const run = recordedRun(folder);
  const objective = (device: DeviceConstants): number => {
    const predicted = predictRecorded(run, { ...roofline, device, engine });
    const pairs: Pair[] = [];
    for (let i = 0; i < recorded_fitted; i++) {
      pairs.push([predicted.tpot_s[i]!, run[i]!.tpot_s], [predicted.e2e_s[i]!, run[i]!.e2e_s]);
      if (i % 2 === 0) pairs.push([predicted.ttft_s[i]!, run[i]!.ttft_s]);
    }
    return logError(pairs);
  };
  const device = improve(
    start,
    ['gemm_compute', 'gemm_memory', 'attention_memory', 'attention_compute'],
    objective,
    evaluations,
  );
  log(`blackwell-gddr: ${show(device)} error ${objective(device).toFixed(3)}`);
  return device;
}

/** TPOT is asked for twice as exactly as TTFT. */
function siliconError(rows: ReturnType<typeof siliconRows>, calibration: Calibration): number {
  const tpot: Pair[] = [];
  const ttft: Pair[] = [];
  for (const row of rows) {
    const predicted = predictSilicon(row, calibration);
    tpot.push([predicted.tpot_ms, row.tpot_ms]);
    ttft.push([predicted.ttft_ms, row.ttft_ms]);
  }
  return logError(tpot) + 0.5 * logError(ttft);
}

type Prefixed = { [K in keyof EngineConstants as `engine.${K}`]: number };

function prefixed(engine: EngineConstants): Prefixed {
  return Object.fromEntries(
    Object.entries(engine).map(([name, value]) => [`engine.${name}`, value]),
  ) as Prefixed;
}

function calibrationOf(constants: DeviceConstants & Prefixed): Calibration {
  const device: Record<string, number> = {};
  const engine: Record<string, number> = {};
  for (const [name, value] of Object.entries(constants))
    if (name.startsWith('engine.')) engine[name.slice('engine.'.length)] = value;
    else device[name] = value;
  return {
    ...roofline,
    device: device as unknown as DeviceConstants,
    engine: engine as unknown as EngineConstants,
  };
}

function show(constants: object): string {
  return Object.entries(constants)
    .map(([name, value]) => `${name} ${(value as number).toPrecision(3)}`)
    .join(', ');
}
