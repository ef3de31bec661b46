/**
 * The devices that ggml's backends find on this machine: listed by a child process, since a driver that is broken may
 * end whoever asks, and one that works keeps memory and threads in whoever asked.
 */
import { execFileSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { z } from 'zod';
import { HpcserveError } from '../spec/errors/error.ts';
import { findNativeLibraries } from './libraries.ts';
import { type ChildFailure, explainChildFailure } from './probe.ts';

/** Backends of ggml for accelerators, as their libraries are named. */
const accelerated = ['cuda', 'vulkan', 'hip', 'musa', 'sycl', 'cann', 'opencl'] as const;
export type GpuBackend = (typeof accelerated)[number];

const deviceSchema = z.object({
  /** As ggml calls it in a process with this environment: `CUDA0`, `Vulkan1`. */
  name: z.string(),
  /** Of the hardware, without its maker's name, as the catalog of devices has it. */
  description: z.string().transform((text) => text.replace(/^((NVIDIA|Tesla|GeForce)\s+)+/i, '').trim()),
  /** enum ggml_backend_dev_type. An integrated GPU has no memory but the host's. */
  type: z.enum(['cpu', 'gpu', 'integrated', 'accelerator', 'other']),
  memory_free_bytes: z.number(),
  memory_total_bytes: z.number(),
  /** Of its PCI bus, such as 0000:17:00.0; absent where the backend does not say. */
  pci_bus_id: z.string().optional(),
});
/** A device that computes for ggml and is not the CPU. */
export type ListedDevice = z.infer<typeof deviceSchema>;

/** Drivers of GPUs that sleep take seconds to wake. */
const list_timeout_ms = 60_000;

/** struct ggml_backend_dev_props: see ggml-backend.h. */
const childProgram = `
const [koffiUrl, basePath, ggmlPath, folder] = process.argv.slice(1);
const koffi = (await import(koffiUrl)).default;
const base = koffi.load(basePath, { global: true });
const ggml = koffi.load(ggmlPath, { global: true });
const P = 'void *';
base.func('ggml_log_set', 'void', [P, P])(base.symbol('ggml_time_init'), null);
ggml.func('ggml_backend_load_all_from_path', 'void', ['str'])(folder);
const Props = koffi.struct({
  name: 'str', description: 'str', memory_free: 'size_t', memory_total: 'size_t', type: 'int', device_id: 'str',
  caps: koffi.array('bool', 4),
});
const count = ggml.func('ggml_backend_dev_count', 'size_t', [])();
const get = ggml.func('ggml_backend_dev_get', P, ['size_t']);
const props = base.func('ggml_backend_dev_get_props', 'void', [P, koffi.out(koffi.pointer(Props))]);
const types = ['cpu', 'gpu', 'integrated', 'accelerator'];
const devices = [];
for (let index = 0; index < Number(count); index++) {
  const told = {};
  props(get(index), told);
  const { name, description, memory_free, memory_total, type, device_id } = told;
  const device = { name, description: description ?? name, type: types[type] ?? 'other' };
  devices.push({ ...device, memory_free_bytes: Number(memory_free), memory_total_bytes: Number(memory_total),
    ...(device_id && { pci_bus_id: device_id }) });
}
process.stdout.write(JSON.stringify(devices) + '\\n');
`;

/** Backends for accelerators whose libraries lie in a folder; nothing is loaded, so that login nodes may ask. */
export function gpuBackendsIn(folder: string): GpuBackend[] {
  let files: string[];
  try {
    files = readdirSync(folder);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'EACCES') return [];
    throw error;
  }
  return accelerated.filter((name) => files.some((file) => new RegExp(`^libggml-${name}\\.so`).test(file)));
}

/**
 * Accelerators that the libraries of a folder compute on here, in ggml's order.
 * @param environment of those who will compute: it says which devices there are, and under which names
 * @throws HpcserveError E_NATIVE_LIBRARY: the libraries do not load, or a driver ends who loads it
 */
export function listAccelerators(folder: string, environment: NodeJS.ProcessEnv): ListedDevice[] {
  const libraries = findNativeLibraries(folder);
  const koffi = pathToFileURL(createRequire(import.meta.url).resolve('koffi')).href;
  const paths = [libraries.ggml_base, libraries.ggml, libraries.folder];
  try {
    const output = execFileSync(
      process.execPath,
      ['--input-type=module', '--eval', childProgram, '--', koffi, ...paths],
      { encoding: 'utf8', timeout: list_timeout_ms, stdio: ['ignore', 'pipe', 'pipe'], env: environment },
    );
    // Drivers may write to stdout, too.
    const last = output.trim().split('\n').at(-1) ?? '';
    const devices = z.array(deviceSchema).parse(JSON.parse(last));
    return devices.filter(({ type }) => type === 'gpu' || type === 'integrated');
  } catch (error) {
    throw new HpcserveError('E_NATIVE_LIBRARY', {
      what: `devices for the libraries in ${libraries.folder} cannot be listed`,
      because: explainChildFailure(error as ChildFailure),
      cause: error,
    });
  }
}
