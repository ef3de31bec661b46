/**
 * Attention of one layer by our operator, beside ggml's over keys that lie side by side, and beside ggml's with the
 * gather that it needs where they do not: the same heads, the same cache and threads, alternating. Heads are those of
 * Llama-3.2-1B, or `--heads n_head,n_head_kv,head_dim`. Arguments: `--threads N` (default: all, at most 16),
 * `--rounds N` (default 10; the best counts), `--kv f16|q8_0` (default both), `--only SHAPE`. With `--whole` besides:
 * decode steps of the whole model with 16 sequences of 4,096 tokens each, with either attention, and libllama's; 7 GB
 * of memory.
 */
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { CpuCompute } from '../../agent/backend/cpu/cpu-compute.ts';
import { type AttentionWay, TimedAttention, type TimedSegment } from '../../agent/engine/timed-attention.ts';
import { loadCpuKernels } from '../../native/cpu-kernels.ts';
import { GgmlType, loadGgml } from '../../native/ggml.ts';
import { type AttentionHeads, PagedAttention } from '../../native/paged-attention.ts';
import { MissingNeed } from '../need.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { measureWhole } from './whole-model.ts';

const kvTypes = { f16: GgmlType.F16, q8_0: GgmlType.Q8_0 } as const;
const repeated = (count: number, segment: TimedSegment): TimedSegment[] => new Array(count).fill(segment);
const shapes: { what: string; segments: TimedSegment[]; bar: number | null }[] = [
  { what: 'decode, 1 × 512 tokens', segments: [{ rows: 1, position: 511 }], bar: 1 },
  { what: 'decode, 1 × 4,096 tokens', segments: [{ rows: 1, position: 4095 }], bar: 1 },
  { what: 'decode, 16 × 512 tokens', segments: repeated(16, { rows: 1, position: 511 }), bar: 1 },
  { what: 'decode, 16 × 4,096 tokens', segments: repeated(16, { rows: 1, position: 4095 }), bar: 1.5 },
  { what: 'prompt of 512', segments: [{ rows: 512, position: 0 }], bar: 1 },
  { what: 'chunk of 512 behind 3,584', segments: [{ rows: 512, position: 3584 }], bar: 1 },
];

async function run({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      threads: { type: 'string', default: String(Math.min(16, availableParallelism())) },
      rounds: { type: 'string', default: '10' },
      kv: { type: 'string', multiple: true, default: Object.keys(kvTypes) },
      heads: { type: 'string', default: '32,8,64' },
      only: { type: 'string', default: '' },
      whole: { type: 'boolean', default: false },
    },
  });
  const ggml = loadGgml();
  const kernels = loadCpuKernels();
  const [n_head, n_head_kv, head_dim] = values.heads.split(',').map(Number) as [number, number, number];
  const compute = new CpuCompute(ggml, { threads: Number(values.threads), fixed_paths: false });
  const results: BenchResult[] = [];
  try {
    for (const [kv, kv_type] of Object.entries(kvTypes)) {
      if (!values.kv.includes(kv)) continue;
      const heads: AttentionHeads = { kv_type, n_head, n_head_kv, head_dim };
      const paged = kernels && PagedAttention.open(ggml, kernels, heads);
      if (!paged)
        throw new MissingNeed(
          'there is no attention of our own here',
          'install a C compiler, then: npm run build',
        );
      const ways: AttentionWay[] = [paged, 'in place', 'gathered'];
      for (const { what, segments, bar } of shapes) {
        if (!what.includes(values.only)) continue;
        const timed = ways.map((way) => new TimedAttention(ggml, compute, way, heads, segments));
        const best = timed.map(() => Number.POSITIVE_INFINITY);
        for (let round = 0; round <= Number(values.rounds); round++)
          for (const [index, one] of timed.entries()) best[index] = Math.min(best[index]!, one.run_ms());
        for (const one of timed) one.free();
        const [own, ...others] = best as [number, number, number];
        log(`${kv}, ${what}: ${best.map((ms) => ms.toFixed(2)).join(' / ')} ms`);
        for (const [index, theirs] of others.entries()) {
          const peer = `ggml, ${ways[index + 1]}`;
          const row = { what: `${kv} keys and values, ${what}`, unit: 'ms', ours: own, peer, theirs };
          const ratio = theirs / own;
          const bound = bar === null ? '' : `ratio ≥ ${bar}`;
          results.push({ ...row, ratio, bar: bound, holds: bar === null ? null : ratio >= bar });
        }
      }
    }
  } finally {
    compute.free();
  }
  if (values.whole) results.push(...(await measureWhole(Number(values.threads), log)));
  return results;
}

export const attentionBench: Bench = {
  name: 'attention',
  describe: 'attention over block tables for CPUs beside ggml’s, with keys side by side and gathered',
  run,
};
