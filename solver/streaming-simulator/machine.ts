/**
 * Superchips cut into MIG slices, whose slices share the link to host memory. Figures are the catalog's, with the
 * shares that were fitted for Hopper; what is assumed beyond them is stated at each constant.
 */
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { findDevice } from '../catalog/devices.ts';
import { migSlice } from '../catalog/mig.ts';
import { type Calibration, calibrationFor } from '../simulator/calibration.ts';
import type { SliceFigures } from '../streaming/hybrid-product.ts';
import type { SharedLink } from '../streaming/shared-link.ts';

export interface SimulatedSlice {
  id: string;
  link: string;
  device: DeviceSpec;
  calibration: Calibration;
  figures: SliceFigures;
  /** Of what the link gives it alone, what its products count on, as a plan divides the link; absent: all of it. */
  link_share?: number;
}

export interface StreamingMachine {
  links: ReadonlyMap<string, SharedLink>;
  slices: readonly SimulatedSlice[];
}

export interface LinkAssumptions {
  /** NVLink-C2C: 450 GB/s in one direction by NVIDIA's data sheet, of which reads reach this share. Assumed. */
  reached_share: number;
  /** A slice reads at most so many times its share of the GPU's multiprocessors. Assumed: 1 to 7. */
  slice_factor: number;
  /** See `SharedLink`. Assumed. */
  loss_per_reader: number;
}

const link_assumptions: LinkAssumptions = {
  reached_share: 0.85,
  slice_factor: 2,
  loss_per_reader: 0.02,
};

const c2c_bytes_per_s = 450e9;
/** Of a whole H100, and of each compute slice (NVIDIA MIG user guide). */
const processors_whole = 132;
const processors_per_slice = 16;

/** @param layout MIG profiles of each superchip; `7g.96gb` is the whole GPU */
export function gh200Machine(
  layout: readonly string[],
  chips = 1,
  assumptions: LinkAssumptions = link_assumptions,
): StreamingMachine {
  const { reached_share, slice_factor, loss_per_reader } = assumptions;
  const bytes_per_s = reached_share * c2c_bytes_per_s;
  const names = Array.from({ length: chips }, (_, chip) => `chip-${chip}`);
  const whole = findDevice('GH200');
  return {
    links: new Map(names.map((name) => [name, { bytes_per_s, loss_per_reader }])),
    slices: names.flatMap((link) =>
      layout.map((profile, index): SimulatedSlice => {
        const device = migSlice(`GH200-96GB-${profile}`)!.device;
        const calibration = calibrationFor('vllm', device.family);
        const compute = Number(profile[0]);
        const flops_share = device.peak_flops_per_s.bf16! / whole.peak_flops_per_s.bf16!;
        return {
          id: `${link}/${index}`,
          link,
          device,
          calibration,
          figures: {
            flops_per_s: device.peak_flops_per_s.bf16! * calibration.device.gemm_compute,
            memory_bytes_per_s: device.memory_bandwidth_bytes_per_s * calibration.device.gemm_memory,
            link_bytes_per_s: Math.min(1, slice_factor * flops_share) * bytes_per_s,
            processors: compute >= 7 ? processors_whole : processors_per_slice * compute,
          },
        };
      }),
    ),
  };
}
