import { inspectBackends, runtimeModules } from '../../native/backend-needs.ts';
import { describeBackend } from '../../native/backend-words.ts';
import { deviceHolder } from '../../native/device-lock.ts';
import { readKfdNodes } from '../../native/kfd.ts';
import { findNativeLibraries } from '../../native/libraries.ts';
import { gpuBackendsIn, listAccelerators } from '../../native/list-devices.ts';
import { listNvidiaGpus, NvmlError } from '../../native/nvml.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type LaunchSpec, unitsOnNode } from '../../spec/launch.ts';
import { amdDevices } from './amd.ts';
import { type CpuHost, plannedCpuDevices, readCpuHost } from './cpu.ts';
import { allottedGpus, emulatedDevices } from './emulated.ts';
import { withGgmlDevices } from './ggml-devices.ts';
import { withCoresOfAmd, withCoresOfNvidia } from './near-cores.ts';
import { lockIdentity, type NodeDevice } from './node-device.ts';
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
 * them: for as many GPUs as Slurm allotted, or as the launch's units need where there is no Slurm and for CPUs.
 */
export function discoverDevices(
  launch: LaunchSpec,
  nodeIndex: number,
  environment: NodeJS.ProcessEnv,
): NodeDevices {
  const host = withOwnCores(readCpuHost(environment), launch.cores);
  const sockets: NodeDevice[] = plannedCpuDevices(host, launch.cpu_devices_per_node).map((description) => ({
    description,
  }));
  const warnings: string[] = [];
  const emulated = launch.emulated ? emulatedOf(launch, nodeIndex, environment, host, sockets) : undefined;
  const standsForCpu = emulated?.some((device) => device.description.kind === 'cpu') ?? false;
  const accelerators = emulated ?? freeFirst(plannedFirst(launch, forNative(launch, environment, warnings)));
  return {
    cpu: standsForCpu ? accelerators : sockets,
    gpu: accelerators.filter((device) => device.description.kind === 'gpu'),
    mig: accelerators.filter((device) => device.description.kind === 'mig'),
    host,
    warnings,
  };
}

/** The host as far as the launch may use it; all of it where none of its cores is there (another machine's). */
function withOwnCores(host: CpuHost, own: readonly number[] | undefined): CpuHost {
  const allowed_cores = host.allowed_cores.filter((core) => own?.includes(core));
  return allowed_cores.length === 0 ? host : { ...host, allowed_cores };
}

function realAccelerators(environment: NodeJS.ProcessEnv, warnings: string[]): NodeDevice[] {
  let nvidia: NodeDevice[] = [];
  try {
    const listing = listNvidiaGpus() ?? { gpus: [], warnings: [] };
    warnings.push(...listing.warnings);
    const devices = nvidiaDevices(listing.gpus, environment.CUDA_VISIBLE_DEVICES);
    nvidia = withCoresOfNvidia(devices, listing.gpus);
  } catch (error) {
    if (!(error instanceof NvmlError)) throw error;
    warnings.push(`NVIDIA GPUs cannot be listed: ${error.message}`);
  }
  const nodes = readKfdNodes();
  return [...nvidia, ...withCoresOfAmd(amdDevices(nodes, environment), nodes)];
}

/** Where units of the native engine are to run on accelerators, the libraries are asked which of them they know. */
function forNative(
  { units, native_library_dir }: LaunchSpec,
  environment: NodeJS.ProcessEnv,
  warnings: string[],
): NodeDevice[] {
  const devices = realAccelerators(environment, warnings);
  if (!units.some(({ engine, device_kind }) => engine === 'native' && device_kind !== 'cpu')) return devices;
  try {
    const { folder } = findNativeLibraries(native_library_dir);
    if (gpuBackendsIn(folder).length === 0) {
      warnings.push(
        `the native engine's libraries in ${folder} have no backend for GPUs (hpcserve native add)`,
      );
      return devices;
    }
    const known = withGgmlDevices(devices, listAccelerators(folder, environment));
    if (!known.some(({ ggml_device }) => ggml_device !== undefined))
      warnings.push(...whatBackendsLack(folder, environment));
    return known;
  } catch (error) {
    if (!(error instanceof HpcserveError)) throw error;
    warnings.push([error.message, ...error.because].join(': '));
  }
  return devices;
}

/** Why no backend of the libraries finds a device, as far as its driver and its libraries say. */
function whatBackendsLack(folder: string, environment: NodeJS.ProcessEnv): string[] {
  const modules = runtimeModules(environment.MODULEPATH);
  return inspectBackends(folder, environment).flatMap((needs) => {
    const { wrong, advice } = describeBackend(needs, modules);
    return advice === undefined ? wrong : wrong.map((one) => `${one} (${advice})`);
  });
}

/** Units count from the first device of the model that they were planned for; a machine may have others beside it. */
function plannedFirst({ device_model }: LaunchSpec, devices: readonly NodeDevice[]): NodeDevice[] {
  const isPlanned = ({ description }: NodeDevice): boolean => description.model === device_model;
  return [...devices.filter(isPlanned), ...devices.filter((device) => !isPlanned(device))];
}

/**
 * Devices that another worker of this user holds come last: a machine without Slurm has several deployments, and each
 * counts its devices from the first.
 */
export function freeFirst(
  devices: readonly NodeDevice[],
  holderOf: (identity: string) => number | undefined = (identity) => deviceHolder(identity),
): NodeDevice[] {
  const isHeld = (device: NodeDevice): boolean => {
    const identity = lockIdentity(device);
    return identity !== undefined && holderOf(identity) !== undefined;
  };
  const held = devices.filter(isHeld);
  return [...devices.filter((device) => !held.includes(device)), ...held];
}

/** GPUs or slices that the launch's units ask for; where they ask for CPUs of another model, those. */
function emulatedOf(
  launch: LaunchSpec,
  nodeIndex: number,
  environment: NodeJS.ProcessEnv,
  host: CpuHost,
  sockets: NodeDevice[],
): NodeDevice[] {
  const units = unitsOnNode(launch.units, nodeIndex);
  const needed = Math.max(0, ...units.map((unit) => unit.first_device + unit.device_count));
  const kind = units[0]?.device_kind ?? 'gpu';
  const memory_bytes = sockets.reduce((sum, device) => sum + device.description.memory_bytes, 0);
  return emulatedDevices(
    kind === 'cpu' ? needed : (allottedGpus(environment) ?? needed),
    {
      kind,
      model: launch.device_model ?? (kind === 'cpu' ? 'CPU' : 'GPU'),
      memory_bytes: launch.device_memory_bytes ?? memory_bytes,
    },
    { isa: host.isa, cores: host.allowed_cores, memory_bytes },
  );
}
