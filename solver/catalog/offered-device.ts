/**
 * The figures of what a site offers: from the catalog where it knows the name, as a share of its parent for a
 * MIG slice, from cores and instruction sets for other CPUs, and a cautious guess, said to be one, for other
 * GPUs. Plans must go on where a name is not known, so nothing here throws.
 */
import { nearest } from '../../spec/nearest.ts';
import type { DeviceFigures } from '../../spec/site-nodes.ts';
import { cpuOfCores, type HostCpu, partOfSocket } from './cpu-estimate.ts';
import type { ComputePrecision, DeviceSpec } from './device-spec.ts';
import { deviceNamed, knownDevices } from './devices.ts';
import { migSlice } from './mig.ts';

/** Device as a site config or a node names it. */
export interface OfferedName {
  kind: 'cpu' | 'gpu' | 'mig';
  model: string;
  /** How many of it one node has. */
  count: number;
  memory_bytes: number;
  /** CPU cores that go with one; a CPU device is made of them. Default: the node's, divided evenly. */
  cores?: number | undefined;
}

export interface OfferedDevice {
  device: DeviceSpec;
  /**
   * Where the figures come from; `site` where the site config gave any. Only `estimated` ones are not from a
   * public document or from the site.
   */
  known: 'catalog' | 'site' | 'mig-slice' | 'estimated';
  /** What people should know of it: that it is an estimate, of what, and how to do better. */
  note?: string;
}

/** Figures of one device of a node; memory is what the site offers, whatever the catalog says. */
export function offeredDevice(offered: OfferedName, node: HostCpu, figures?: DeviceFigures): OfferedDevice {
  const found = ofKind(offered, node);
  const named: OfferedDevice = {
    ...found,
    device: { ...found.device, memory_bytes: offered.memory_bytes },
  };
  return figures === undefined || Object.values(figures).every((value) => value === undefined)
    ? named
    : withFigures(named, figures);
}

function ofKind(offered: OfferedName, node: HostCpu): OfferedDevice {
  if (offered.kind === 'cpu') return cpu(offered, node);
  const slice = migSlice(offered.model, offered.memory_bytes);
  if (slice !== undefined) return { device: slice.device, known: 'mig-slice', note: slice.note };
  const known = deviceNamed(offered.model, offered.memory_bytes);
  if (known !== undefined && known.kind === 'gpu') return { device: known, known: 'catalog' };
  return unknownGpu(offered);
}

function cpu(offered: OfferedName, node: HostCpu): OfferedDevice {
  const cores = offered.cores ?? Math.max(1, Math.floor(node.cpus / Math.max(1, offered.count)));
  const known = deviceNamed(offered.model);
  if (known?.kind === 'cpu')
    return { device: partOfSocket(known, cores, Math.max(1, offered.count)), known: 'catalog' };
  const { device, basis } = cpuOfCores(offered.model, cores, Math.max(1, offered.count), node);
  return {
    device,
    known: 'estimated',
    note: `CPU "${offered.model}" is not in the catalog; planned as ${cores} ${cores === 1 ? 'core' : 'cores'} with ${basis}`,
  };
}

/**
 * The slowest catalog GPU of Volta or later with at least this much memory, by the geometric mean of arithmetic
 * and bandwidth; the largest one where none has so much. A name that is close says little of speed (A1000 is no A100),
 * so it is only mentioned.
 */
function unknownGpu({ model, memory_bytes }: OfferedName): OfferedDevice {
  const gpus = knownDevices.filter(({ kind, family }) => kind === 'gpu' && family !== 'pascal');
  const enough = gpus.filter((device) => device.memory_bytes >= 0.95 * memory_bytes);
  const speed = ({ peak_flops_per_s, memory_bandwidth_bytes_per_s }: DeviceSpec): number =>
    (peak_flops_per_s.fp16 ?? 0) * memory_bandwidth_bytes_per_s;
  const stands =
    enough.length > 0
      ? enough.reduce((slowest, device) => (speed(device) < speed(slowest) ? device : slowest))
      : gpus.reduce((largest, device) => (device.memory_bytes > largest.memory_bytes ? device : largest));
  const close = nearest(
    model,
    gpus.flatMap(({ name, aliases }) => [name, ...aliases]),
  );
  const { compute_capability: _, ...rest } = stands;
  return {
    device: { ...rest, name: model, aliases: [], source: `taken for ${stands.name}: ${stands.source}` },
    known: 'estimated',
    note:
      `GPU "${model}" is not in the catalog` +
      (close === undefined ? '' : `; nearest: ${close}`) +
      `; planned as ${stands.name}, the slowest known with that much memory. If it is another, give its catalog name or its figures in the site config`,
  };
}

function withFigures(found: OfferedDevice, figures: DeviceFigures): OfferedDevice {
  const { device } = found;
  const stated = Object.fromEntries(
    Object.entries(figures.tflops ?? {})
      .filter((entry): entry is [ComputePrecision, number] => entry[1] !== undefined)
      .map(([precision, tflops]) => [precision, tflops * 1e12]),
  );
  // Peaks that were guessed do not stand beside ones the site knows.
  const peaks =
    found.known === 'estimated' && Object.keys(stated).length > 0
      ? stated
      : { ...device.peak_flops_per_s, ...stated };
  const bandwidth = figures.bandwidth_gb_per_s;
  const told = Object.keys(stated).length > 0 && bandwidth !== undefined;
  return {
    device: {
      ...device,
      peak_flops_per_s: peaks,
      memory_bandwidth_bytes_per_s:
        bandwidth === undefined ? device.memory_bandwidth_bytes_per_s : bandwidth * 1e9,
      link: {
        name: device.link.name,
        bandwidth_bytes_per_s:
          figures.link_gb_per_s === undefined
            ? device.link.bandwidth_bytes_per_s
            : figures.link_gb_per_s * 1e9,
        devices: figures.link_devices ?? device.link.devices,
      },
      tdp_w: figures.tdp_w ?? device.tdp_w,
      source: `the site config; elsewhere ${device.source}`,
    },
    known: found.known === 'estimated' && !told ? 'estimated' : 'site',
    note: found.note !== undefined && !(found.known === 'estimated' && told) ? found.note : undefined,
  };
}
