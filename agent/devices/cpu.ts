/**
 * CPU devices: one per socket, made of the cores and the memory this job may use. Parsing is pure; `readCpuHost`
 * reads /proc, /sys and the environment.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { totalmem } from 'node:os';
import { join } from 'node:path';
import { cgroupMemoryLimit } from '../../host/cgroup.ts';
import type { DeviceDescription } from '../../spec/session-record.ts';
import { parseNumberList } from './lists.ts';

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

export interface CpuHost {
  /** Name as /proc/cpuinfo has it; empty on most aarch64 hosts. */
  model_name: string;
  isa: string[];
  /** Cores this process may run on. */
  allowed_cores: number[];
  /** Socket of each core. */
  package_of: ReadonlyMap<number, number>;
  /** NUMA nodes with their cores and memory. */
  numa_nodes: { id: number; cores: number[]; memory_bytes: number }[];
  memory_total_bytes: number;
  /** The tightest of cgroup and Slurm limits; absent where there is none. */
  memory_limit_bytes?: number;
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

/**
 * Memory a Slurm job may use on this node, bytes: `SLURM_MEM_PER_NODE` (MiB; 0 means all), else
 * `SLURM_MEM_PER_CPU` × cores. Absent outside Slurm and where the site does not schedule memory.
 */
export function slurmMemoryLimit(environment: NodeJS.ProcessEnv, cores: number): number | undefined {
  const mebibytes = (name: string): number | undefined => {
    const match = /^(\d+)([KMGT]?)$/.exec(environment[name] ?? '');
    if (!match || Number(match[1]) === 0) return undefined;
    const shift = { K: -1, M: 0, '': 0, G: 1, T: 2 }[match[2] as 'K' | 'M' | '' | 'G' | 'T'];
    return Number(match[1]) * 1024 ** shift;
  };
  const perNode = mebibytes('SLURM_MEM_PER_NODE');
  if (perNode !== undefined) return perNode * 1024 ** 2;
  const perCore = mebibytes('SLURM_MEM_PER_CPU');
  return perCore === undefined ? undefined : perCore * cores * 1024 ** 2;
}

/**
 * One device a socket that has allowed cores. Memory limits of the job are shared in proportion to what each
 * socket's NUMA nodes have.
 */
export function cpuDevices(host: CpuHost): DeviceDescription[] {
  const sockets = new Map<number, number[]>();
  for (const core of host.allowed_cores) {
    const socket = host.package_of.get(core) ?? 0;
    sockets.set(socket, [...(sockets.get(socket) ?? []), core]);
  }
  const attached = new Map([...sockets].map(([socket]) => [socket, attachedMemory(host, socket)]));
  const attachedTotal = [...attached.values()].reduce((sum, bytes) => sum + bytes, 0);
  const usable = Math.min(host.memory_total_bytes, host.memory_limit_bytes ?? Number.POSITIVE_INFINITY);
  return [...sockets]
    .sort(([a], [b]) => a - b)
    .map(([socket, cores]) => {
      const share = attachedTotal > 0 ? attached.get(socket)! / attachedTotal : 1 / sockets.size;
      return {
        kind: 'cpu',
        model: shortCpuModel(host.model_name),
        memory_bytes: Math.floor(usable * share),
        isa: host.isa,
        cores,
      };
    });
}

function attachedMemory(host: CpuHost, socket: number): number {
  return host.numa_nodes
    .filter((node) => node.cores.some((core) => host.package_of.get(core) === socket))
    .reduce((sum, node) => sum + node.memory_bytes, 0);
}

/** `Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz` → `Xeon Platinum 8480+`. */
export function shortCpuModel(name: string): string {
  const short = name
    .replace(/\((R|TM|C)\)/gi, '')
    .replace(/@.*$/, '')
    .replace(/\b(Intel|AMD|CPU|Processor|\d+-Core)\b/g, '')
    .replace(/\s+/g, ' ')
    .trim();
  return short === '' ? 'CPU' : short;
}

/** What this host says. `root` stands before /proc and /sys, for recorded hosts in tests. */
export function readCpuHost(environment: NodeJS.ProcessEnv, root = '/'): CpuHost {
  const read = (path: string): string => readFileSync(join(root, path), 'utf8');
  const { model_name, isa } = parseCpuInfo(read('proc/cpuinfo'));
  const allowed_cores = parseAllowedCores(read('proc/self/status'));
  const package_of = new Map<number, number>();
  for (const core of allowed_cores) {
    const file = `sys/devices/system/cpu/cpu${core}/topology/physical_package_id`;
    // Absent in some containers and -1 on some aarch64 hosts: then everything is one socket.
    if (existsSync(join(root, file))) package_of.set(core, Math.max(0, Number(read(file))));
  }
  const limits = [cgroupMemoryLimit(root), slurmMemoryLimit(environment, allowed_cores.length)].filter(
    (limit) => limit !== undefined,
  );
  return {
    model_name,
    isa,
    allowed_cores,
    package_of,
    numa_nodes: readNumaNodes(root),
    memory_total_bytes: root === '/' ? totalmem() : parseNodeMemory(read('proc/meminfo')),
    ...(limits.length > 0 ? { memory_limit_bytes: Math.min(...limits) } : {}),
  };
}

function readNumaNodes(root: string): CpuHost['numa_nodes'] {
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
