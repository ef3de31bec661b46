import { listNvidiaGpus, NvmlError } from '../../native/nvml.ts';
import type { LaunchSpec } from '../../spec/launch.ts';
import { amdDevices, readKfdNodes } from './amd.ts';
import { type CpuHost, cpuDevices, readCpuHost } from './cpu.ts';
import { allottedGpus, emulatedDevices } from './emulated.ts';
import type { NodeDevice } from './node-device.ts';
import { nvidiaDevices } from './nvidia.ts';

/** What a job has on this node, by kind; a unit's `first_device` counts within its kind. */
export interface NodeDevices {
  cpu: NodeDevice[];
  gpu: NodeDevice[];
  mig: NodeDevice[];
  host: CpuHost;
  /** What could not be asked, in words for the log; discovery goes on without it. */
  warnings: string[];
}

/**
 * Finds the devices of this node as far as this job may use them. Where the launch says so, cores stand in for
 * GPUs: as many as Slurm allotted, or as the launch's units need where there is no Slurm.
 */
export function discoverDevices(
  launch: LaunchSpec,
  nodeIndex: number,
  environment: NodeJS.ProcessEnv,
): NodeDevices {
  const host = readCpuHost(environment);
  const cpu: NodeDevice[] = cpuDevices(host).map((description) => ({ description }));
  const warnings: string[] = [];
  const accelerators = launch.emulated
    ? emulatedAccelerators(launch, nodeIndex, environment, host, cpu)
    : realAccelerators(environment, warnings);
  return {
    cpu,
    gpu: accelerators.filter((device) => device.description.kind === 'gpu'),
    mig: accelerators.filter((device) => device.description.kind === 'mig'),
    host,
    warnings,
  };
}

function realAccelerators(environment: NodeJS.ProcessEnv, warnings: string[]): NodeDevice[] {
  let nvidia: NodeDevice[] = [];
  try {
    nvidia = nvidiaDevices(listNvidiaGpus() ?? [], environment.CUDA_VISIBLE_DEVICES);
  } catch (error) {
    if (!(error instanceof NvmlError)) throw error;
    warnings.push(`NVIDIA GPUs cannot be listed: ${error.message}`);
  }
  return [...nvidia, ...amdDevices(readKfdNodes(), environment.ROCR_VISIBLE_DEVICES)];
}

function emulatedAccelerators(
  launch: LaunchSpec,
  nodeIndex: number,
  environment: NodeJS.ProcessEnv,
  host: CpuHost,
  cpu: NodeDevice[],
): NodeDevice[] {
  const units = launch.units.filter((unit) => unit.node_index === nodeIndex && unit.device_kind !== 'cpu');
  const needed = Math.max(0, ...units.map((unit) => unit.first_device + unit.device_count));
  const kind = units[0]?.device_kind === 'mig' ? 'mig' : 'gpu';
  const memory_bytes = cpu.reduce((sum, device) => sum + device.description.memory_bytes, 0);
  return emulatedDevices(
    allottedGpus(environment) ?? needed,
    {
      kind,
      model: launch.device_model ?? 'GPU',
      memory_bytes: launch.device_memory_bytes ?? memory_bytes,
    },
    { isa: host.isa, cores: host.allowed_cores, memory_bytes },
  );
}
