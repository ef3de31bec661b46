/**
 * Our products for CPUs beside ggml's own: the same type and shape, the same threads of the same pool, alternating,
 * with weights that come from memory. Shapes are those of Llama-3.2-1B, and a quarter of the experts of a layer of
 * Qwen3-30B-A3B. Arguments: `--threads N` (default: all, at most
 * 16), `--rounds N` (default 5; the best counts), `--type BF16|F16|Q4_0|Q8_0|Q4_K|Q6_K` (default all),
 * `--matrix NAME` (part of a name of a matrix), `--rows N`, repeated (default 1, 4, 16, 64, 128 and 512),
 * `--set AVX2|'AVX-512 VNNI'|'AVX-512 BF16'|AMX-BF16` (instruction sets of ours, repeated; default the fastest one),
 * `--torch PYTHON` (one with torch, for oneDNN's BF16 product on the same cores; default: one that is at hand).
 */
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { CpuCompute } from '../../agent/backend/cpu/cpu-compute.ts';
import { KernelChoice } from '../../agent/engine/kernel-choice.ts';
import { type TimedMatrix, TimedProduct } from '../../agent/engine/timed-product.ts';
import { loadCpuKernels } from '../../native/cpu-kernels.ts';
import { type Ggml, loadGgml } from '../../native/ggml.ts';
import { PackedProducts } from '../../native/packed-products.ts';
import { ProofCache } from '../../native/proof-cache.ts';
import type { Pointer } from '../../native/signature.ts';
import { pythonWith } from '../../test/engines/environments.ts';
import { MissingNeed } from '../need.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { onednnRates } from './onednn.ts';

const types = ['BF16', 'F16', 'Q4_0', 'Q8_0', 'Q4_K', 'Q6_K'];
const all_row_counts = [1, 4, 16, 64, 128, 512];
/** n × k. */
const all_matrices: readonly TimedMixture[] = [
  { what: 'Q, K and V', n: 3072, k: 2048 },
  { what: 'attention output', n: 2048, k: 2048 },
  { what: 'gate and up', n: 16384, k: 2048 },
  { what: 'down', n: 2048, k: 8192 },
  { what: 'experts, gate or up', n: 768, k: 2048, experts: 32, used: 8 },
  { what: 'experts, down', n: 2048, k: 768, experts: 32, used: 8 },
];
/** More than the second caches hold; fewer for many rows, whose weights are used often. */
const weight_bytes = { few_rows: 256e6, many_rows: 64e6 };
const few_rows_max = 16;
const bar = 1;
const onednn_bar = 0.8;

interface Settings {
  ggml: Ggml;
  packed: PackedProducts;
  row_counts: readonly number[];
  compute: CpuCompute;
  rounds: number;
  matrices: readonly TimedMixture[];
  /** GFLOP/s of oneDNN by `key`, where it was measured. */
  onednn: ReadonlyMap<string, number>;
}

/** A matrix, or those of experts of which each row takes some. */
interface TimedMixture {
  what: string;
  n: number;
  k: number;
  experts?: number;
  used?: number;
}

interface ProductShape extends TimedMatrix {
  m: number;
}

const flops = ({ n, k, m, used = 1 }: ProductShape): number => 2 * n * k * m * used;
const key = ({ n, k, m }: ProductShape): string => [n, k, m].join();

/** GFLOP/s of each layout, in turns. */
function compare(
  { ggml, packed, compute, rounds }: Settings,
  shape: ProductShape,
  layouts: readonly Pointer[],
): number[] {
  const bytes = shape.m <= few_rows_max ? weight_bytes.few_rows : weight_bytes.many_rows;
  const products = layouts.map(
    (layout) => new TimedProduct(ggml, compute, layout, shape, [shape.m], bytes, packed),
  );
  const best = products.map(() => Number.POSITIVE_INFINITY);
  try {
    // The first round warms up, and may count all the same: the best does.
    for (let round = 0; round <= rounds; round++)
      for (const [index, product] of products.entries())
        best[index] = Math.min(best[index]!, product.run_ms(shape.m));
  } finally {
    for (const product of products) product.free();
  }
  return best.map((ms) => flops(shape) / ms / 1e6);
}

