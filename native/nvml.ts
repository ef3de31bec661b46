/**
 * NVIDIA's management library through koffi: what GPUs and MIG slices there are. Loaded only where the driver is
 * installed; it needs no CUDA. Structures and constants as in nvml.h (stable ABI since driver 470).
 */
import koffi, { type LibraryHandle } from 'koffi';

export interface NvmlGpu {
  index: number;
  name: string;
  uuid: string;
  memory_bytes: number;
  /** `9.0` for Hopper. */
  compute_capability: string;
  /** `00000000:17:00.0`. */
  pci_bus_id: string;
  mig_enabled: boolean;
  /** In NVML's order. A slice that does not answer is undefined, and keeps its place. */
  mig_slices: (NvmlMigSlice | undefined)[];
}

export interface NvmlMigSlice {
  index: number;
  name: string;
  uuid: string;
  memory_bytes: number;
}

/** What the driver knows of the GPUs that this process may use. */
export interface NvmlListing {
  /** In PCI order. A GPU that does not answer, such as one that fell off the bus, is undefined, and keeps its place. */
  gpus: (NvmlGpu | undefined)[];
  /** What does not answer, and why. */
  warnings: string[];
}

/** Why a call did not work, in NVML's words. */
export class NvmlError extends Error {
  override readonly name = 'NvmlError';
  readonly status: number;
  /** Such as `GPU is lost (15)`. */
  readonly reason: string;
  constructor(call: string, status: number, words: string) {
    const reason = `${words} (${status})`;
    super(`${call}: ${reason}`);
    this.status = status;
    this.reason = reason;
  }
}

const success = 0;
const not_supported = 3;
const no_permission = 4;
const not_found = 6;
const text_bytes = 96;

const library_names = ['libnvidia-ml.so.1', 'libnvidia-ml.so'];

/**
 * Every GPU this process may use, with its MIG slices; undefined where the driver's library is not installed. One GPU
 * or slice that does not answer keeps nobody from the others.
 *
 * @throws NvmlError where it is installed and does not work (driver not loaded, version mismatch)
 */
export function listNvidiaGpus(): NvmlListing | undefined {
  const library = loadLibrary();
  if (!library) return undefined;
  const nvml = bind(library);
  nvml.check('nvmlInit_v2', nvml.init());
  try {
    const count: [number] = [0];
    nvml.check('nvmlDeviceGetCount_v2', nvml.count(count));
    const listing: NvmlListing = { gpus: [], warnings: [] };
    for (let index = 0; index < count[0]; index++) {
      const handle: [unknown] = [null];
      const status = nvml.handle(index, handle);
      // A GPU of another job: the device cgroup keeps this process from it.
      if (status === no_permission) continue;
      const gpu = ifItAnswers(`GPU ${index}`, listing.warnings, () => {
        nvml.check('nvmlDeviceGetHandleByIndex_v2', status);
        return describeGpu(nvml, index, handle[0], listing.warnings);
      });
      listing.gpus.push(gpu);
    }
    return listing;
  } finally {
    nvml.shutdown();
  }
}

const energyCall = 'nvmlDeviceGetTotalEnergyConsumption';
/** What GPUs have taken of energy since their driver was loaded (Volta and later). */
export class NvmlEnergy {
  readonly #nvml: Nvml;
  readonly #count: KoffiFunc;
  readonly #devices: readonly unknown[];

  private constructor(nvml: Nvml, count: KoffiFunc, devices: readonly unknown[]) {
    this.#nvml = nvml;
    this.#count = count;
    this.#devices = devices;
  }

  /**
   * @param uuids of whole GPUs: a MIG slice has no counter of its own
   * @throws NvmlError where one of them has no counter, or the driver does not work
   */
  static open(uuids: readonly string[]): NvmlEnergy | undefined {
    const library = loadLibrary();
    if (!library) return undefined;
    const nvml = bind(library);
    nvml.check('nvmlInit_v2', nvml.init());
    // What only this needs: older drivers, and doubles of the library, may be without it.
    const handleOf = library.func('nvmlDeviceGetHandleByUUID', 'int', ['str', koffi.out('void **')]);
    const count = library.func(energyCall, 'int', ['void *', koffi.out('uint64_t *')]);
    const devices = uuids.map((uuid) => {
      const handle: [unknown] = [null];
      nvml.check('nvmlDeviceGetHandleByUUID', handleOf(uuid, handle));
      return handle[0];
    });
    const energy = new NvmlEnergy(nvml, count, devices);
    energy.read_j();
    return energy;
  }

  /** Joules of all of them together. @throws NvmlError */
  read_j(): number {
    let sum_mj = 0;
    for (const device of this.#devices) {
      const millijoules: [number | bigint] = [0];
      this.#nvml.check(energyCall, this.#count(device, millijoules));
      sum_mj += Number(millijoules[0]);
    }
    return sum_mj / 1000;
  }
}

function loadLibrary(): LibraryHandle | undefined {
  for (const name of library_names) {
    try {
      return koffi.load(name);
    } catch (error) {
      // Absent is the normal case on a CPU node; a library that is there and broken is worth an error.
      if (!/cannot open shared object file|No such file/.test((error as Error).message)) throw error;
    }
  }
  return undefined;
}

type Nvml = ReturnType<typeof bind>;
type KoffiFunc = ReturnType<LibraryHandle['func']>;

