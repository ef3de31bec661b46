/**
 * The processors and the memory of this host, from /proc and /sys. `root` stands before both, for recorded hosts in
 * tests.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { totalmem } from 'node:os';
import { join } from 'node:path';
import { parseNumberList } from './number-list.ts';

/** Instruction sets that decide which kernels run, from slow to fast; x86 and aarch64. */
const reportedIsa = [
  'avx2',
  'avx512f',
  'avx512_vnni',
  'avx512_bf16',
  'amx_tile',
  'amx_int8',
  'amx_bf16',
  'neon',
  'sve',
  'sve2',
  'i8mm',
  'bf16',
] as const;

export interface Processors {
  /** Name as /proc/cpuinfo has it; empty on most aarch64 hosts. */
  model_name: string;
  isa: string[];
  /** Cores this process may run on. */
  allowed_cores: number[];
  /** Socket of each core. */
  package_of: ReadonlyMap<number, number>;
  /** Of each core all hardware threads of its physical core, itself included; absent where the kernel does not say. */
  siblings_of?: ReadonlyMap<number, readonly number[]>;
  /** NUMA nodes with their cores and memory. */
  numa_nodes: { id: number; cores: number[]; memory_bytes: number }[];
  memory_total_bytes: number;
}

export function parseCpuInfo(text: string): { model_name: string; isa: string[] } {
  const field = (names: string): string =>
    new RegExp(`^(?:${names})[ \\t]*:[ \\t]*(.*)$`, 'm').exec(text)?.[1]?.trim() ?? '';
  const flags = new Set(field('flags|Features').split(/\s+/));
  // aarch64 writes the baseline vector unit as asimd; people know it as NEON.
  if (flags.has('asimd')) flags.add('neon');
  return { model_name: field('model name|Model'), isa: reportedIsa.filter((name) => flags.has(name)) };
}

/** `Cpus_allowed_list` of /proc/self/status: the affinity mask, in which Slurm and cpusets have their say. */
export function parseAllowedCores(status: string): number[] {
  return parseNumberList(/^Cpus_allowed_list:[ \t]*(.*)$/m.exec(status)?.[1] ?? '');
}

/** Bytes of a NUMA node from its `meminfo`; 0 where the line is absent. */
function parseNodeMemory(meminfo: string): number {
  return Number(/MemTotal:\s*(\d+) kB/.exec(meminfo)?.[1] ?? 0) * 1024;
}

/** What this host says. */
export function readProcessors(root = '/'): Processors {
  const read = (path: string): string => readFileSync(join(root, path), 'utf8');
  const { model_name, isa } = parseCpuInfo(read('proc/cpuinfo'));
  const allowed_cores = parseAllowedCores(read('proc/self/status'));
  const package_of = new Map<number, number>();
  const siblings_of = new Map<number, readonly number[]>();
  for (const core of allowed_cores) {
    const topology = `sys/devices/system/cpu/cpu${core}/topology`;
    const file = `${topology}/physical_package_id`;
    // Absent in some containers and -1 on some aarch64 hosts: then everything is one socket.
    if (existsSync(join(root, file))) package_of.set(core, Math.max(0, Number(read(file))));
    const siblings = `${topology}/thread_siblings_list`;
    if (existsSync(join(root, siblings))) siblings_of.set(core, parseNumberList(read(siblings)));
  }
  return {
    model_name,
    isa,
    allowed_cores,
    package_of,
    siblings_of,
    numa_nodes: readNumaNodes(root),
    memory_total_bytes: root === '/' ? totalmem() : parseNodeMemory(read('proc/meminfo')),
  };
}

function readNumaNodes(root: string): Processors['numa_nodes'] {
  const folder = join(root, 'sys/devices/system/node');
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .map((name) => /^node(\d+)$/.exec(name)?.[1])
    .filter((id) => id !== undefined)
    .map((id) => ({
      id: Number(id),
      cores: parseNumberList(readFileSync(join(folder, `node${id}`, 'cpulist'), 'utf8')),
      memory_bytes: parseNodeMemory(readFileSync(join(folder, `node${id}`, 'meminfo'), 'utf8')),
    }));
}
