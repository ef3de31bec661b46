/**
 * Loads of real model files into one pool, with what is left there of earlier loads and without: Tangram's Figures 8,
 * 10 and 12a on this machine.
 */
import { parseArgs } from 'node:util';
import type { Backend } from '../../agent/backend/backend.ts';
import type { NativeEngine } from '../../agent/engine/native-engine.ts';
import { DevicePool } from '../../agent/memory/device-pool.ts';
import type { WeightLoad } from '../../agent/memory/pooled-loading.ts';
import { backendOf, deviceOptions, deviceRows, useLibraries } from '../device.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { barsOf, load_ratio_min, ttft_lower_min } from './bars.ts';
import { beladyLoads_bytes } from './belady.ts';
import { benchModels } from './models.ts';
import { measurePlanning } from './planning.ts';
import { type Locality, localities, trace } from './trace.ts';

const threads = 2;
/** Pool over working set. */
const ratios = [0.25, 0.5, 0.75] as const;
/** Of each trace; a cell has one after the other in the same pool. */
const requests = 12;
const seeds = [1, 2, 3];
const prompt_tokens = 32;
const mib = 2 ** 20;
/** What a KV cache and alignment need beside weights. */
const beside_bytes = 64 * mib;

interface Request {
  /** The model was never here before: nothing of it could have been kept. */
  first: boolean;
  load_ms: number;
  ttft_ms: number;
  load: WeightLoad;
}

interface Cell {
  locality: Locality;
  ratio: number;
  ours: Request[];
  theirs: Request[];
  /** Had every request loaded its whole model. */
  whole_bytes: number;
  loaded_bytes: number;
  belady_bytes: number;
}

export const reuseBench: Bench = {
  name: 'reuse',
  describe: 'loads of eight models into one pool, by locality and size of the pool, with and without reuse',
  run,
};

async function run({ log, args }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({ args: [...args], options: deviceOptions });
  useLibraries(values.libraries);
  const backend = backendOf(values.device);
  const models = await benchModels('reuse', log);
  try {
    const sizes = await sizesInPool(backend, models.paths);
    const cells: Cell[] = [];
    for (const ratio of ratios) {
      const pool_bytes = Math.max(ratio * sum(sizes), Math.max(...sizes)) + beside_bytes;
      for (const locality of localities) {
        const asked = seeds.flatMap((seed) => trace(locality, sizes.length, requests, seed));
        cells.push({ ...(await measure(backend, models.paths, sizes, pool_bytes, asked)), locality, ratio });
        log(describeCell(cells.at(-1)!));
      }
    }
    return [
      ...deviceRows(values.device),
      ...cells.flatMap(resultsOf),
      ...summary(cells),
      ...planningResults(),
    ];
  } finally {
    models.remove();
  }
}

async function sizesInPool(backend: Backend, paths: readonly string[]): Promise<number[]> {
  const pool = new DevicePool(backend, { pool_bytes: 4e9, threads });
  const sizes: number[] = [];
  for (const path of paths) {
    const { load } = request(pool, path);
    sizes.push(load.missing_bytes);
    pool.store.clear();
  }
  await pool.close();
  return sizes;
}

async function measure(
  backend: Backend,
  paths: readonly string[],
  sizes: readonly number[],
  pool_bytes: number,
  asked: readonly number[],
): Promise<Omit<Cell, 'locality' | 'ratio'>> {
  // Memory is taken before, as a worker that has run for a while has it.
  const pool = new DevicePool(backend, { pool_bytes, threads, populate: true });
  const other = new DevicePool(backend, {
    pool_bytes: Math.max(...sizes) + beside_bytes,
    threads,
    populate: true,
  });
  const ours: Request[] = [];
  const theirs: Request[] = [];
  const known = new Set<number>();
  for (const model of asked) {
    const first = !known.has(model);
    known.add(model);
    ours.push({ ...request(pool, paths[model]!), first });
    pool.verify();
    // The same worker without reuse: every load brings the whole model from the page cache, on all threads.
    other.store.clear();
    theirs.push({ ...request(other, paths[model]!), first });
  }
  await pool.close();
  await other.close();
  return {
    ours,
    theirs,
    whole_bytes: sum(asked.map((model) => sizes[model]!)),
    loaded_bytes: sum(ours.map(({ load }) => load.missing_bytes)),
    belady_bytes: beladyLoads_bytes(asked, sizes, pool_bytes),
  };
}

/** A cold start: loads the model, computes a prompt and its first token, and lets go of it. */
function request(pool: DevicePool, model_path: string): Omit<Request, 'first'> {
  let load: WeightLoad | undefined;
  const options = {
    model_path,
    threads,
    context_tokens: 128,
    max_sequences: 1,
    prefill_chunk_tokens: 128,
    kv_tokens: 128,
    kv_type: 'f16' as const,
    batch_invariant: false,
  };
  const started = performance.now();
  const opening = pool.open(options, { on_loaded: (done) => (load = done) });
  let engine: NativeEngine | undefined;
  while (!engine) engine = opening.advance(true);
  const load_ms = performance.now() - started;
  engine.add({
    id: 1,
    prompt_tokens: Int32Array.from({ length: prompt_tokens }, (_, index) => index + 1),
    sampler: { sample: (logits) => ({ token: logits.length - 1 }) },
    max_new_tokens: 1,
    stop_tokens: new Set(),
  });
  while (engine.busy) engine.step();
  const ttft_ms = performance.now() - started;
  engine.close();
  return { load_ms, ttft_ms, load: load! };
}

