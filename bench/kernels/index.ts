/**
 * Our products for CPUs beside ggml's own: the same type and shape, the same threads of the same pool, alternating,
 * with weights that come from memory. Shapes are those of Llama-3.2-1B. Arguments: `--threads N` (default: all, at most
 * 16), `--rounds N` (default 5; the best counts), `--type BF16|F16|Q4_0|Q8_0|Q4_K|Q6_K` (default all),
 * `--torch PYTHON` (one with torch: oneDNN's BF16 product on the same cores).
 */
import { execFileSync } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { CpuCompute } from '../../agent/backend/cpu/cpu-compute.ts';
import { KernelChoice } from '../../agent/engine/kernel-choice.ts';
import { TimedProduct } from '../../agent/engine/timed-product.ts';
import { type Ggml, loadGgml } from '../../native/ggml.ts';
import { type PackedProducts, packedProducts } from '../../native/packed-products.ts';
import { ProofCache } from '../../native/proof-cache.ts';
import type { Pointer } from '../../native/signature.ts';
import { MissingNeed } from '../need.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';

const types = ['BF16', 'F16', 'Q4_0', 'Q8_0', 'Q4_K', 'Q6_K'];
const row_counts = [1, 4, 16, 64, 128, 512];
/** n × k. */
const matrices = [
  { what: 'Q, K and V', n: 3072, k: 2048 },
  { what: 'attention output', n: 2048, k: 2048 },
  { what: 'gate and up', n: 16384, k: 2048 },
  { what: 'down', n: 2048, k: 8192 },
];
/** More than the second caches hold; fewer for many rows, whose weights are used often. */
const weight_bytes = { few_rows: 256e6, many_rows: 64e6 };
const few_rows_max = 16;
const bar = 1;
const onednn_bar = 0.8;

interface Settings {
  ggml: Ggml;
  packed: PackedProducts;
  compute: CpuCompute;
  rounds: number;
  /** GFLOP/s of oneDNN by `key`, where it was measured. */
  onednn: ReadonlyMap<string, number>;
}

interface ProductShape {
  type: string;
  n: number;
  k: number;
  m: number;
}

const flops = ({ n, k, m }: ProductShape): number => 2 * n * k * m;
const key = ({ n, k, m }: ProductShape): string => [n, k, m].join();

/** GFLOP/s of each layout, in turns. */
function compare(
  { ggml, compute, rounds }: Settings,
  shape: ProductShape,
  layouts: readonly Pointer[],
): number[] {
  const bytes = shape.m <= few_rows_max ? weight_bytes.few_rows : weight_bytes.many_rows;
  const products = layouts.map((layout) => new TimedProduct(ggml, compute, layout, shape, [shape.m], bytes));
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
  const { ggml, packed, onednn } = settings;
  const choice = new KernelChoice(ggml, ProofCache.open(ggml));
  const results: BenchResult[] = [];
  for (const { what, n, k } of matrices) {
    const weight = { name: what, type, shape: [k, n], use: 'matrix' as const, parts: [] };
    const theirLayout = choice.bufferTypeFor(weight, 'ggml') ?? ggml.ggml_backend_cpu_buffer_type()!;
    const peer = `ggml ${ggml.ggml_backend_buft_name(theirLayout)}`;
    for (const m of row_counts) {
      const shape = { type, n, k, m };
      const [own, other] = compare(settings, shape, [packed.bufferType, theirLayout]) as [number, number];
      log(`${type} ${what}, ${m} rows: ${own.toFixed(0)} / ${other.toFixed(0)} GFLOP/s`);
      const row = { what: `${type} ${what} (${n} × ${k}), ${m} rows`, unit: 'GFLOP/s', ours: own };
      const ratio = own / other;
      results.push({ ...row, peer, theirs: other, ratio, bar: `ratio ≥ ${bar}`, holds: ratio >= bar });
      const reference = type === 'BF16' ? onednn.get(key(shape)) : undefined;
      if (reference === undefined) continue;
      const share = own / reference;
      const judged = { ratio: share, bar: `ratio ≥ ${onednn_bar}`, holds: share >= onednn_bar };
      results.push({ ...row, peer: 'oneDNN (torch)', theirs: reference, ...judged });
    }
  }
  return results;
}

/** The same product in torch, by as many matrices in turn; prints GFLOP/s of each shape. */
const torchProgram = `
import sys, time, json, torch
shapes, threads, rounds = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
found = []
with torch.inference_mode():
  for n, k, m, weight_bytes in shapes:
    count = max(1, round(weight_bytes / (2 * n * k)))
    layers = [torch.nn.Linear(k, n, bias=False, dtype=torch.bfloat16) for _ in range(count)]
    x = torch.randn(m, k, dtype=torch.bfloat16)
    best = 1e9
    for _ in range(rounds + 1):
      start = time.perf_counter()
      for layer in layers: layer(x)
      best = min(best, (time.perf_counter() - start) / count)
    found.append(2 * n * k * m / best / 1e9)
print(json.dumps(found))
`;

function measureTorch(python: string, threads: number, rounds: number): Map<string, number> {
  const shapes = matrices.flatMap(({ n, k }) => row_counts.map((m) => ({ type: 'BF16', n, k, m })));
  const asked = shapes.map(({ n, k, m }) => {
    const bytes = m <= few_rows_max ? weight_bytes.few_rows : weight_bytes.many_rows;
    return [n, k, m, bytes];
  });
  const args = ['-c', torchProgram, JSON.stringify(asked), String(threads), String(rounds)];
  const found: unknown = JSON.parse(execFileSync(python, args, { encoding: 'utf8' }));
  if (!Array.isArray(found) || found.length !== shapes.length)
    throw new Error(`${python} printed no figures`);
  return new Map(shapes.map((shape, index) => [key(shape), Number(found[index])]));
}

async function run({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      threads: { type: 'string', default: String(Math.min(16, availableParallelism())) },
      rounds: { type: 'string', default: '5' },
      type: { type: 'string', multiple: true, default: [...types] },
      torch: { type: 'string' },
    },
  });
  const ggml = loadGgml();
  const packed = packedProducts(ggml);
  if (!packed)
    throw new MissingNeed(
      'there are no products of our own here',
      'install a C compiler, then: npm run build',
    );
  const threads = Number(values.threads);
  const rounds = Number(values.rounds);
  log(`${threads} threads, ${packed.set.name}`);
  const onednn =
    values.torch === undefined ? new Map<string, number>() : measureTorch(values.torch, threads, rounds);
  const compute = new CpuCompute(ggml, { threads, fixed_paths: false });
  try {
    const settings = { ggml, packed, compute, rounds, onednn };
    return types.filter((type) => values.type.includes(type)).flatMap((type) => measure(settings, type, log));
  } finally {
    compute.free();
  }
}

export const kernelsBench: Bench = {
  name: 'kernels',
  describe: 'our matrix products for CPUs beside those of ggml, and beside oneDNN where torch is at hand',
  run,
};
