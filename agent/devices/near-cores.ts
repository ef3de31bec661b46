import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseNumberList } from '../../host/number-list.ts';
import type { KfdNode } from '../../native/kfd.ts';
import type { NvmlGpu } from '../../native/nvml.ts';
import type { NodeDevice } from './node-device.ts';

/**
 * Cores next to a PCI device: `local_cpulist` of sysfs (Documentation/ABI/testing/sysfs-bus-pci in Linux), which names
 * the cores of its NUMA node, and all cores where the firmware says nothing.
 *
 * @param bus_id as NVML (`00000000:17:00.0`) or the kernel (`0000:17:00.0`) writes it
 * @returns undefined where there is no such device, or the kernel does not say
 */
export function coresNearPci(bus_id: string, root = '/'): number[] | undefined {
  const name = busId(bus_id);
  if (name === undefined) return undefined;
  const file = join(root, 'sys/bus/pci/devices', name, 'local_cpulist');
  if (!existsSync(file)) return undefined;
  const cores = parseNumberList(readFileSync(file, 'utf8'));
  return cores.length > 0 ? cores : undefined;
}

/** As the kernel writes it; undefined for what is none. */
export function busId(written: string): string | undefined {
  const match = /^([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$/i.exec(written);
  if (!match) return undefined;
  return `${Number.parseInt(match[1]!, 16).toString(16).padStart(4, '0')}:${match[2]!.toLowerCase()}`;
}

type NearCores = (bus_id: string) => readonly number[] | undefined;

/** NVIDIA's devices with the cores next to each; a slice has those of its GPU. */
export function withCoresOfNvidia(
  devices: readonly NodeDevice[],
  gpus: readonly (NvmlGpu | undefined)[],
  nearCores: NearCores = coresNearPci,
): NodeDevice[] {
  return devices.map((device) => {
    const { uuid } = device.description;
    const gpu = gpus.find(
      (each) => each?.uuid === uuid || each?.mig_slices.some((slice) => slice?.uuid === uuid),
    );
    const pci_bus_id = gpu && busId(gpu.pci_bus_id);
    return { ...device, pci_bus_id, near_cores: gpu && nearCores(gpu.pci_bus_id) };
  });
}

/** AMD's devices with the cores next to each; their tokens count the GPUs among the nodes. */
export function withCoresOfAmd(
  devices: readonly NodeDevice[],
  nodes: readonly KfdNode[],
  nearCores: NearCores = coresNearPci,
): NodeDevice[] {
  const gpus = nodes.filter((node) => (property(node, 'simd_count') ?? 0) > 0);
  return devices.map((device) => {
    const gpu = gpus[Number(device.visibility_token)];
    const pci_bus_id = gpu && busIdOf(gpu);
    return {
      ...device,
      pci_bus_id,
      near_cores: pci_bus_id === undefined ? undefined : nearCores(pci_bus_id),
    };
  });
}

/** `location_id` is bus, device and function as PCI numbers them (kfd_topology.c in Linux); `domain` the segment. */
function busIdOf(gpu: KfdNode): string {
  const location = property(gpu, 'location_id') ?? 0;
  const hex = (number: number, digits: number): string => number.toString(16).padStart(digits, '0');
  const [bus, slot] = [(location >> 8) & 0xff, (location >> 3) & 0x1f];
  return `${hex(property(gpu, 'domain') ?? 0, 4)}:${hex(bus, 2)}:${hex(slot, 2)}.${location & 7}`;
}

function property(node: KfdNode, name: string): number | undefined {
  const value = new RegExp(`^${name} (\\d+)$`, 'm').exec(node.properties)?.[1];
  return value === undefined ? undefined : Number(value);
}
