/** How fast a device reads host memory: the link's figure, and the share of it that copies are assumed to reach. */
import type { DeviceFamily, DeviceSpec } from '../catalog/device-spec.ts';

export interface HostLink {
  name: string;
  bytes_per_s: number;
}

const reached_share = 0.85;
/** NVIDIA's data sheet of GH200, one direction. */
const c2c: HostLink = { name: 'NVLink-C2C', bytes_per_s: 450e9 };
const pcie = (generation: number, bytes_per_s: number): HostLink => ({
  name: `PCIe ${generation}.0 x16`,
  bytes_per_s,
});

const byFamily: Readonly<Record<Exclude<DeviceFamily, 'cpu' | 'cpu-amx'>, HostLink>> = {
  pascal: pcie(3, 16e9),
  volta: pcie(3, 16e9),
  turing: pcie(3, 16e9),
  ampere: pcie(4, 32e9),
  'ampere-gddr': pcie(4, 32e9),
  ada: pcie(4, 32e9),
  cdna2: pcie(4, 32e9),
  hopper: pcie(5, 64e9),
  blackwell: pcie(5, 64e9),
  'blackwell-gddr': pcie(5, 64e9),
  cdna3: pcie(5, 64e9),
  cdna4: pcie(5, 64e9),
};

export function hostLink({
  name,
  family,
  memory_bandwidth_bytes_per_s,
}: Pick<DeviceSpec, 'name' | 'family' | 'memory_bandwidth_bytes_per_s'>): HostLink {
  const link = (): HostLink => {
    // A copy reads and writes, and the product reads it again.
    if (family === 'cpu' || family === 'cpu-amx')
      return { name: 'copies in its memory', bytes_per_s: memory_bandwidth_bytes_per_s / 3 };
    return name.startsWith('GH200') ? c2c : byFamily[family];
  };
  const { name: of, bytes_per_s } = link();
  return { name: of, bytes_per_s: reached_share * bytes_per_s };
}
