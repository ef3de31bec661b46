/** ggml's libraries for different CPUs, each to be used alone. */
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import koffi from 'koffi';
import { findNativeLibraries } from '../../../native/libraries.ts';

const pattern = /^libggml-cpu-(\w+)\.so$/;

/** Names of those that run here: ggml's own question to each of them, 0 where this CPU lacks something that it uses. */
export function runnableCpuLibraries(): string[] {
  const { folder, ggml_base } = findNativeLibraries();
  koffi.load(ggml_base, { global: true });
  return readdirSync(folder).flatMap((file) => {
    const name = pattern.exec(file)?.[1];
    if (name === undefined) return [];
    const score = koffi.load(join(folder, file)).func('int ggml_backend_score()');
    return (score() as number) > 0 ? [name] : [];
  });
}

/** The library whose kernels `test/agent/device-worker/wrong-kernels.c` stands before. */
export const wrongKernelCpu = 'haswell';

/** What this machine lacks to put a wrong kernel before a right one; empty: nothing. */
export function lackingForWrongKernels(): string {
  const missing = [
    ...(spawnSync('cc', ['--version']).status === 0 ? [] : ['a C compiler']),
    ...(runnableCpuLibraries().includes(wrongKernelCpu) ? [] : ['a CPU with AVX2']),
  ];
  return missing.join(' and ');
}

/** Makes a folder with all libraries but those of other CPUs. @returns its path */
export function folderWithOneCpu(path: string, name: string): string {
  const { folder } = findNativeLibraries();
  mkdirSync(path);
  for (const file of readdirSync(folder)) {
    const cpu = pattern.exec(file)?.[1];
    if (cpu === undefined || cpu === name) symlinkSync(join(folder, file), join(path, file));
  }
  return path;
}
