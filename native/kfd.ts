/** What the Linux kernel knows of AMD's GPUs: its KFD topology in /sys, which needs no library. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export interface KfdNode {
  name: string;
  properties: string;
  /** `properties` of its memory banks. */
  memory_banks: string[];
}

/** A GPU among the nodes, whose others are CPUs. */
export interface KfdGpu {
  model: string;
  memory_bytes: number;
  /** `gfx90a`. */
  target: string;
}

const properties = (text: string): Map<string, number> =>
  new Map([...text.matchAll(/^(\w+) (\d+)$/gm)].map((match) => [match[1]!, Number(match[2])]));

/**
 * @returns undefined where the node has no SIMD units, as CPUs have none.
 * gfx_target_version 90010 is gfx90a: major × 10000 + minor × 100 + stepping, minor and stepping in hex.
 */
export function describeKfdGpu(node: KfdNode): KfdGpu | undefined {
  const told = properties(node.properties);
  if ((told.get('simd_count') ?? 0) === 0) return undefined;
  const version = told.get('gfx_target_version') ?? 0;
  const [major, ...others] = [Math.floor(version / 10_000), Math.floor(version / 100) % 100, version % 100];
  return {
    model: node.name.trim() || 'AMD GPU',
    memory_bytes: localMemory(node),
    target: `gfx${major}${others.map((part) => part.toString(16)).join('')}`,
  };
}

/** Heap types 1 and 2 are the public and private part of the GPU's own memory. */
function localMemory(gpu: KfdNode): number {
  const banks = gpu.memory_banks
    .map(properties)
    .filter((bank) => [1, 2].includes(bank.get('heap_type') ?? 0));
  return banks.reduce((sum, bank) => sum + (bank.get('size_in_bytes') ?? 0), 0);
}

/**
 * Without the nodes of GPUs that are another job's: the kernel keeps a process from those outside its device cgroup.
 */
export function readKfdNodes(root = '/', read: (path: string) => string = readText): KfdNode[] {
  const folder = join(root, 'sys/class/kfd/kfd/topology/nodes');
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .sort((a, b) => Number(a) - Number(b))
    .flatMap((node) => {
      try {
        return [readKfdNode(join(folder, node), read)];
      } catch (error) {
        if (['EPERM', 'EACCES'].includes((error as NodeJS.ErrnoException).code ?? '')) return [];
        throw error;
      }
    });
}

const readText = (path: string): string => readFileSync(path, 'utf8');

function readKfdNode(folder: string, read: (path: string) => string): KfdNode {
  const banks = join(folder, 'mem_banks');
  return {
    name: read(join(folder, 'name')),
    properties: read(join(folder, 'properties')),
    memory_banks: existsSync(banks)
      ? readdirSync(banks).map((bank) => read(join(banks, bank, 'properties')))
      : [],
  };
}
