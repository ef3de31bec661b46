/**
 * A matrix product whose weights stay in host memory: what crosses the link, what goes through device memory, and how
 * long it takes, by the two ways of going about it and the share α between them (HybridGEMM of C2CServe, whose text
 * gives the knob and not the formulas; these are ours).
 *
 *   rows × inner activations (device)   ·   inner × columns weights (host)   =   rows × columns (device)
 *
 *   tiled        a tile of results stays on the chip while weights pass by: every tile of rows reads them again
 *   stationary   a panel of weights stays on the chip while all rows pass by: weights cross the link once, and partial
 *                sums go to device memory and back for every panel along `inner`
 *
 * α is the share of the columns that goes the second way: a larger one spares the link and loads device memory.
 */

/** A slice of a GPU, as products see it: what kernels reach, not what the data sheet says. */
export interface SliceFigures {
  flops_per_s: number;
  memory_bytes_per_s: number;
  /** Of reads from host memory while nobody else reads. */
  link_bytes_per_s: number;
  /** Multiprocessors: so many tiles are computed at once. */
  processors: number;
}

export interface Product {
  rows: number;
  columns: number;
  inner: number;
  bytes_per_weight: number;
}

export interface HybridSetting {
  /** Share of the columns whose weights are stationary, 0 to 1. */
  alpha: number;
  /** Rows of a tile: the M tile. */
  tile_rows: number;
}

export interface ProductCost {
  link_bytes: number;
  device_bytes: number;
  compute_s: number;
}

/** M tiles that the kernel is compiled for. */
export const tile_rows_choices = [16, 32, 64, 128, 256] as const;
const tile_columns = 128;
/** Depth of a panel of 128 columns that fits beside two tiles into the 227 KiB that a block may have (Hopper). */
const panel_inner = 512;
const activation_bytes = 2;
const partial_sum_bytes = 4;

/**
 * What a product moves and computes with one setting. Weights that are read again are taken to cross the link again.
 */
export function hybridCost(
  product: Product,
  { alpha, tile_rows }: HybridSetting,
  slice: SliceFigures,
): ProductCost {
  const { rows, columns, inner, bytes_per_weight } = product;
  const row_tiles = Math.ceil(rows / tile_rows);
  const panels = Math.ceil(inner / panel_inner);
  const weight_bytes = inner * columns * bytes_per_weight;
  // The last pass over partial sums is that of the results, which both ways write.
  const partial_bytes = rows * columns * partial_sum_bytes * 2 * (panels - 1);
  return {
    link_bytes: weight_bytes * (alpha + (1 - alpha) * row_tiles),
    device_bytes: rows * (inner + columns) * activation_bytes + alpha * partial_bytes,
    compute_s: tiledCompute_s(product, tile_rows, slice),
  };
}

/** Arithmetic of whole tiles, in whole waves over the multiprocessors. */
export function tiledCompute_s(
  { rows, columns, inner }: Product,
  tile_rows: number,
  slice: SliceFigures,
): number {
  const row_tiles = Math.ceil(rows / tile_rows);
  const tiles = row_tiles * Math.ceil(columns / tile_columns);
  const waves = Math.ceil(tiles / slice.processors);
  const filled = tiles / (waves * slice.processors);
  return (2 * row_tiles * tile_rows * columns * inner) / (slice.flops_per_s * filled);
}

/** The three overlap: the slowest decides (roofline, Williams et al., CACM 2009). */
export function productTime_s(cost: ProductCost, slice: SliceFigures): number {
  return Math.max(
    cost.link_bytes / slice.link_bytes_per_s,
    cost.device_bytes / slice.memory_bytes_per_s,
    cost.compute_s,
  );
}

/**
 * The α of least time for an M tile. Link traffic falls with α and device traffic rises with it, both linearly, so the
 * best lies where they take equally long, or at an end. Where several are as fast (arithmetic decides), the largest:
 * it leaves the most of the link to neighbours.
 */
export function bestAlpha(product: Product, tile_rows: number, slice: SliceFigures): number {
  const tiled = hybridCost(product, { alpha: 0, tile_rows }, slice);
  const stationary = hybridCost(product, { alpha: 1, tile_rows }, slice);
  // Every tile of rows is the only one: nothing is read twice.
  if (tiled.link_bytes === stationary.link_bytes) return 0;
  const link_s = (cost: ProductCost): number => cost.link_bytes / slice.link_bytes_per_s;
  const device_s = (cost: ProductCost): number => cost.device_bytes / slice.memory_bytes_per_s;
  const falls_s = link_s(tiled) - link_s(stationary);
  const rises_s = device_s(stationary) - device_s(tiled);
  const crossing = clampShare((link_s(tiled) - device_s(tiled)) / (falls_s + rises_s));
  const fastest_s = productTime_s(hybridCost(product, { alpha: crossing, tile_rows }, slice), slice);
  if (rises_s === 0) return 1;
  return Math.max(crossing, clampShare((fastest_s - device_s(tiled)) / rises_s));
}

/** The fastest setting of all; of equally fast ones the one that loads the link least, then the smallest tile. */
export function bestHybrid(product: Product, slice: SliceFigures): HybridSetting & { cost: ProductCost } {
  let best: (HybridSetting & { cost: ProductCost }) | undefined;
  let best_s = Number.POSITIVE_INFINITY;
  for (const tile_rows of tile_rows_choices) {
    const alpha = bestAlpha(product, tile_rows, slice);
    const cost = hybridCost(product, { alpha, tile_rows }, slice);
    const seconds = productTime_s(cost, slice);
    const faster = seconds < best_s * (1 - equal_share);
    const as_fast = seconds <= best_s * (1 + equal_share);
    if (best && !faster && !(as_fast && cost.link_bytes < best.cost.link_bytes)) continue;
    best = { alpha, tile_rows, cost };
    best_s = Math.min(best_s, seconds);
  }
  return best!;
}

/** Times this close are the same. */
const equal_share = 1e-9;

function clampShare(value: number): number {
  return Math.min(1, Math.max(0, value));
}
