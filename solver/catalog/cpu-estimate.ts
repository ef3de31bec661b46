/** CPUs the catalog does not know by name, from their cores and instruction sets; and parts of those it knows. */
import type { DeviceFamily, DeviceSpec } from './device-spec.ts';

/** What is known of a node's CPUs. */
export interface HostCpu {
  /** As the scheduler counts them. */
  cpus: number;
  /** CPU flags as /proc/cpuinfo names them. */
  isa: readonly string[];
  architecture?: 'x86_64' | 'aarch64' | undefined;
}

interface Level {
  basis: string;
  family: DeviceFamily;
  /** Per core, in 10⁹ operations per second: operations a cycle × the all-core clock of `basis`. */
  gflops: { fp32: number; bf16?: number; int8?: number };
  /** One core's part of its socket's memory bandwidth. */
  gb_per_s: number;
}

/** Server CPUs of each kind at their base clock: a guess on the low side (`cpus.ts` says how peaks are made). */
const levels = {
  amx: {
    basis: 'AMX, like a Xeon 8480+ (2.0 GHz)',
    family: 'cpu-amx',
    gflops: { fp32: 128, bf16: 4096, int8: 8192 },
    gb_per_s: 5.5,
  },
  avx512_bf16: {
    basis: 'AVX-512 and bf16, like an EPYC 9654 (2.4 GHz)',
    family: 'cpu',
    gflops: { fp32: 77, bf16: 154, int8: 307 },
    gb_per_s: 4.8,
  },
  avx512: {
    basis: 'AVX-512, like a Xeon 8360Y (2.4 GHz)',
    family: 'cpu',
    gflops: { fp32: 154 },
    gb_per_s: 4,
  },
  avx2: { basis: 'AVX2, like an EPYC 7742 (2.25 GHz)', family: 'cpu', gflops: { fp32: 72 }, gb_per_s: 3.2 },
  sve: {
    basis: 'SVE and bf16, like a Neoverse V1 (2.6 GHz)',
    family: 'cpu',
    gflops: { fp32: 83, bf16: 166 },
    gb_per_s: 4.8,
  },
  neon: {
    basis: 'NEON, like a Neoverse N1 (2.5 GHz)',
    family: 'cpu',
    gflops: { fp32: 40 },
    gb_per_s: 3.2,
  },
  scalar: {
    basis: 'no vector extensions that the site names, taken for AVX at 2 GHz',
    family: 'cpu',
    gflops: { fp32: 32 },
    gb_per_s: 3.2,
  },
} satisfies Record<string, Level>;

function levelOf({ isa, architecture }: HostCpu): Level {
  const has = (...flags: string[]): boolean =>
    flags.some((flag) => isa.some((one) => one.toLowerCase() === flag));
  if (has('amx_bf16', 'amx_int8', 'amx', 'amx-bf16')) return levels.amx;
  if (has('avx512_bf16', 'avx512bf16')) return levels.avx512_bf16;
  if (has('avx512f', 'avx512', 'avx512_vnni', 'avx512bw')) return levels.avx512;
  if (has('avx2')) return levels.avx2;
  if (has('sve', 'sve2')) return levels.sve;
  if (has('neon', 'asimd') || architecture === 'aarch64') return levels.neon;
  return levels.scalar;
}

/**
 * What one core can draw of a socket that others leave idle: LLM-Mesh's slices of 8 and 16 cores read weights at
 * 14 to 20 GB/s per core, twice what each has of a socket that works as a whole.
 */
const gb_per_s_of_one_core = 20;
/** Of a socket nobody knows: as a whole, and what a few of its cores may take of it. */
const sockets_gb_per_s = { most: 300, least: 100 };

/**
 * `cores` cores of a CPU that is only known by its extensions, one of `count` such devices. Bandwidth: what that
 * many cores of the named CPU have of their socket, between 100 GB/s for all devices and 300 GB/s for each, and
 * at most 20 GB/s for each core.
 */
export function cpuOfCores(
  model: string,
  cores: number,
  count: number,
  host: HostCpu,
): { device: DeviceSpec; basis: string } {
  const level = levelOf(host);
  const { fp32, bf16, int8 } = level.gflops;
  const shared = Math.max(sockets_gb_per_s.least / count, level.gb_per_s * cores);
  const gb_per_s = Math.min(gb_per_s_of_one_core * cores, sockets_gb_per_s.most, shared);
  return {
    basis: level.basis,
    device: {
      name: model,
      aliases: [],
      vendor: 'other',
      kind: 'cpu',
      family: level.family,
      peak_flops_per_s: {
        fp32: fp32 * cores * 1e9,
        ...(bf16 === undefined ? {} : { bf16: bf16 * cores * 1e9 }),
        ...(int8 === undefined ? {} : { int8: int8 * cores * 1e9 }),
      },
      memory_bytes: 0,
      memory_bandwidth_bytes_per_s: gb_per_s * 1e9,
      link: { name: 'between sockets', bandwidth_bytes_per_s: 40e9, devices: 2 },
      tdp_w: 6 * cores,
      cores,
      source: `estimated from ${cores} cores with ${level.basis}`,
    },
  };
}

/**
 * So many cores of a socket the catalog knows, one of `count` such devices: their part of its arithmetic and
 * power, and of its bandwidth what the devices on one socket leave each other, at most 20 GB/s for each core.
 */
export function partOfSocket(socket: DeviceSpec, cores: number, count: number): DeviceSpec {
  const all = socket.cores;
  if (all === undefined || cores >= all) return socket;
  const share = cores / all;
  const beside = Math.min(count, Math.floor(all / cores));
  return {
    ...socket,
    cores,
    peak_flops_per_s: Object.fromEntries(
      Object.entries(socket.peak_flops_per_s).map(([precision, peak]) => [precision, peak * share]),
    ),
    memory_bandwidth_bytes_per_s: Math.min(
      socket.memory_bandwidth_bytes_per_s / beside,
      cores * gb_per_s_of_one_core * 1e9,
    ),
    tdp_w: socket.tdp_w * share,
    source: `${cores} of ${all} cores of: ${socket.source}`,
  };
}
