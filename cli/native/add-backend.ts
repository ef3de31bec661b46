/** Brings libraries with a backend for GPUs to a site: a package of npm, chosen by release and hash. */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { AddedLibraries } from '../../control/state/native-libraries.ts';
import { makeFolders } from '../../host/make-folders.ts';
import { moveIntoPlaceSync } from '../../host/move.ts';
import { replaceLink } from '../../host/whole-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

/** Of @node-llama-cpp/linux-x64-*: the release that package.json has for CPUs, and so the same ggml. */
export const librariesRelease = '3.22.1';

interface AddedBackend {
  /** SHA-512 of the package's file, base64, as the registry's `dist.integrity` has it. */
  sha512: string;
  /** What a node needs beside it. */
  needs: string;
}

export const addedBackends = {
  cuda: {
    sha512: '8rQCjyNNLZJUFit+YpjwlC4hwkKgOMIkB2wuycKBf8NU2O3ySKbiWZQ8aw9ku2nUTXjSnUIrE6KB88itduTBuA==',
    needs:
      'NVIDIA’s driver and libcudart.so.13, libcublas.so.13 in the job (runtime.modules); GPUs from compute capability 7.5 on',
  },
  vulkan: {
    sha512: 'bBxqU+JOcBu1nb5Qj2zcMci+JByT1E8EajHvYodyNfVIPkEhXh+/HMwR1/BT7xP08YK0hks+kM8fglER0P8JEg==',
    needs: 'libvulkan.so.1 and a driver of the GPU for Vulkan (its manifest in /usr/share/vulkan/icd.d)',
  },
} as const satisfies Record<string, AddedBackend>;
export type AddedBackendName = keyof typeof addedBackends;

export const addedBackendNames = Object.keys(addedBackends) as AddedBackendName[];

/** The package's name in npm's words. */
export function packageOf(backend: AddedBackendName): string {
  return `@node-llama-cpp/linux-x64-${backend}@${librariesRelease}`;
}

export interface AddOptions {
  /** The package's file, fetched elsewhere; absent: npm fetches it. */
  from?: string;
  libraries: AddedLibraries;
  architecture: string;
}

/**
 * What jobs that run keep using stays where it is; the next ones use the new folder.
 * @returns the folder of the libraries
 * @throws HpcserveError E_NATIVE_ADD
 */
export async function addBackend(
  backend: AddedBackendName,
  { from, libraries, architecture }: AddOptions,
): Promise<string> {
  requireBuilt(backend, architecture);
  const name = `${backend}-${librariesRelease}`;
  makeFolders(libraries.folder);
  const work = mkdtempSync(join(libraries.folder, `.${name}-`));
  try {
    unpackBackend(backend, work, from);
    const folder = join(libraries.folder, name);
    // What is there has the same bytes, and workers may have them open.
    if (!existsSync(folder)) moveIntoPlaceSync(work, folder);
    await replaceLink(libraries.link, name);
    return folder;
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** @throws HpcserveError E_NATIVE_ADD */
export function requireBuilt(backend: AddedBackendName, architecture: string): void {
  if (architecture === 'x64') return;
  throw new HpcserveError('E_NATIVE_ADD', {
    what: `there are no libraries with a backend for ${backend} on ${architecture}`,
    because: 'the project that builds them has them for x86-64 alone',
    try: 'build llama.cpp with that backend for the nodes, and name its folder in native.library_dir of the site config',
  });
}

/**
 * The libraries themselves, into a folder that is there.
 * @param from see `AddOptions`
 * @throws HpcserveError E_NATIVE_ADD
 */
export function unpackBackend(backend: AddedBackendName, folder: string, from?: string): void {
  const file = from ?? fetched(backend, folder);
  checkHash(backend, file);
  run(['tar', '-xzf', file, '-C', folder, '--strip-components=3', `package/bins/linux-x64-${backend}`]);
  if (from === undefined) rmSync(file);
}

function fetched(backend: AddedBackendName, folder: string): string {
  run(['npm', 'pack', packageOf(backend), '--pack-destination', folder, '--loglevel=error']);
  const file = readdirSync(folder).find((entry) => entry.endsWith('.tgz'));
  if (file === undefined)
    throw new HpcserveError('E_NATIVE_ADD', { what: `npm brought no archive of ${packageOf(backend)}` });
  return join(folder, file);
}

function checkHash(backend: AddedBackendName, file: string): void {
  const found = createHash('sha512').update(readFileSync(file)).digest('base64');
  if (found === addedBackends[backend].sha512) return;
  throw new HpcserveError('E_NATIVE_ADD', {
    what: `${file} is not ${packageOf(backend)}, as it was when it was chosen`,
    because: `its SHA-512 is ${found}, and ${addedBackends[backend].sha512} was expected`,
  });
}

function run(argv: readonly string[]): void {
  const [program, ...args] = argv;
  const { status, error, stderr } = spawnSync(program!, args, { encoding: 'utf8' });
  if (status === 0) return;
  throw new HpcserveError('E_NATIVE_ADD', {
    what: `${argv.slice(0, 3).join(' ')} did not succeed`,
    because: error?.message ?? stderr.trim().split('\n').slice(-3),
  });
}
