/**
 * Which of our products for CPUs (cpu-kernels.ts) were compiled, and which run on this CPU, for those who only say so:
 * what was found once of the same file on the same CPU is kept, and nothing is loaded to know it again.
 */
import { createHash } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { cpus, hostname } from 'node:os';
import { z } from 'zod';
import { cpuKernelsPath } from './cpu-kernels-file.ts';
import { nativeCacheFile, writeNativeCache } from './probe.ts';

const namesSchema = z.object({ compiled: z.array(z.string()), sets: z.array(z.string()) });
/** Names of instruction sets, the fastest first. */
export type CpuKernelSetNames = z.infer<typeof namesSchema>;

/** @returns undefined where the library was not built. */
export async function cpuKernelSets(path = cpuKernelsPath): Promise<CpuKernelSetNames | undefined> {
  const file = statSync(path, { throwIfNoEntry: false });
  if (file === undefined) return undefined;
  const facts = [path, file.size, file.mtimeMs, hostname(), cpus()[0]?.model, process.version];
  const key = createHash('sha256').update(facts.join('\n')).digest('hex').slice(0, 32);
  const cache = nativeCacheFile('sets', key);
  const known = readNames(cache);
  if (known) return known;
  const { loadCpuKernels } = await import('./cpu-kernels.ts');
  const kernels = loadCpuKernels(path);
  if (kernels === undefined) return undefined;
  const named = (sets: readonly { name: string }[]): string[] => sets.map(({ name }) => name);
  const names = { compiled: named(kernels.compiled), sets: named(kernels.sets) };
  writeNativeCache(cache, names);
  return names;
}

function readNames(path: string): CpuKernelSetNames | undefined {
  try {
    return namesSchema.parse(JSON.parse(readFileSync(path, 'utf8')));
  } catch {
    // No cache, or one that was cut off: the library is loaded again.
    return undefined;
  }
}
