/** Time of one matrix product on one device. */
import type { DeviceSpec } from '../catalog/device-spec.ts';
import type { DeviceConstants } from './calibration.ts';
import type { Gemm } from './operators.ts';

const activation_bytes = 2;

/** How a grouped product of experts differs from a plain one. */
export interface Grouping {
  /** Weight matrices that are read. */
  groups: number;
  compute_share: number;
  memory_share: number;
}

const single: Grouping = { groups: 1, compute_share: 1, memory_share: 1 };

/**
 * Seconds of `rows` rows through a product: smooth maximum of the time of arithmetic, whose rows are padded
 * to tiles, and the time to read weights and activations (roofline: Williams et al., CACM 2009), plus a fixed
 * time. Of a grouped product each group is padded, by less, since its tiles are smaller.
 */
export function gemmTime_s(
  gemm: Gemm,
  rows: number,
  device: DeviceSpec,
  constants: DeviceConstants,
  { groups, compute_share, memory_share }: Grouping = single,
): number {
  const { columns, inner } = gemm;
  const narrow = gemm.compute === 'fp8' || gemm.compute === 'int8' || gemm.compute === 'fp4';
  const peak =
    (device.peak_flops_per_s[gemm.compute] ?? 1) *
    (narrow ? constants.gemm_compute_narrow : constants.gemm_compute) *
    compute_share;
  const padded = rows + constants.gemm_pad_rows * (groups === 1 ? 1 : groups / 8);
  const arithmetic = (2 * padded * columns * inner) / peak;
  const bytes =
    (groups * columns * inner * gemm.bits_per_weight) / 8 + rows * (columns + inner) * activation_bytes;
  const memory = bytes / (device.memory_bandwidth_bytes_per_s * constants.gemm_memory * memory_share);
  return constants.gemm_s + smoothMaximum(arithmetic, memory, constants.gemm_sharpness);
}

/** The p-norm of two numbers of at least 0: their maximum for p → ∞. */
export function smoothMaximum(a: number, b: number, p: number): number {
  const larger = Math.max(a, b);
  if (larger === 0 || p === Number.POSITIVE_INFINITY) return larger;
  return larger * ((a / larger) ** p + (b / larger) ** p) ** (1 / p);
}
