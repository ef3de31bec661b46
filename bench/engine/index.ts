/**
 * The native engine beside libllama from the same package: the same GGUF file of Llama-3.2-1B's true shape,
 * the same number of threads, the same KV cache, alternating in one run. Arguments: `--pairs N` (default 10),
 * `--threads N` (default: all, at most 16), `--quantization Q4_0|Q8_0|BF16` (default all), `--shape` (of another
 * model), `--device CUDA0` (see `../device.ts`). `--beside vllm`: whole servers, see `beside-vllm.ts`.
 */
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { synthPresets } from '../../native/synth/presets.ts';
import { deviceOptions, deviceRows, useLibraries } from '../device.ts';
import { MissingNeed } from '../need.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { median } from '../slurm/median.ts';
import { memoryBandwidth } from './bandwidth.ts';
import { besideVllm } from './beside-vllm.ts';
import { Contestant } from './contestant.ts';
import { modelFile, type Quantization, quantizations, usual_shape } from './model-files.ts';
import { batch_sequences, type Measured, prefill_tokens, type Task, type WorkerSetup } from './protocol.ts';

const peer = 'libllama';
const speed_bar = 0.97;
const pss_bar = 1 / 1.1;
/** Pairs that tell the cost of batch_invariant: a round of each, in turn. */
const invariant_pairs = 5;
const invariant_bar = 0.97;

const tasks: { kind: Task['kind']; what: string }[] = [
  { kind: 'decode', what: 'decode, 1 sequence' },
  { kind: 'prefill', what: `prefill of ${prefill_tokens} tokens` },
  { kind: 'batch', what: `decode, ${batch_sequences} sequences` },
];

type Runs = Record<Task['kind'], Measured[]>;

const rate = ({ tokens, elapsed_ms }: Measured): number => (tokens * 1000) / elapsed_ms;
const medianRate = (runs: readonly Measured[]): number => median(runs.map(rate));
/** CPU milliseconds per token: what a busy machine disturbs least. */
const medianCpu = (runs: readonly Measured[]): number =>
  median(runs.map(({ tokens, cpu_ms }) => cpu_ms / tokens));

async function round(contestant: Contestant, index: number, runs: Runs): Promise<void> {
  for (const { kind } of tasks) runs[kind].push(await contestant.run({ kind, round: index }));
}

const noRuns = (): Runs => ({ decode: [], prefill: [], batch: [] });

/** What alternating rounds of both gave. */
interface Comparison {
  ours: Runs;
  theirs: Runs;
  pss_bytes: { ours: number; theirs: number };
  weight_bytes: number;
}

type Setup = Omit<WorkerSetup, 'contender'>;

interface Settings {
  pairs: number;
  threads: number;
  /** Of memory, bytes per second; undefined on devices with memory of their own. */
  bandwidth: number | undefined;
  shape: string;
  device: string | undefined;
}

async function compare(
  quantization: Quantization,
  { pairs, threads, bandwidth, shape, device }: Settings,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const model_path = await modelFile(quantization, log, shape);
  const setup: Setup = { model_path, threads, device, n_vocab: synthPresets[shape]!.n_vocab };
  const compared = await alternate(quantization, setup, pairs, log);
  return [
    ...speedResults(quantization, compared),
    ...(bandwidth === undefined ? [] : memoryResults(quantization, compared, bandwidth)),
    ...(await invariantCost(quantization, setup, log)),
  ];
}

async function alternate(
  quantization: Quantization,
  setup: Setup,
  pairs: number,
  log: (line: string) => void,
): Promise<Comparison> {
  const ours = await Contestant.start({ contender: 'native', ...setup });
  const theirs = await Contestant.start({ contender: 'libllama', ...setup });
  const runs = { ours: noRuns(), theirs: noRuns() };
  try {
    // One round each that does not count: pages and caches are as warm as in service.
    for (const contestant of [ours, theirs]) await round(contestant, 1000, noRuns());
    for (let pair = 0; pair < pairs; pair++) {
      const first = pair % 2 === 0;
      for (const mine of [first, !first])
        await round(mine ? ours : theirs, pair, mine ? runs.ours : runs.theirs);
      const rates = tasks.map(({ kind, what }) => {
        const [own, other] = [runs.ours, runs.theirs].map((all) => rate(all[kind].at(-1)!).toFixed(1));
        return `${what} ${own} / ${other}`;
      });
      log(`${quantization} pair ${pair + 1}/${pairs}: ${rates.join(' · ')} tokens/s`);
    }
    const pss_bytes = { ours: ours.pss_bytes(), theirs: theirs.pss_bytes() };
    return { ...runs, pss_bytes, weight_bytes: ours.weight_bytes };
  } finally {
    await Promise.all([ours.stop(), theirs.stop()]);
  }
}

function cpuResult(
  what: string,
  ours: readonly Measured[],
  theirs: readonly Measured[],
  beside: string,
): BenchResult {
  const [own, other] = [medianCpu(ours), medianCpu(theirs)];
  const judged = { ratio: other / own, bar: '', holds: null };
  return { what: `${what}, CPU time`, unit: 'ms/token', ours: own, peer: beside, theirs: other, ...judged };
}

