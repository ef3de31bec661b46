/** Finding a device in the catalog by any of the names people use, with a site's own entries first. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { nearest } from '../../spec/nearest.ts';
import { amdGpus } from './amd-gpus.ts';
import { cpus } from './cpus.ts';
import type { DeviceSpec } from './device-spec.ts';
import { type Interconnect, interconnects } from './interconnects.ts';
import { nvidiaGpus } from './nvidia-gpus.ts';

export const knownDevices: readonly DeviceSpec[] = [...nvidiaGpus, ...amdGpus, ...cpus];

/** What a site says differently, by device name: a power cap, less memory, or a device of its own. */
export type DeviceOverrides = Readonly<Record<string, Partial<DeviceSpec>>>;

/**
 * The device of that name: exact name, then alias, then the variants a shorter name stands for (the first in
 * catalog order is taken; `variantsOf` lists them all). A site's entries win over the catalog.
 * @throws E_DEVICE_UNKNOWN with the nearest known name.
 */
export function findDevice(name: string, overrides: DeviceOverrides = {}): DeviceSpec {
  const site = Object.entries(overrides);
  const own = site.find(([key]) => fold(key) === fold(name));
  if (own !== undefined && isWhole(own[1])) return { ...own[1], name: own[0] };
  const found = matches(name)[0];
  if (found === undefined)
    throw unknownDevice(
      name,
      site.map(([key]) => key),
    );
  const change = own ?? site.find(([key]) => matches(key)[0] === found);
  return change === undefined ? found : { ...found, ...change[1], name: found.name };
}

/**
 * The catalog's device of that name, if it has one; of several the name stands for, the one with this much
 * memory: `A100` of 40 GB is another device than `A100` of 80 GB. Beyond what `findDevice` knows, a name may go
 * on after a known one (`A100-SXM-64GB`), and a processor's may be the kernel's
 * (`Intel(R) Xeon(R) Platinum 8480+`). Words count whole: `A1000` is no A100. A GPU's name that is only the beginning
 * of known ones is none of them where none has about this much memory: products of two generations begin alike.
 */
export function deviceNamed(name: string, memory_bytes?: number): DeviceSpec | undefined {
  const found = matches(name)[0];
  const key = found === undefined ? knownBeginning(name) : name;
  const first = key === undefined ? processorIn(name) : matches(key)[0];
  if (first === undefined || key === undefined || memory_bytes === undefined) return first;
  const near = (device: DeviceSpec): boolean =>
    Math.abs(device.memory_bytes - memory_bytes) <= 0.08 * device.memory_bytes;
  const fitting = near(first) ? first : variantsOf(key).find(near);
  if (fitting === undefined && first.kind === 'gpu' && !namesOf(first).includes(fold(key))) return undefined;
  return fitting ?? first;
}

/** The most words a name begins with that are the whole of a known name. */
function knownBeginning(name: string): string | undefined {
  const words = name.split(/[\s_-]+/);
  for (let count = words.length - 1; count > 0; count--) {
    const beginning = words.slice(0, count).join(' ');
    const folded = fold(beginning);
    if (folded !== '' && knownDevices.some((device) => namesOf(device).includes(folded))) return beginning;
  }
  return undefined;
}

/** The processor whose brand and number stand in the text: `AMD EPYC 7763 64-Core Processor`. */
function processorIn(text: string): DeviceSpec | undefined {
  const words = text.toLowerCase().split(/[\s_()@-]+/);
  return cpus.find((cpu) => {
    const [brand, number] = cpu.name.toLowerCase().split('-');
    return number !== undefined && words.includes(brand!) && words.includes(number);
  });
}

/** All catalog entries a name may stand for: `A100` gives the 40 and 80 GB, SXM and PCIe ones. */
export function variantsOf(name: string): readonly DeviceSpec[] {
  const wanted = fold(name);
  return knownDevices.filter((device) => namesOf(device).some((known) => known.startsWith(wanted)));
}

/** @throws E_DEVICE_UNKNOWN with the names there are. */
export function findInterconnect(name: string): Interconnect {
  const found = interconnects.find((candidate) => fold(candidate.name) === fold(name));
  if (found !== undefined) return found;
  const names = interconnects.map((candidate) => candidate.name);
  const close = nearest(name, names);
  throw new HpcserveError('E_DEVICE_UNKNOWN', {
    what: `there is no interconnect "${name}" in the catalog`,
    because: close === undefined ? `known: ${names.join(', ')}` : `the nearest known name is ${close}`,
    try: `name one of ${names.join(', ')}`,
    details: { name, nearest: close ?? null },
  });
}

function matches(name: string): readonly DeviceSpec[] {
  const wanted = fold(name);
  if (wanted === '') return [];
  const exact = knownDevices.filter((device) => namesOf(device).includes(wanted));
  return exact.length > 0 ? exact : variantsOf(name);
}

function namesOf(device: DeviceSpec): string[] {
  return [device.name, ...device.aliases].map(fold);
}

/** Names as they are compared: without case, vendor words, spaces and punctuation. */
function fold(name: string): string {
  return name
    .toLowerCase()
    .replaceAll('_', ' ')
    .replaceAll(/\b(nvidia|amd|intel|instinct|tesla|geforce)\b/g, '')
    .replaceAll(/[^a-z0-9+]/g, '');
}

function isWhole(entry: Partial<DeviceSpec>): entry is DeviceSpec {
  return (
    entry.peak_flops_per_s !== undefined &&
    entry.memory_bytes !== undefined &&
    entry.memory_bandwidth_bytes_per_s !== undefined &&
    entry.link !== undefined &&
    entry.family !== undefined
  );
}

function unknownDevice(name: string, siteNames: readonly string[]): HpcserveError {
  const names = [...siteNames, ...knownDevices.flatMap((device) => [device.name, ...device.aliases])];
  const close = nearest(name, names);
  return new HpcserveError('E_DEVICE_UNKNOWN', {
    what: `there is no device "${name}" in the catalog`,
    because:
      close === undefined
        ? `known devices: ${knownDevices.map((device) => device.name).join(', ')}`
        : `the nearest known name is ${close}`,
    try:
      close === undefined
        ? 'name a known device, or describe yours in a file of devices'
        : `name ${close}, or describe your device in a file of devices`,
    details: { name, nearest: close ?? null },
  });
}
