/**
 * MIG slices: `3g.40gb` is three compute slices and 40 GB of a GPU. Compute slices are sevenths of the GPU
 * (quarters on A30 and RTX PRO 6000), memory slices eighths (quarters there), and bandwidth goes with memory
 * (NVIDIA MIG user guide, "Supported MIG profiles" and "Partitioning"). Slices have no NVLink.
 */
import type { ComputePrecision, DeviceSpec } from './device-spec.ts';
import { deviceNamed } from './devices.ts';

const profile = /(?:^|[^a-z0-9])(?:mig[-_ ]*)?(?:\d+c\.)?(\d)g\.(\d+)gb(?:\+[a-z.]+)?\s*$/i;
const bare = /^(?:mig[-_ ]*)?(?:\d+c\.)?(\d)g\.(\d+)gb(?:\+[a-z.]+)?$/i;

/**
 * Whose a profile without a GPU's name is, by its memory per memory slice: the slower where two have the same.
 */
const parentBySlice: readonly (readonly [gb_per_slice: number, name: string])[] = [
  [5, 'A100-SXM4-40GB'],
  [6, 'A30'],
  [10, 'A100-SXM4-80GB'],
  [12, 'GH200-96GB'],
  [18, 'H200-SXM-141GB'],
  [23, 'B200-SXM-180GB'],
  [24, 'RTX-PRO-6000-Server'],
  [34, 'B300-SXM-288GB'],
];

/**
 * The slice of that name, with the figures of its share; undefined where the name is no slice of a known GPU.
 * Its memory is what the name says unless told.
 */
export function migSlice(
  model: string,
  memory_bytes?: number,
): { device: DeviceSpec; note?: string } | undefined {
  const match = profile.exec(model) ?? bare.exec(model);
  if (match === null) return undefined;
  const compute = Number(match[1]);
  const gigabytes = Number(match[2]);
  const parentName = model.slice(0, match.index).replace(/[-_ ]*(?:mig)?[-_ ]*$/i, '');
  const named = parentName !== '' && !/^mig$/i.test(parentName);
  const parent = named ? parentOf(parentName, gigabytes) : parentOfBare(compute, gigabytes);
  if (parent === undefined) return undefined;
  const slices = /^(A30|RTX-PRO-6000)/.test(parent.name)
    ? { compute: 4, memory: 4 }
    : { compute: 7, memory: 8 };
  const share = Math.min(1, compute / slices.compute);
  const memoryShare = memoryShareOf(parent, gigabytes, slices.memory);
  const { compute_capability } = parent;
  return {
    device: {
      name: `${parent.name}-${compute}g.${gigabytes}gb`,
      aliases: [],
      vendor: parent.vendor,
      kind: 'gpu',
      family: parent.family,
      peak_flops_per_s: Object.fromEntries(
        Object.entries(parent.peak_flops_per_s).map(([precision, peak]) => [
          precision as ComputePrecision,
          peak * share,
        ]),
      ),
      memory_bytes: memory_bytes ?? gigabytes * 2 ** 30,
      memory_bandwidth_bytes_per_s: parent.memory_bandwidth_bytes_per_s * memoryShare,
      link: { name: 'none', bandwidth_bytes_per_s: parent.link.bandwidth_bytes_per_s * share, devices: 1 },
      tdp_w: parent.tdp_w * share,
      gpu_share: share,
      compute_capability,
      source: `${compute} of ${slices.compute} compute slices and ${Math.round(memoryShare * slices.memory)} of ${slices.memory} memory slices (NVIDIA MIG user guide) of: ${parent.source}`,
    },
    note: named ? undefined : `"${model}" does not name its GPU; taken for a slice of ${parent.name}`,
  };
}

/** How many slices of that name a GPU has room for; undefined where the name is no slice of a known GPU. */
export function slicesOfGpu(model: string): number | undefined {
  const slice = migSlice(model);
  const parent = slice && deviceNamed(slice.device.name.replace(/-\dg\.\d+gb$/, ''));
  if (slice === undefined || parent === undefined) return undefined;
  const byMemory = parent.memory_bandwidth_bytes_per_s / slice.device.memory_bandwidth_bytes_per_s;
  const byCompute = parent.tdp_w / slice.device.tdp_w;
  return Math.max(1, Math.floor(Math.min(byMemory, byCompute) + 1e-6));
}

/** A100 is of 40 or 80 GB: the one whose slices have this size. */
function parentOf(name: string, gigabytes: number): DeviceSpec | undefined {
  const first = deviceNamed(name);
  if (first === undefined || first.kind !== 'gpu') return undefined;
  const stated = /\d+\s*gb?\b/i.test(name);
  if (stated || first.name !== 'A100-SXM4-80GB') return first;
  return gigabytes === 5 ? (deviceNamed('A100-SXM4-40GB') ?? first) : first;
}

function parentOfBare(compute: number, gigabytes: number): DeviceSpec | undefined {
  const slicesOf = (perSlice: number): number => gigabytes / perSlice;
  const fits = parentBySlice.find(([perSlice]) => {
    // 3g takes four memory slices, 7g all eight; 1g takes one, or two where there is one such slice.
    const slices = slicesOf(perSlice);
    const usual = compute === 3 ? 4 : compute === 7 ? 8 : compute;
    return Math.abs(slices - usual) < 0.12 * usual;
  });
  return fits && deviceNamed(fits[1]);
}

/** Memory in whole slices: profile names round (1g.18gb is an eighth of 141 GB). */
function memoryShareOf(parent: DeviceSpec, gigabytes: number, slices: number): number {
  const exact = (gigabytes * 2 ** 30 * slices) / parent.memory_bytes;
  return Math.min(1, Math.max(1, Math.round(exact)) / slices);
}
