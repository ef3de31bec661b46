import type { NvmlGpu } from '../../native/nvml.ts';
import type { NodeDevice } from './node-device.ts';

/**
 * The GPUs and MIG slices that CUDA would show this job, in its order: `CUDA_VISIBLE_DEVICES` as Slurm sets it
 * (indices, GPU-… or MIG-… UUIDs or their unambiguous beginnings); without it, all. As in CUDA, the first entry
 * that names nothing ends the list; one that may name a GPU which does not answer is left out.
 *
 * @param gpus those this process may open, in PCI order; undefined for one that does not answer
 */
export function nvidiaDevices(gpus: ListedGpus, visible: string | undefined): NodeDevice[] {
  if (visible === undefined) {
    return gpus.flatMap((gpu, position) => {
      if (!gpu) return [];
      return gpu.mig_slices.length > 0
        ? gpu.mig_slices.map((slice) => migDevice(gpu, position, slice))
        : [gpuDevice(gpu, position, String(position))];
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

/** Whether an entry that names none of the GPUs that answer may name one that does not: that one's UUID is unknown. */
function mayBeAway(gpus: ListedGpus, entry: string): boolean {
  if (/^\d+$/.test(entry)) return Number(entry) < gpus.length && gpus[Number(entry)] === undefined;
  return /^(GPU|MIG)-./.test(entry) && gpus.includes(undefined);
}

function named(gpus: ListedGpus, entry: string): NodeDevice | undefined {
  if (/^\d+$/.test(entry)) {
    const gpu = gpus[Number(entry)];
    if (!gpu) return undefined;
    // CUDA shows the first slice of a GPU in MIG mode that is named as a whole.
    const slice = gpu.mig_slices[0];
    return slice ? migDevice(gpu, Number(entry), slice) : gpuDevice(gpu, Number(entry), entry);
  }
  if (entry.startsWith('MIG-')) {
    for (const [position, gpu] of gpus.entries()) {
      const slice = gpu?.mig_slices.find((candidate) => candidate.uuid === entry);
      if (gpu && slice) return migDevice(gpu, position, slice);
    }
    return undefined;
  }
  if (!entry.startsWith('GPU-')) return undefined;
  const [match, ...others] = gpus.filter((gpu) => gpu?.uuid.startsWith(entry));
  return match && others.length === 0 ? gpuDevice(match, gpus.indexOf(match), entry) : undefined;
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

/** By number, CUDA shows the first slice of a GPU and no other. */
function migDevice(gpu: NvmlGpu, position: number, slice: NvmlGpu['mig_slices'][number]): NodeDevice {
  const device: NodeDevice = {
    description: {
      kind: 'mig',
      model: shortGpuModel(slice.name),
      memory_bytes: slice.memory_bytes,
      isa: [`sm_${gpu.compute_capability.replace('.', '')}`],
      uuid: slice.uuid,
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