function bind(library: LibraryHandle) {
  const memory = koffi.struct({ total: 'uint64_t', free: 'uint64_t', used: 'uint64_t' });
  const pci = koffi.struct({
    busIdLegacy: koffi.array('char', 16, 'String'),
    domain: 'uint32_t',
    bus: 'uint32_t',
    device: 'uint32_t',
    pciDeviceId: 'uint32_t',
    pciSubSystemId: 'uint32_t',
    busId: koffi.array('char', 32, 'String'),
  });
  const device = 'void *';
  const out = (type: string | ReturnType<typeof koffi.struct>) => koffi.out(koffi.pointer(type));
  const words = library.func('nvmlErrorString', 'const char *', ['int']);
  return {
    init: library.func('nvmlInit_v2', 'int', []),
    shutdown: library.func('nvmlShutdown', 'int', []),
    count: library.func('nvmlDeviceGetCount_v2', 'int', [out('uint32_t')]),
    handle: library.func('nvmlDeviceGetHandleByIndex_v2', 'int', ['uint32_t', out(device)]),
    name: library.func('nvmlDeviceGetName', 'int', [device, 'void *', 'uint32_t']),
    uuid: library.func('nvmlDeviceGetUUID', 'int', [device, 'void *', 'uint32_t']),
    memory: library.func('nvmlDeviceGetMemoryInfo', 'int', [device, out(memory)]),
    capability: library.func('nvmlDeviceGetCudaComputeCapability', 'int', [device, out('int'), out('int')]),
    pci: library.func('nvmlDeviceGetPciInfo_v3', 'int', [device, out(pci)]),
    migMode: library.func('nvmlDeviceGetMigMode', 'int', [device, out('uint32_t'), out('uint32_t')]),
    migCount: library.func('nvmlDeviceGetMaxMigDeviceCount', 'int', [device, out('uint32_t')]),
    migHandle: library.func('nvmlDeviceGetMigDeviceHandleByIndex', 'int', [device, 'uint32_t', out(device)]),
    check: (call: string, status: number): void => {
      if (status !== success) throw new NvmlError(call, status, String(words(status)));
    },
  };
}

/** @param what is asked, in words for the warning that is added where it does not answer */
function ifItAnswers<T>(what: string, warnings: string[], ask: () => T): T | undefined {
  try {
    return ask();
  } catch (error) {
    if (!(error instanceof NvmlError)) throw error;
    warnings.push(`${what}: ${error.reason}`);
    return undefined;
  }
}

function describeGpu(nvml: Nvml, index: number, device: unknown, warnings: string[]): NvmlGpu {
  const major: [number] = [0];
  const minor: [number] = [0];
  nvml.check('nvmlDeviceGetCudaComputeCapability', nvml.capability(device, major, minor));
  const pci: [{ busId: string }] = [{ busId: '' }];
  nvml.check('nvmlDeviceGetPciInfo_v3', nvml.pci(device, pci));
  const mig_slices = migSlices(nvml, index, device, warnings);
  if (mig_slices?.length === 0)
    warnings.push(`GPU ${index}: it is in MIG mode and has no slice for this job`);
  return {
    index,
    name: textOf(nvml, 'nvmlDeviceGetName', nvml.name, device),
    uuid: textOf(nvml, 'nvmlDeviceGetUUID', nvml.uuid, device),
    memory_bytes: memoryOf(nvml, device),
    compute_capability: `${major[0]}.${minor[0]}`,
    pci_bus_id: pci[0].busId,
    mig_enabled: mig_slices !== undefined,
    mig_slices: mig_slices ?? [],
  };
}

/** Undefined where MIG is off or unknown to the GPU. */
function migSlices(
  nvml: Nvml,
  gpu_index: number,
  device: unknown,
  warnings: string[],
): NvmlGpu['mig_slices'] | undefined {
  const current: [number] = [0];
  const pending: [number] = [0];
  const mode = nvml.migMode(device, current, pending);
  if (mode === not_supported || (mode === success && current[0] === 0)) return undefined;
  nvml.check('nvmlDeviceGetMigMode', mode);
  const most: [number] = [0];
  nvml.check('nvmlDeviceGetMaxMigDeviceCount', nvml.migCount(device, most));
  const slices: NvmlGpu['mig_slices'] = [];
  for (let index = 0; index < most[0]; index++) {
    const handle: [unknown] = [null];
    const status = nvml.migHandle(device, index, handle);
    // An unused place, or a slice of another job.
    if (status === not_found || status === no_permission) continue;
    const slice = ifItAnswers(`MIG slice ${index} of GPU ${gpu_index}`, warnings, () => {
      nvml.check('nvmlDeviceGetMigDeviceHandleByIndex', status);
      return {
        index,
        name: textOf(nvml, 'nvmlDeviceGetName', nvml.name, handle[0]),
        uuid: textOf(nvml, 'nvmlDeviceGetUUID', nvml.uuid, handle[0]),
        memory_bytes: memoryOf(nvml, handle[0]),
      };
    });
    slices.push(slice);
  }
  return slices;
}

function memoryOf(nvml: Nvml, device: unknown): number {
  const memory: [{ total: number | bigint }] = [{ total: 0 }];
  nvml.check('nvmlDeviceGetMemoryInfo', nvml.memory(device, memory));
  return Number(memory[0].total);
}

function textOf(nvml: Nvml, call: string, get: ReturnType<LibraryHandle['func']>, device: unknown): string {
  const buffer = Buffer.alloc(text_bytes);
  nvml.check(call, get(device, buffer, text_bytes));
  return buffer.toString('utf8', 0, buffer.indexOf(0));
}
