/**
 * Why a backend of ggml for accelerators finds no device: which driver this machine has, which of the libraries that
 * the backend is linked against are found, and which module would bring the others. They are tried in a child process.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { z } from 'zod';
import { librariesNeeded } from './formats/elf-needed.ts';
import { findNativeLibraries } from './libraries.ts';
import { type GpuBackend, gpuBackendsIn } from './list-devices.ts';
import { type ChildFailure, explainChildFailure } from './probe.ts';

/** Libraries of a GPU take seconds from a cold filesystem. */
const load_timeout_ms = 60_000;

const triedSchema = z.object({
  /** Of the libraries that were asked for. */
  missing: z.array(z.string()),
  /** Newest CUDA that the driver knows, as cuDriverGetVersion counts: 12040 is 12.4. */
  cuda_driver: z.number().optional(),
  /** The loader's words; absent: the backend loads. */
  refused: z.string().optional(),
});

/** What a backend asks of this machine, and what is there. */
export interface BackendNeeds extends z.infer<typeof triedSchema> {
  backend: GpuBackend;
  /** Libraries of others that it is linked against. */
  needed: readonly string[];
  /** Of the kernel's module; absent: it is not loaded, or does not say. */
  driver?: string | undefined;
}

const childProgram = `
const [koffiUrl, basePath, ggmlPath, file, ...needed] = process.argv.slice(1);
const koffi = (await import(koffiUrl)).default;
koffi.load(basePath, { global: true });
koffi.load(ggmlPath, { global: true });
const missing = [];
const told = { missing };
for (const name of needed) {
  try {
    const library = koffi.load(name);
    if (!/^libcuda\\.so/.test(name)) continue;
    const version = [0];
    const status = library.func('cuDriverGetVersion', 'int', [koffi.out('int *')])(version);
    if (status === 0) told.cuda_driver = version[0];
  } catch (error) { missing.push(name); }
}
try { koffi.load(file); } catch (error) { told.refused = error.message; }
process.stdout.write('\\n' + JSON.stringify(told) + '\\n');
`;

/** The kernel's modules of drivers, by backend. */
const driverModules: Partial<Record<GpuBackend, string>> = { cuda: 'nvidia', hip: 'amdgpu' };

/**
 * @param folder as in `findNativeLibraries`
 * @param environment of those who will compute
 * @throws HpcserveError E_NATIVE_LIBRARY: the libraries are not there
 */
export function inspectBackends(folder: string, environment: NodeJS.ProcessEnv, root = '/'): BackendNeeds[] {
  const libraries = findNativeLibraries(folder);
  const files = readdirSync(libraries.folder).sort();
  return gpuBackendsIn(libraries.folder).map((backend) => {
    const file = join(libraries.folder, files.find((name) => name.startsWith(`libggml-${backend}.so`))!);
    const needed = (librariesNeeded(file) ?? []).filter((name) => !files.includes(name) && !isOfSystem(name));
    const paths = [libraries.ggml_base, libraries.ggml, file];
    const module = driverModules[backend];
    const driver = module && textOf(join(root, 'sys/module', module, 'version'));
    return { backend, needed, driver, ...tryLibraries([...paths, ...needed], environment) };
  });
}

function tryLibraries(names: readonly string[], environment: NodeJS.ProcessEnv): z.infer<typeof triedSchema> {
  const koffi = pathToFileURL(createRequire(import.meta.url).resolve('koffi')).href;
  try {
    const output = execFileSync(
      process.execPath,
      ['--input-type=module', '--eval', childProgram, '--', koffi, ...names],
      { encoding: 'utf8', timeout: load_timeout_ms, stdio: ['ignore', 'pipe', 'pipe'], env: environment },
    );
    // Drivers may write to stdout, too.
    return triedSchema.parse(JSON.parse(output.trim().split('\n').at(-1) ?? ''));
  } catch (error) {
    return { missing: [], refused: explainChildFailure(error as ChildFailure).join('; ') };
  }
}

/** What every Linux has; whether it is new enough the loader says. */
function isOfSystem(name: string): boolean {
  return /^(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libgomp|ld-linux[-\w]*)\.so/.test(name);
}

function textOf(path: string): string | undefined {
  return existsSync(path) ? readFileSync(path, 'utf8').trim() : undefined;
}

/** Names under which sites have the toolkits of GPUs. */
const toolkits = /^(cuda|cudatoolkit|cuda-toolkit|rocm)$/i;
/** More folders than any site's; each is looked at. */
const module_folders_max = 64;

/** Modules of GPU toolkits that `module avail` would show: `cuda/13.0`, in the order of their versions. */
export function runtimeModules(module_path: string | undefined): string[] {
  const found = new Set<string>();
  for (const folder of (module_path ?? '').split(':').filter(Boolean).slice(0, module_folders_max))
    for (const name of namesOf(folder).filter((one) => toolkits.test(one)))
      for (const file of namesOf(join(folder, name)))
        if (/^\d/.test(file)) found.add(`${name}/${file.replace(/\.lua$/, '')}`);
  return [...found].sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
}

/** None where it cannot be read: modules are advice, and what they are asked for is an error already. */
function namesOf(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
