/**
 * Superchips cut into MIG slices, whose slices share the link to host memory. Figures are the catalog's, with the
 * shares that were fitted for Hopper; what is assumed beyond them is stated at each constant.
 */
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { findDevice } from '../catalog/devices.ts';
import { migSlice } from '../catalog/mig.ts';
import { type Calibration, calibrationFor } from '../simulator/calibration.ts';
import { hostLink } from '../streaming/host-link.ts';
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

/** See `SharedLink`. Assumed. */
const loss_per_reader = 0.02;
/** Of a whole H100, and of each compute slice (NVIDIA MIG user guide). */
const processors_whole = 132;
const processors_per_slice = 16;

/** @param layout MIG profiles of each superchip; `7g.96gb` is the whole GPU */
export function gh200Machine(layout: readonly string[], chips = 1): StreamingMachine {
  const names = Array.from({ length: chips }, (_, chip) => `chip-${chip}`);
  const { bytes_per_s } = hostLink(findDevice('GH200'));
  return {
    links: new Map(names.map((name) => [name, { bytes_per_s, loss_per_reader }])),
    slices: names.flatMap((link) =>
      layout.map((profile, index): SimulatedSlice => {
        const device = migSlice(`GH200-96GB-${profile}`)!.device;
        const calibration = calibrationFor('vllm', device.family);
        const compute = Number(profile[0]);
        return {
          id: `${link}/${index}`,
          link,
          device,
          calibration,
          figures: {
            flops_per_s: device.peak_flops_per_s.bf16! * calibration.device.gemm_compute,
            memory_bytes_per_s: device.memory_bandwidth_bytes_per_s * calibration.device.gemm_memory,
            link_bytes_per_s: hostLink(device).bytes_per_s,
            processors: compute >= 7 ? processors_whole : processors_per_slice * compute,
          },
        };
      }),
    ),
  };
}