function speedResults(quantization: Quantization, { ours, theirs }: Comparison): BenchResult[] {
  const speeds = tasks.map(({ kind, what }): BenchResult => {
    const own = medianRate(ours[kind]);
    const other = medianRate(theirs[kind]);
    return {
      what: `${quantization}: ${what}`,
      unit: 'tokens/s',
      ours: own,
      peer,
      theirs: other,
      ratio: own / other,
      bar: `ratio ≥ ${speed_bar}`,
      holds: own / other >= speed_bar,
    };
  });
  const times = tasks.map(({ kind, what }) =>
    cpuResult(`${quantization}: ${what}`, ours[kind], theirs[kind], peer),
  );
  return [...speeds, ...times];
}

/** @param bandwidth of memory, bytes per second */
function memoryResults(
  quantization: Quantization,
  { ours, pss_bytes, weight_bytes }: Comparison,
  bandwidth: number,
): BenchResult[] {
  const ratio = pss_bytes.theirs / pss_bytes.ours;
  return [
    {
      what: `${quantization}: memory (PSS)`,
      unit: 'MiB',
      ours: pss_bytes.ours / 2 ** 20,
      peer,
      theirs: pss_bytes.theirs / 2 ** 20,
      ratio,
      bar: 'ours ≤ 1.1 × theirs',
      holds: ratio >= pss_bar,
    },
    {
      what: `${quantization}: share of memory bandwidth at decode of 1 sequence`,
      unit: 'share',
      ours: (weight_bytes * medianRate(ours.decode)) / bandwidth,
      peer: '',
      theirs: null,
      ratio: null,
      bar: '',
      holds: null,
    },
  ];
}

async function invariantCost(
  quantization: Quantization,
  setup: Setup,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const contestants = [
    { contestant: await Contestant.start({ contender: 'native invariant', ...setup }), runs: noRuns() },
    { contestant: await Contestant.start({ contender: 'native', ...setup }), runs: noRuns() },
  ];
  try {
    for (const { contestant } of contestants) await round(contestant, 1000, noRuns());
    for (let pair = 0; pair < invariant_pairs; pair++)
      for (const { contestant, runs } of pair % 2 === 0 ? contestants : contestants.toReversed())
        await round(contestant, pair, runs);
  } finally {
    await Promise.all(contestants.map(({ contestant }) => contestant.stop()));
  }
  log(`${quantization}: batch_invariant measured`);
  const on_cpu = setup.device === undefined;
  const [invariant, free] = contestants as [(typeof contestants)[0], (typeof contestants)[0]];
  return tasks.flatMap(({ kind, what }): BenchResult[] => {
    const rates = [invariant, free].map(({ runs }) => medianRate(runs[kind])) as [number, number];
    const row = { what: `${quantization}: ${what}, batch_invariant`, peer: 'native without it' };
    const ratio = rates[0] / rates[1];
    // Elsewhere rows are padded until the kernels of the device give each the same bits.
    const judged = on_cpu
      ? { ratio, bar: `ratio ≥ ${invariant_bar}`, holds: ratio >= invariant_bar }
      : { ratio, bar: '', holds: null };
    return [
      { ...row, unit: 'tokens/s', ours: rates[0], theirs: rates[1], ...judged },
      cpuResult(row.what, invariant.runs[kind], free.runs[kind], row.peer),
    ];
  });
}

async function run(options: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({
    args: [...options.args],
    options: { beside: { type: 'string', default: peer } },
    strict: false,
  });
  if (values.beside === peer) return besideLibllama(options);
  if (values.beside === 'vllm') return besideVllm(options);
  throw new MissingNeed(`nothing is known of a peer "${values.beside}"`, `--beside ${peer} or --beside vllm`);
}

async function besideLibllama({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      beside: { type: 'string' },
      pairs: { type: 'string', default: '10' },
      threads: { type: 'string', default: String(Math.min(16, availableParallelism())) },
      quantization: { type: 'string', multiple: true, default: [...quantizations] },
      shape: { type: 'string', default: usual_shape },
      ...deviceOptions,
    },
  });
  const { device, shape } = values;
  if (!(shape in synthPresets))
    throw new MissingNeed(`there is no shape "${shape}"`, `one of ${Object.keys(synthPresets).join(', ')}`);
  useLibraries(values.libraries);
  const threads = Number(values.threads);
  const bandwidth = device === undefined ? memoryBandwidth(threads) : undefined;
  const results = bandwidth === undefined ? deviceRows(device) : [bandwidthRow(threads, bandwidth, log)];
  const settings = { pairs: Number(values.pairs), threads, bandwidth, shape, device };
  for (const quantization of quantizations)
    if (values.quantization.includes(quantization))
      results.push(...(await compare(quantization, settings, log)));
  return results;
}

function bandwidthRow(threads: number, bandwidth: number, log: (line: string) => void): BenchResult {
  log(`${threads} threads read ${(bandwidth / 1e9).toFixed(1)} GB/s`);
  return {
    what: `memory bandwidth: ${threads} threads, F32 matrix × vector over 1 GiB`,
    unit: 'GB/s',
    ours: bandwidth / 1e9,
    peer: '',
    theirs: null,
    ratio: null,
    bar: '',
    holds: null,
  };
}

export const engineBench: Bench = {
  name: 'engine',
  describe: 'the native engine beside libllama (or, whole servers, vLLM): decode, prefill, batches, memory',
  run,
};
