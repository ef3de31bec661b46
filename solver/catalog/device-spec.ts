/** What the catalog knows of one device: the figures a roofline needs, and where they stand in public. */

/** How a multiplication is carried out; decides which peak applies. */
export type ComputePrecision = 'fp32' | 'fp16' | 'bf16' | 'fp8' | 'int8' | 'fp4';

/**
 * Devices that share kernels and therefore calibration constants. A constant measured on one member is used
 * for all of them; see `solver/simulator/calibration/`.
 */
export type DeviceFamily =
  | 'pascal'
  | 'volta'
  | 'turing'
  | 'ampere'
  | 'ampere-gddr'
  | 'ada'
  | 'hopper'
  | 'blackwell'
  | 'blackwell-gddr'
  | 'cdna2'
  | 'cdna3'
  | 'cdna4'
  | 'cpu-amx'
  | 'cpu';

/** The fastest link between devices of one kind within a node (or a rack, for NVL72). */
export interface DeviceLink {
  name: string;
  /** Bytes per second that one device can send to its peers, one direction. */
  bandwidth_bytes_per_s: number;
  /** Devices that reach each other over it; beyond them goes the interconnect between nodes. */
  devices: number;
}

export interface DeviceSpec {
  name: string;
  /** Other spellings people and `nvidia-smi` use; compared without case, spaces and dashes. */
  aliases: readonly string[];
  vendor: 'nvidia' | 'amd' | 'intel' | 'other';
  kind: 'gpu' | 'cpu';
  family: DeviceFamily;
  /** Dense operations per second by precision, without structured sparsity; absent where not supported. */
  peak_flops_per_s: Readonly<Partial<Record<ComputePrecision, number>>>;
  memory_bytes: number;
  memory_bandwidth_bytes_per_s: number;
  link: DeviceLink;
  /** Board or socket power limit. */
  tdp_w: number;
  /** Cores of a CPU socket; absent of GPUs. */
  cores?: number;
  /** Of a MIG slice, the share of its GPU's multiprocessors; absent: it is not cut. */
  gpu_share?: number;
  /** NVIDIA's `major.minor`; absent elsewhere. */
  compute_capability?: string;
  /** The public document that holds these figures. */
  source: string;
}

/** One line of a catalog table, in the units data sheets use. */
export interface DeviceRow {
  name: string;
  aliases?: readonly string[];
  family: DeviceFamily;
  /** TFLOP/s (TOP/s for int8), dense. */
  tflops: Readonly<Partial<Record<ComputePrecision, number>>>;
  /** GB as data sheets print them; for memory sizes these are 2^30 bytes (an 80 GB A100 reports 81920 MiB). */
  memory_gb: number;
  bandwidth_gb_per_s: number;
  /** One direction, per device. */
  link: readonly [name: string, gb_per_s: number, devices: number];
  tdp_w: number;
  cores?: number;
  cc?: string;
  source: string;
}

export function deviceOf(row: DeviceRow, vendor: DeviceSpec['vendor'], kind: DeviceSpec['kind']): DeviceSpec {
  const [link, linkGb, devices] = row.link;
  return {
    name: row.name,
    aliases: row.aliases ?? [],
    vendor,
    kind,
    family: row.family,
    peak_flops_per_s: Object.fromEntries(
      Object.entries(row.tflops).map(([precision, tflops]) => [precision, tflops * 1e12]),
    ),
    memory_bytes: row.memory_gb * 2 ** 30,
    memory_bandwidth_bytes_per_s: row.bandwidth_gb_per_s * 1e9,
    link: { name: link, bandwidth_bytes_per_s: linkGb * 1e9, devices },
    tdp_w: row.tdp_w,
    cores: row.cores,
    compute_capability: row.cc,
    source: row.source,
  };
}
