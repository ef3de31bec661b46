/**
 * `--device CUDA0 --libraries FOLDER`: a bench on a device with memory of its own in place of the CPU, by ggml's name
 * of it. The folder has ggml's libraries that know it: those that come with hpcserve know CPUs alone.
 */
import { resolve } from 'node:path';
import type { Backend } from '../agent/backend/backend.ts';
import { cpuBackend } from '../agent/backend/cpu/cpu-backend.ts';
import { deviceBackend } from '../agent/backend/device/device-backend.ts';
import { loadGgml } from '../native/ggml.ts';
import { nativeFolderVariable } from '../native/libraries.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { MissingNeed } from './need.ts';
import type { BenchResult } from './result.ts';

/** For `parseArgs`. */
export const deviceOptions = { device: { type: 'string' }, libraries: { type: 'string' } } as const;

/** Before the first library is loaded; processes that this one starts find the same. */
export function useLibraries(folder: string | undefined): void {
  if (folder !== undefined) process.env[nativeFolderVariable] = resolve(folder);
}

/**
 * @param device ggml's name of it; absent: the CPU
 * @throws MissingNeed the libraries know no such device, or there are none
 */
export function backendOf(device: string | undefined): Backend {
  try {
    const ggml = loadGgml();
    return device === undefined ? cpuBackend(ggml) : deviceBackend(ggml, device);
  } catch (error) {
    if (!(error instanceof HpcserveError) || error.code !== 'E_NATIVE_LIBRARY') throw error;
    throw new MissingNeed(
      [error.message, ...error.because].join(': '),
      '--libraries with a folder of ggml’s libraries that know the device, and --device with its name there',
    );
  }
}

/** What was measured on, as a row: which device it was is nowhere else in a report. */
export function deviceRows(device: string | undefined): BenchResult[] {
  if (device === undefined) return [];
  const backend = backendOf(device);
  return [
    {
      what: `memory of ${backend.name}: ${backend.description}`,
      unit: 'GiB',
      ours: backend.memory().total_bytes / 2 ** 30,
      peer: '',
      theirs: null,
      ratio: null,
      bar: '',
      holds: null,
    },
  ];
}