function resultsOf(cell: Cell): BenchResult[] {
  const { locality, ratio, ours, theirs, whole_bytes, loaded_bytes, belady_bytes } = cell;
  const where = `${locality}, pool ${ratio} of the working set`;
  const mine = meanOf(ours, 'load_ms');
  const whole = meanOf(theirs, 'load_ms');
  const first = meanOf(ours, 'ttft_ms');
  const firstWhole = meanOf(theirs, 'ttft_ms');
  const bars = barsOf({ whole_bytes, belady_bytes, load_share: whole / firstWhole });
  const judged = (
    what: string,
    unit: string,
    sides: [ours: number, peer: string, theirs: number],
    gain: number,
    bar: keyof typeof bars,
  ): BenchResult => {
    const { least, words } = bars[bar];
    return result(`${what}, ${where}`, unit, ...sides, gain, words, gain >= least);
  };
  const bytes: [number, string, number] = [loaded_bytes / 1e9, 'Belady', belady_bytes / 1e9];
  return [
    judged('mean load time', 'ms', [mine, 'without reuse', whole], whole / mine, 'load_ratio'),
    judged(
      'mean TTFT of cold starts',
      'ms',
      [first, 'without reuse', firstWhole],
      firstWhole / first,
      'ttft_ratio',
    ),
    judged('bytes loaded', 'GB', bytes, belady_bytes / loaded_bytes, 'bytes_ratio'),
  ];
}

/** Over all cells of a level, as the paper's figure does over its models; every load counts. */
function summary(cells: readonly Cell[]): BenchResult[] {
  const results = localities.flatMap((locality): BenchResult[] => {
    const chosen = cells.filter((cell) => cell.locality === locality);
    const over = (side: 'ours' | 'theirs', what: 'load_ms' | 'ttft_ms', again = false): number =>
      mean(
        chosen
          .flatMap((cell) => cell[side])
          .filter(({ first }) => !again || !first)
          .map((request) => request[what]),
      );
    const loads = (again: boolean): [number, number] => [
      over('ours', 'load_ms', again),
      over('theirs', 'load_ms', again),
    ];
    const [mine, whole] = loads(false);
    const [mineAgain, wholeAgain] = loads(true);
    const lower = 100 * (1 - over('ours', 'ttft_ms') / over('theirs', 'ttft_ms'));
    const where = `${locality}, all pools`;
    return [
      result(
        `mean load time, ${where} (the paper: 1.8 to 6.2×)`,
        'ms',
        mine,
        'without reuse',
        whole,
        whole / mine,
        `ratio ≥ ${load_ratio_min}`,
        whole / mine >= load_ratio_min,
      ),
      result(
        `the same without each model's first load, which nothing could spare (no bar: the line above judges it), ${where}`,
        'ms',
        mineAgain,
        'without reuse',
        wholeAgain,
        wholeAgain / mineAgain,
      ),
      result(
        `TTFT of cold starts lower by, ${where} (the paper: 14 to 60 %)`,
        '%',
        lower,
        '',
        null,
        null,
        `≥ ${ttft_lower_min} %`,
        lower >= ttft_lower_min,
      ),
    ];
  });
  const all = (what: 'load_ms' | 'ttft_ms'): number =>
    mean(cells.flatMap(({ theirs }) => theirs).map((request) => request[what]));
  return [
    ...results,
    // The rest is the prompt: what reuse could save at most.
    result(
      'share of loading in TTFT without reuse (the paper: up to 72 %; no bar: it is of the machine and the prompt)',
      '%',
      (100 * all('load_ms')) / all('ttft_ms'),
      '',
      null,
      null,
    ),
  ];
}

function planningResults(): BenchResult[] {
  measurePlanning(7);
  const { median_ms, worst_ms, moved_bytes, merged_bytes } = measurePlanning(1);
  const saved = 1 - moved_bytes / merged_bytes;
  return [
    result(
      'planning at 1,000 regions, median (the paper: below 1 ms)',
      'ms',
      median_ms,
      '',
      null,
      null,
      '≤ 0.2 ms',
      median_ms <= 0.2,
    ),
    result(
      'planning at 1,000 regions, slowest of 400 (no bar: one in 400 meets the collector or a neighbour)',
      'ms',
      worst_ms,
      '',
      null,
      null,
    ),
    result(
      'bytes moved by packing, less than merging everything by (the paper: 93 %)',
      '%',
      100 * saved,
      '',
      null,
      null,
      '≥ 93 %',
      saved >= 0.93,
    ),
  ];
}

function result(
  what: string,
  unit: string,
  ours: number,
  peer: string,
  theirs: number | null,
  ratio: number | null,
  bar = '',
  holds: boolean | null = null,
): BenchResult {
  return { what, unit, ours, peer, theirs, ratio, bar, holds };
}

function describeCell(cell: Cell): string {
  const [load, ttft, bytes] = resultsOf(cell) as [BenchResult, BenchResult, BenchResult];
  return `${cell.locality} ${cell.ratio}: load ${load.ratio!.toFixed(2)}×, TTFT ${ttft.ratio!.toFixed(2)}×, ${bytes.ours.toFixed(1)} GB loaded, Belady ${bytes.theirs!.toFixed(1)}`;
}

function meanOf(requests: readonly Request[], what: 'load_ms' | 'ttft_ms'): number {
  return mean(requests.map((one) => one[what]));
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function mean(values: readonly number[]): number {
  return sum(values) / values.length;
}
