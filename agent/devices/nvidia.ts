import type { NvmlGpu, NvmlMigSlice } from '../../native/nvml.ts';
import type { NodeDevice } from './node-device.ts';

/**
 * The GPUs and MIG slices that CUDA would show this job, in its order: `CUDA_VISIBLE_DEVICES` as Slurm sets it
 * (indices, GPU-… or MIG-… UUIDs or their unambiguous beginnings); without it, all. As in CUDA, the first entry
 * that names nothing ends the list; one that may name a GPU or slice which does not answer is left out.
 *
 * A GPU in MIG mode computes in its slices alone: where none of them answers, nothing of it is a device.
 *
 * @param gpus those this process may open, in PCI order; undefined for one that does not answer
 */
export function nvidiaDevices(gpus: ListedGpus, visible: string | undefined): NodeDevice[] {
  if (visible === undefined) {
    return gpus.flatMap((gpu, position) => {
      if (!gpu) return [];
      if (!gpu.mig_enabled) return [gpuDevice(gpu, position, String(position))];
      return gpu.mig_slices.flatMap((slice) => (slice ? [migDevice(gpu, position, slice)] : []));
    });
  }
  const devices: NodeDevice[] = [];
  for (const entry of visible.split(',').map((text) => text.trim())) {
    const device = named(gpus, entry);
    if (device) devices.push(device);
    else if (!mayBeAway(gpus, entry)) break;
  }
  return devices;
}

type ListedGpus = readonly (NvmlGpu | undefined)[];

/** Whether an entry that names nothing that answers may name what does not: that one's UUID is unknown. */
function mayBeAway(gpus: ListedGpus, entry: string): boolean {
  const position = /^\d+$/.test(entry) ? Number(entry) : gpuByUuid(gpus, entry);
  if (position !== undefined) {
    const gpu = gpus[position];
    return position < gpus.length && (gpu === undefined || hasSilentSlice(gpu));
  }
  if (/^GPU-./.test(entry)) return gpus.includes(undefined);
  return /^MIG-./.test(entry) && gpus.some((gpu) => gpu === undefined || hasSilentSlice(gpu));
}

function hasSilentSlice({ mig_slices }: NvmlGpu): boolean {
  return mig_slices.includes(undefined);
}

function named(gpus: ListedGpus, entry: string): NodeDevice | undefined {
  if (/^\d+$/.test(entry)) return whole(gpus, Number(entry), entry);
  if (entry.startsWith('MIG-')) {
    for (const [position, gpu] of gpus.entries()) {
      const slice = gpu?.mig_slices.find((candidate) => candidate?.uuid === entry);
      if (gpu && slice) return migDevice(gpu, position, slice);
    }
    return undefined;
  }
  const position = gpuByUuid(gpus, entry);
  return position === undefined ? undefined : whole(gpus, position, entry);
}

/** @returns its position; undefined where none of those that answer, or several of them, have a UUID that begins so */
function gpuByUuid(gpus: ListedGpus, entry: string): number | undefined {
  if (!entry.startsWith('GPU-')) return undefined;
  const [match, ...others] = gpus.filter((gpu) => gpu?.uuid.startsWith(entry));
  return match && others.length === 0 ? gpus.indexOf(match) : undefined;
}

/** What CUDA shows where a GPU is named: of one in MIG mode the first slice, and nothing where that is silent. */
function whole(gpus: ListedGpus, position: number, token: string): NodeDevice | undefined {
  const gpu = gpus[position];
  if (!gpu?.mig_enabled) return gpu && gpuDevice(gpu, position, token);
  const [slice] = gpu.mig_slices;
  return slice && migDevice(gpu, position, slice);
}

/** @param position among the GPUs this process may open, in PCI order: what CUDA calls it */
function gpuDevice(gpu: NvmlGpu, position: number, token: string): NodeDevice {
  return {
    description: {
      kind: 'gpu',
      model: shortGpuModel(gpu.name),
      memory_bytes: gpu.memory_bytes,
      isa: [`sm_${gpu.compute_capability.replace('.', '')}`],
      uuid: gpu.uuid,
    },
    visibility_token: token,
    visibility_number: String(position),
    visibility_variable: 'CUDA_VISIBLE_DEVICES',
  };
}

/** By number, CUDA shows the first slice of a GPU and no other: none has a number where that one does not answer. */
function migDevice(gpu: NvmlGpu, position: number, slice: NvmlMigSlice): NodeDevice {
  const device: NodeDevice = {
    description: {
      kind: 'mig',
      model: shortGpuModel(slice.name),
      memory_bytes: slice.memory_bytes,
      isa: [`sm_${gpu.compute_capability.replace('.', '')}`],
      uuid: slice.uuid,
      link: gpu.uuid,
    },
    visibility_token: slice.uuid,
    visibility_variable: 'CUDA_VISIBLE_DEVICES',
  };
  if (slice === gpu.mig_slices[0]) device.visibility_number = String(position);
  return device;
}

/** `NVIDIA A100-SXM4-40GB MIG 1g.5gb` → `A100-SXM4-40GB MIG 1g.5gb`. */
function shortGpuModel(name: string): string {
  return name.replace(/^(NVIDIA|Tesla|GeForce)\s+/gi, '').trim();
}
