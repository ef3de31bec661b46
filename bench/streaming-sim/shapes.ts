/**
 * Products by shape, α and neighbours: the paper's Figs. 5, 6 and 8, without their axes' figures, which nobody told us.
 */

import {
  bestHybrid,
  hybridCost,
  productTime_s,
  tile_rows_choices,
} from '../../solver/streaming/hybrid-product.ts';
import { chooseKernel, fixedKernel } from '../../solver/streaming/kernel-choice.ts';
import { divideLink } from '../../solver/streaming/shared-link.ts';
import type { BenchResult } from '../result.ts';
import { machineOf, paperModels } from './setup.ts';

const inner = 4096;
const arena = { arena_bytes: Number.POSITIVE_INFINITY };

export function shapeResults(log: (line: string) => void): BenchResult[] {
  logShapes(log);
  logNeighbours(log);
  return alphaResults(log);
}

/** Fig. 5: small shapes leave the GPU idle, wide ones load the link, tall ones reuse what they read. */
function logShapes(log: (line: string) => void): void {
  const { figures } = machineOf('the whole GPU').slices[0]!;
  log(
    'products with weights in host memory on the whole GPU (BF16, K = 4096): TFLOP/s, share of the link, kernel',
  );
  for (const columns of [1024, 4096, 14_336, 28_672]) {
    const cells = [1, 16, 64, 256, 1024, 4096].map((rows) => {
      const { seconds, cost, kernel } = chooseKernel(
        { rows, columns, inner, bytes_per_weight: 2 },
        figures,
        arena,
      );
      const tflops = (2 * rows * columns * inner) / seconds / 1e12;
      const link = cost.link_bytes / seconds / figures.link_bytes_per_s;
      return `M ${rows}: ${tflops.toFixed(tflops < 10 ? 1 : 0)}, ${(100 * link).toFixed(0)} %, ${kernel}`.padEnd(
        26,
      );
    });
    log(`  N ${String(columns).padStart(6)}  ${cells.join(' ')}`);
  }
}

/** Fig. 6: slices that stream at once divide the link. */
function logNeighbours(log: (line: string) => void): void {
  const machine = machineOf('seven slices (1g)');
  const link = [...machine.links.values()][0]!;
  const { figures } = machine.slices[0]!;
  const llama = paperModels[1]!;
  log(`a token of ${llama.name}, all of it streamed, by slices (1g) that stream at once:`);
  const cells = Array.from({ length: 7 }, (_, others) => {
    const given = divideLink(
      link,
      Array.from({ length: others + 1 }, () => figures.link_bytes_per_s),
    )[0]!;
    const all = (others + 1) * given;
    const busy = `${(all / 1e9).toFixed(0)} GB/s together, ${((100 * all) / link.bytes_per_s).toFixed(0)} % of the link`;
    return `${others + 1}: ${((1000 * llama.dense_bytes) / given).toFixed(0)} ms at ${(given / 1e9).toFixed(0)} GB/s (${busy})`;
  });
  log(`  ${cells.join(' · ')}`);
}

/** Fig. 8 and the sensitivity to α: the time of one product over α, alone and beside six neighbours. */
function alphaResults(log: (line: string) => void): BenchResult[] {
  const machine = machineOf('seven slices (1g)');
  const link = [...machine.links.values()][0]!;
  const { figures } = machine.slices[0]!;
  const product = { rows: 512, columns: 28_672, inner, bytes_per_weight: 2 };
  const crowded = divideLink(
    link,
    machine.slices.map((slice) => slice.figures.link_bytes_per_s),
  )[0]!;
  const results: BenchResult[] = [];
  for (const [name, link_bytes_per_s] of [
    ['alone', figures.link_bytes_per_s],
    ['beside six neighbours', crowded],
  ] as const) {
    const own = { ...figures, link_bytes_per_s };
    const ms = (alpha: number, tile_rows: number): number =>
      1000 * productTime_s(hybridCost(product, { alpha, tile_rows }, own), own);
    log(`512 rows by ${product.columns} columns on a slice (1g), ${name}: ms over α, by rows of a tile`);
    for (const tile_rows of tile_rows_choices)
      log(
        `  ${String(tile_rows).padStart(4)}  ${[0, 0.25, 0.5, 0.75, 1].map((alpha) => `α ${alpha}: ${ms(alpha, tile_rows).toFixed(1)}`.padEnd(16)).join('')}`,
      );
    const best = bestHybrid(product, own);
    const best_ms = 1000 * productTime_s(best.cost, own);
    const fixed_ms = 1000 * fixedKernel(product, { alpha: 0, tile_rows: 64 }, own).seconds;
    log(`  chosen: α ${best.alpha.toFixed(2)}, ${best.tile_rows} rows: ${best_ms.toFixed(1)} ms`);
    results.push({
      what: `512 rows with weights in host memory on a slice (1g), ${name}: α and tile chosen`,
      unit: 'ms',
      ours: best_ms,
      peer: 'α 0, 64 rows',
      theirs: fixed_ms,
      ratio: fixed_ms / best_ms,
      bar: 'ratio ≥ 1',
      holds: fixed_ms >= best_ms,
    });
  }
  return results;
}
