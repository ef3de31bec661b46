/** CPU devices, made of the cores and the memory this job may use: one a socket, or so many as the plan counts. */
import { cgroupMemoryLimit } from '../../host/cgroup.ts';
import { type Processors, readProcessors } from '../../host/processors.ts';
import type { DeviceDescription } from '../../spec/session-record.ts';

export interface CpuHost extends Processors {
  /** The tightest of cgroup and Slurm limits; undefined where there is none. */
  memory_limit_bytes?: number | undefined;
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

/**
 * So many devices as the plan counts on a node, where its sockets are others: a job may have been given cores of both
 * sockets for one device, or one socket may stand for several. Cores that are next to each other stay together; each
 * device has an equal share of cores and memory.
 */
export function plannedCpuDevices(host: CpuHost, count: number | undefined): DeviceDescription[] {
  const sockets = cpuDevices(host);
  if (count === undefined || count === sockets.length || host.allowed_cores.length < count) return sockets;
  const cores = sockets.flatMap((socket) => nearestFirst(host, socket.cores ?? []));
  const memory_bytes = sockets.reduce((sum, socket) => sum + socket.memory_bytes, 0);
  return Array.from({ length: count }, (_, index) => ({
    ...sockets[0]!,
    memory_bytes: Math.floor(memory_bytes / count),
    cores: cores.slice(
      Math.floor((index * cores.length) / count),
      Math.floor(((index + 1) * cores.length) / count),
    ),
  }));
}

/** Cores of one socket by NUMA node. */
function nearestFirst({ numa_nodes }: CpuHost, cores: readonly number[]): number[] {
  const nodeOf = (core: number): number => numa_nodes.findIndex((node) => node.cores.includes(core));
  return [...cores].sort((a, b) => nodeOf(a) - nodeOf(b) || a - b);
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

/** What this host and this job say. `root` stands before /proc and /sys, for recorded hosts in tests. */
export function readCpuHost(environment: NodeJS.ProcessEnv, root = '/'): CpuHost {
  const processors = readProcessors(root);
  const limits = [
    cgroupMemoryLimit(root),
    slurmMemoryLimit(environment, processors.allowed_cores.length),
  ].filter((limit) => limit !== undefined);
  return { ...processors, memory_limit_bytes: limits.length > 0 ? Math.min(...limits) : undefined };
}
