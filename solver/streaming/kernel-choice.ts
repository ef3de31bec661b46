/**
 * Which kernel multiplies with weights that are not resident. `hybrid` reads them from host memory as it goes;
 * `staged` multiplies with a copy that was brought into an arena of the device before. Few rows over many columns load
 * the link, and the copy would only add traffic to device memory; many rows use each weight often, and the copy lets
 * them read it there.
 */
import {
  bestHybrid,
  type HybridSetting,
  hybridCost,
  type Product,
  type ProductCost,
  productTime_s,
  type SliceFigures,
  tile_rows_choices,
  tiledCompute_s,
} from './hybrid-product.ts';

export type StreamedKernel =
  | ({ kernel: 'hybrid'; cost: ProductCost; seconds: number } & HybridSetting)
  | { kernel: 'staged'; tile_rows: number; cost: ProductCost; seconds: number };

export interface KernelOptions {
  /** Room for a copy of the product's weights; 0: there is no arena. */
  arena_bytes: number;
}

const activation_bytes = 2;

/** The faster of both; where they are as fast, the one that needs no arena. */
export function chooseKernel(
  product: Product,
  slice: SliceFigures,
  { arena_bytes }: KernelOptions,
): StreamedKernel {
  const { cost, ...setting } = bestHybrid(product, slice);
  const hybrid = { kernel: 'hybrid' as const, ...setting, cost, seconds: productTime_s(cost, slice) };
  if (weightsOf_bytes(product) > arena_bytes) return hybrid;
  const staged = stagedChoice(product, slice);
  return staged.seconds < hybrid.seconds ? staged : hybrid;
}

/** A kernel whose access pattern follows nothing: what there is without a choice. */
export function fixedKernel(product: Product, setting: HybridSetting, slice: SliceFigures): StreamedKernel {
  const cost = hybridCost(product, setting, slice);
  return { kernel: 'hybrid', ...setting, cost, seconds: productTime_s(cost, slice) };
}

/** Weights cross the link once, are written to the arena and read from there; the copy of the next layer overlaps. */
function stagedChoice(product: Product, slice: SliceFigures): StreamedKernel {
  const weight_bytes = weightsOf_bytes(product);
  const { rows, columns, inner } = product;
  const [tile_rows, compute_s] = tile_rows_choices
    .map((tile): [number, number] => [tile, tiledCompute_s(product, tile, slice)])
    .reduce((best, next) => (next[1] < best[1] ? next : best));
  const cost = {
    link_bytes: weight_bytes,
    device_bytes: 2 * weight_bytes + rows * (inner + columns) * activation_bytes,
    compute_s,
  };
  return { kernel: 'staged', tile_rows, cost, seconds: productTime_s(cost, slice) };
}

function weightsOf_bytes({ columns, inner, bytes_per_weight }: Product): number {
  return columns * inner * bytes_per_weight;
}
