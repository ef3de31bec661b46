/** How fast a device reads host memory: the link's figure, and the share of it that copies are assumed to reach. */
import type { DeviceDescription } from '../../spec/session-record.ts';
import type { DeviceFamily, DeviceSpec } from '../catalog/device-spec.ts';
import { deviceNamed } from '../catalog/devices.ts';
import { migSlice } from '../catalog/mig.ts';

interface Link {
  name: string;
  bytes_per_s: number;
}

export interface HostLink extends Link {
  /** What the device reads where nobody else does. */
  bytes_per_s: number;
  /** What all devices read together that share the link, as slices of a GPU do. */
  capacity_bytes_per_s: number;
}

const reached_share = 0.85;
/** NVIDIA's data sheet of GH200, one direction. */
const c2c: Link = { name: 'NVLink-C2C', bytes_per_s: 450e9 };
/**
 * Reads that the processors of a whole GPU keep under way: a slice has its part of them, so that several slices fill a
 * fast link and one alone does not. Assumed: between one and seven times NVLink-C2C.
 */
const processors_bytes_per_s = 2 * c2c.bytes_per_s;
const pcie = (generation: number, bytes_per_s: number): Link => ({
  name: `PCIe ${generation}.0 x16`,
  bytes_per_s,
});

const byFamily: Readonly<Record<Exclude<DeviceFamily, 'cpu' | 'cpu-amx'>, Link>> = {
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
  gpu_share = 1,
}: Pick<DeviceSpec, 'name' | 'family' | 'memory_bandwidth_bytes_per_s' | 'gpu_share'>): HostLink {
  const link = (): Link => {
    // A copy reads and writes, and the product reads it again.
    if (family === 'cpu' || family === 'cpu-amx')
      return { name: 'copies in its memory', bytes_per_s: memory_bandwidth_bytes_per_s / 3 };
    return name.startsWith('GH200') ? c2c : byFamily[family];
  };
  const { name: of, bytes_per_s } = link();
  return {
    name: of,
    bytes_per_s: reached_share * Math.min(bytes_per_s, gpu_share * processors_bytes_per_s),
    capacity_bytes_per_s: reached_share * bytes_per_s,
  };
}

/** The same of a device as its node describes it; undefined where the catalog has no such device. */
export function describedLink({ kind, model, memory_bytes }: DeviceDescription): HostLink | undefined {
  const known =
    kind === 'mig'
      ? migSlice(model, memory_bytes)?.device
      : deviceNamed(model, kind === 'gpu' ? memory_bytes : undefined);
  return known && hostLink(known);
}
