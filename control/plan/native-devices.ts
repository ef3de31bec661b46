/** Accelerators for the native engine: whether a site has a backend for them, and what this machine has. */
import { existsSync } from 'node:fs';
import { hybridGemmPath } from '../../native/cuda/library-file.ts';
import { nativeFolderVariable } from '../../native/libraries.ts';
import { gpuBackendsIn, type ListedDevice, listAccelerators } from '../../native/list-devices.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SiteConfig } from '../../spec/site.ts';
import type { DeviceConfig } from '../../spec/site-nodes.ts';
import { expandSitePath } from '../../spec/site-paths.ts';

const gigabyte = 1e9;

/** Accelerators of this machine that the native engine's libraries compute on, those of one model together. */
export function localAccelerators(
  site: SiteConfig,
  environment: Readonly<Record<string, string | undefined>>,
): DeviceConfig[] {
  const folder = gpuLibraries(site, environment);
  if (folder === undefined) return [];
  const devices = new Map<string, DeviceConfig>();
  for (const { description, memory_total_bytes } of acceleratorsOf(folder, environment)) {
    const known = devices.get(description);
    if (known) known.count++;
    else {
      const memory_gb = memory_total_bytes / gigabyte;
      devices.set(description, { kind: 'gpu', model: description, count: 1, memory_gb });
    }
  }
  return [...devices.values()];
}

/** None where they cannot be listed: `doctor` says why, and CPUs serve. */
function acceleratorsOf(
  folder: string,
  environment: Readonly<Record<string, string | undefined>>,
): ListedDevice[] {
  try {
    return listAccelerators(folder, { ...environment });
  } catch (error) {
    if (!(error instanceof HpcserveError)) throw error;
    return [];
  }
}

/** The folder of the native engine's libraries, where they have a backend for GPUs. Nothing of it is loaded. */
export function gpuLibraries(
  site: SiteConfig,
  environment: Readonly<Record<string, string | undefined>>,
): string | undefined {
  const { library_dir } = site.native;
  const own = site.kind === 'local' ? environment[nativeFolderVariable] : undefined;
  const folder = library_dir === undefined ? own : expandSitePath(library_dir, environment);
  return folder !== undefined && folder !== '' && gpuBackendsIn(folder).length > 0 ? folder : undefined;
}

/**
 * Whether products of its GPUs read weights in page-locked memory of the host (HybridGEMM): with this program, which
 * jobs run, too, the build has brought the library for it.
 * @param folder as `gpuLibraries` found it
 */
export function readsHostWeights(folder: string, library = hybridGemmPath): boolean {
  return gpuBackendsIn(folder).includes('cuda') && existsSync(library);
}
