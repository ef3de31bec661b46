import { slicesOfGpu } from '../../solver/catalog/mig.ts';
import type { DeviceDescription } from '../../spec/session-record.ts';
import type { NodeDevice } from './node-device.ts';

/**
 * How many GPUs Slurm gave this job on this node, from the environment of a step; undefined where it says
 * nothing (no gres, or no Slurm).
 */
export function allottedGpus(environment: NodeJS.ProcessEnv): number | undefined {
  for (const name of ['SLURM_STEP_GPUS', 'SLURM_JOB_GPUS', 'CUDA_VISIBLE_DEVICES']) {
    const value = environment[name];
    if (value === undefined || value === '' || value === 'NoDevFiles') continue;
    return value.split(',').length;
  }
  const count = Number(environment.SLURM_GPUS_ON_NODE);
  return Number.isInteger(count) && count > 0 ? count : undefined;
}

/**
 * Devices of a declared kind that the host's cores stand in for; each says so. Slices are those of as few GPUs as have
 * room for them.
 */
export function emulatedDevices(
  count: number,
  declared: { kind: 'cpu' | 'gpu' | 'mig'; model: string; memory_bytes: number },
  host: Pick<DeviceDescription, 'isa' | 'cores' | 'memory_bytes'>,
): NodeDevice[] {
  const cores = host.cores ?? [];
  const slices = declared.kind === 'mig' ? slicesOfGpu(declared.model) : undefined;
  return Array.from({ length: count }, (_, index) => {
    const description: DeviceDescription = {
      ...declared,
      isa: host.isa,
      emulated: 'cpu',
      cores: cores.slice(
        Math.floor((index * cores.length) / count),
        Math.floor(((index + 1) * cores.length) / count),
      ),
    };
    if (slices !== undefined) description.link = `GPU ${Math.floor(index / slices)}`;
    return { description };
  });
}
