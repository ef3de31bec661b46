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

/** One core cannot keep more than about this in flight: 12 to 16 lines of 64 bytes at some 90 ns. */
const gb_per_s_of_one_core = 10;
const sockets_gb_per_s = 300;

/**
 * `cores` cores of a CPU that is only known by its extensions. Bandwidth: what that many cores of the named
 * CPU have of their socket, at most a socket's 300 GB/s.
 */
export function cpuOfCores(
  model: string,
  cores: number,
  host: HostCpu,
): { device: DeviceSpec; basis: string } {
  const level = levelOf(host);
  const { fp32, bf16, int8 } = level.gflops;
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
      memory_bandwidth_bytes_per_s: Math.min(sockets_gb_per_s, level.gb_per_s * cores) * 1e9,
      link: { name: 'between sockets', bandwidth_bytes_per_s: 40e9, devices: 2 },
      tdp_w: 6 * cores,
      cores,
      source: `estimated from ${cores} cores with ${level.basis}`,
    },
  };
}

/**
 * So many cores of a socket the catalog knows: their part of its arithmetic, bandwidth and power. Bandwidth is
 * shared evenly, since the other cores have work too, and one core cannot use more than 10 GB/s.
 */
export function partOfSocket(socket: DeviceSpec, cores: number): DeviceSpec {
  const all = socket.cores;
  if (all === undefined || cores >= all) return socket;
  const share = cores / all;
  return {
    ...socket,
    cores,
    peak_flops_per_s: Object.fromEntries(
      Object.entries(socket.peak_flops_per_s).map(([precision, peak]) => [precision, peak * share]),
    ),
    memory_bandwidth_bytes_per_s: Math.min(
      socket.memory_bandwidth_bytes_per_s * share,
      cores * gb_per_s_of_one_core * 1e9,
    ),
    tdp_w: socket.tdp_w * share,
    source: `${cores} of ${all} cores of: ${socket.source}`,
  };
}