function measure(settings: Settings, type: string, log: (line: string) => void): BenchResult[] {
  const { ggml, packed, onednn, matrices, row_counts } = settings;
  const choice = new KernelChoice(ggml, ProofCache.open(ggml));
  const results: BenchResult[] = [];
  for (const { what, n, k, experts, used } of matrices) {
    const mixture = experts === undefined ? {} : { experts, used: used! };
    const use = experts === undefined ? ('matrix' as const) : ('experts' as const);
    const weight = { name: what, type, shape: [k, n, experts ?? 1], use, parts: [] };
    const theirLayout = choice.bufferTypeFor(weight, 'ggml') ?? ggml.ggml_backend_cpu_buffer_type()!;
    const peer = `ggml ${ggml.ggml_backend_buft_name(theirLayout)}`;
    for (const m of row_counts) {
      const shape = { type, n, k, m, ...mixture };
      const [own, other] = compare(settings, shape, [packed.bufferType, theirLayout]) as [number, number];
      log(`${packed.set.name}, ${type} ${what}, ${m} rows: ${own.toFixed(0)} / ${other.toFixed(0)} GFLOP/s`);
      const row = {
        what: `${packed.set.name}: ${type} ${what} (${n} × ${k}), ${m} rows`,
        unit: 'GFLOP/s',
        ours: own,
      };
      const ratio = own / other;
      results.push({ ...row, peer, theirs: other, ratio, bar: `ratio ≥ ${bar}`, holds: ratio >= bar });
      const reference = type === 'BF16' && experts === undefined ? onednn.get(key(shape)) : undefined;
      if (reference === undefined) continue;
      const share = own / reference;
      const judged = { ratio: share, bar: `ratio ≥ ${onednn_bar}`, holds: share >= onednn_bar };
      results.push({ ...row, peer: 'oneDNN (torch)', theirs: reference, ...judged });
    }
  }
  return results;
}

/** @returns GFLOP/s of oneDNN by `key`; none where it has no product in BF16 for this CPU */
function measureOnednn(
  python: string,
  {
    threads,
    rounds,
    matrices,
    row_counts,
  }: { threads: number; rounds: number; matrices: readonly TimedMixture[]; row_counts: readonly number[] },
): Map<string, number> {
  const dense = matrices.filter(({ experts }) => experts === undefined);
  const shapes = dense.flatMap(({ n, k }) =>
    row_counts.map((m) => {
      const bytes = m <= few_rows_max ? weight_bytes.few_rows : weight_bytes.many_rows;
      return { type: 'BF16', n, k, m, weight_bytes: bytes };
    }),
  );
  const rates = onednnRates(python, shapes, threads, rounds);
  return new Map(rates?.map((rate, index) => [key(shapes[index]!), rate]));
}

/**
 * Our products by each of these instruction sets, or by the fastest.
 * @throws MissingNeed
 */
function productsBy(ggml: Ggml, names: readonly string[] | undefined): PackedProducts[] {
  const kernels = loadCpuKernels();
  if (!kernels)
    throw new MissingNeed(
      'there are no products of our own here',
      'install a C compiler, then: npm run build',
    );
  const here = kernels.sets.map(({ name }) => name);
  return (names ?? here.slice(0, 1)).map((name) => {
    const set = kernels.sets.find((one) => one.name === name);
    const packed = set && PackedProducts.open(ggml, kernels, set);
    if (!packed)
      throw new MissingNeed(`no products of ours run here by "${name}"`, `--set ${here.join(', ')}`);
    return packed;
  });
}

async function run({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      threads: { type: 'string', default: String(Math.min(16, availableParallelism())) },
      rounds: { type: 'string', default: '5' },
      type: { type: 'string', multiple: true, default: [...types] },
      matrix: { type: 'string', default: '' },
      rows: { type: 'string', multiple: true, default: all_row_counts.map(String) },
      set: { type: 'string', multiple: true },
      torch: { type: 'string' },
    },
  });
  const ggml = loadGgml();
  const contenders = productsBy(ggml, values.set);
  const threads = Number(values.threads);
  const rounds = Number(values.rounds);
  const row_counts = values.rows.map(Number);
  log(`${threads} threads, ${contenders.map(({ set }) => set.name).join(', ')}`);
  const python = values.torch ?? pythonWith(['torch']).found;
  if (python === undefined) log('oneDNN is left out: no Python has torch here (npm run engines -- vllm)');
  const matrices = all_matrices.filter(({ what }) => what.includes(values.matrix));
  const hasBf16 = values.type.includes('BF16');
  const onednn =
    python === undefined || !hasBf16
      ? new Map<string, number>()
      : measureOnednn(python, { threads, rounds, matrices, row_counts });
  if (python !== undefined && hasBf16 && onednn.size === 0)
    log('oneDNN is left out: it has no product in BF16 for this CPU');
  const compute = new CpuCompute(ggml, { threads, fixed_paths: false });
  try {
    const common = { ggml, compute, rounds, matrices, onednn, row_counts };
    return contenders.flatMap((packed) =>
      types
        .filter((type) => values.type.includes(type))
        .flatMap((type) => measure({ ...common, packed }, type, log)),
    );
  } finally {
    compute.free();
  }
}

export const kernelsBench: Bench = {
  name: 'kernels',
  describe: 'our matrix products for CPUs beside those of ggml, and beside oneDNN where torch is at hand',
  run,
};
