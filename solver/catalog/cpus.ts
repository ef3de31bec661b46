/**
 * CPU sockets. Peaks are cores × all-core base clock × operations per cycle: an AMX core retires one tile
 * product of 16×16×32 bf16 in 16 cycles (2048 operations a cycle, 4096 for int8), an AVX-512 core two
 * 512-bit FMAs (64 fp32 operations), an AVX2 or 4×128-bit SVE core 32; AVX512_BF16 doubles fp32.
 * Memory is what one socket commonly carries; sites override it.
 */
import { type DeviceRow, type DeviceSpec, deviceOf } from './device-spec.ts';

const ark = (model: string): string =>
  `Intel ARK, Xeon ${model}; operations a cycle: Intel 64 and IA-32 optimization manual, AMX and AVX-512`;
const epyc = (model: string): string =>
  `AMD product page, EPYC ${model}; operations a cycle: Zen software optimization guides`;
const upi = ['UPI', 48, 2] as const;
const xgmi = ['Infinity Fabric', 64, 2] as const;

// biome-ignore format: one device a line reads as the table it is
const intel: readonly DeviceRow[] = [
  { name: 'Xeon-6462C', aliases: ['xeon-32core-amx'], family: 'cpu-amx', tflops: { fp32: 6.8, bf16: 216, int8: 433 }, memory_gb: 256, bandwidth_gb_per_s: 307, link: upi, tdp_w: 300, cores: 32, source: ark('6462C (32 cores at 3.3 GHz, 8 × DDR5-4800)') },
  { name: 'Xeon-8480+', aliases: ['Sapphire Rapids', 'SPR', 'amx'], family: 'cpu-amx', tflops: { fp32: 7.2, bf16: 229, int8: 459 }, memory_gb: 256, bandwidth_gb_per_s: 307, link: upi, tdp_w: 350, cores: 56, source: ark('Platinum 8480+ (56 cores at 2.0 GHz, 8 × DDR5-4800)') },
  { name: 'Xeon-Max-9480', aliases: ['SPR-HBM'], family: 'cpu-amx', tflops: { fp32: 6.8, bf16: 218, int8: 436 }, memory_gb: 64, bandwidth_gb_per_s: 1000, link: upi, tdp_w: 350, cores: 56, source: ark('CPU Max 9480 (56 cores at 1.9 GHz, 64 GB HBM2e)') },
  { name: 'Xeon-8592+', aliases: ['Emerald Rapids', 'EMR'], family: 'cpu-amx', tflops: { fp32: 7.8, bf16: 249, int8: 498 }, memory_gb: 512, bandwidth_gb_per_s: 358, link: upi, tdp_w: 350, cores: 64, source: ark('Platinum 8592+ (64 cores at 1.9 GHz, 8 × DDR5-5600)') },
  { name: 'Xeon-6980P', aliases: ['Granite Rapids', 'GNR'], family: 'cpu-amx', tflops: { fp32: 16.4, bf16: 524, int8: 1048 }, memory_gb: 768, bandwidth_gb_per_s: 844, link: upi, tdp_w: 500, cores: 128, source: ark('6980P (128 cores at 2.0 GHz, 12 × MRDIMM-8800)') },
  { name: 'Xeon-8360Y', aliases: ['Ice Lake', 'ICX'], family: 'cpu', tflops: { fp32: 5.5, int8: 22 }, memory_gb: 256, bandwidth_gb_per_s: 205, link: upi, tdp_w: 250, cores: 36, source: ark('Platinum 8360Y (36 cores at 2.4 GHz, 8 × DDR4-3200)') },
  { name: 'Xeon-6248', aliases: ['Cascade Lake'], family: 'cpu', tflops: { fp32: 3.2 }, memory_gb: 192, bandwidth_gb_per_s: 141, link: upi, tdp_w: 150, cores: 20, source: ark('Gold 6248 (20 cores at 2.5 GHz, 6 × DDR4-2933)') },
];
// biome-ignore format: one device a line reads as the table it is
const others: readonly [DeviceRow, DeviceSpec['vendor']][] = [
  [{ name: 'EPYC-7742', aliases: ['Rome'], family: 'cpu', tflops: { fp32: 4.6 }, memory_gb: 256, bandwidth_gb_per_s: 205, link: xgmi, tdp_w: 225, cores: 64, source: epyc('7742 (64 cores at 2.25 GHz, 8 × DDR4-3200)') }, 'amd'],
  [{ name: 'EPYC-7763', aliases: ['Milan'], family: 'cpu', tflops: { fp32: 5.0 }, memory_gb: 256, bandwidth_gb_per_s: 205, link: xgmi, tdp_w: 280, cores: 64, source: epyc('7763 (64 cores at 2.45 GHz, 8 × DDR4-3200)') }, 'amd'],
  [{ name: 'EPYC-9654', aliases: ['Genoa'], family: 'cpu', tflops: { fp32: 7.4, bf16: 14.7 }, memory_gb: 384, bandwidth_gb_per_s: 461, link: xgmi, tdp_w: 360, cores: 96, source: epyc('9654 (96 cores at 2.4 GHz, 12 × DDR5-4800)') }, 'amd'],
  [{ name: 'EPYC-9755', aliases: ['Turin'], family: 'cpu', tflops: { fp32: 22.1, bf16: 44.2 }, memory_gb: 768, bandwidth_gb_per_s: 614, link: xgmi, tdp_w: 500, cores: 128, source: epyc('9755 (128 cores at 2.7 GHz, 12 × DDR5-6400)') }, 'amd'],
  [{ name: 'Grace', aliases: ['Grace CPU', 'Neoverse V2'], family: 'cpu', tflops: { fp32: 7.1, bf16: 28.4 }, memory_gb: 120, bandwidth_gb_per_s: 500, link: ['NVLink-C2C', 450, 2], tdp_w: 250, cores: 72, source: 'NVIDIA Grace CPU Superchip datasheet, halved (72 cores at 3.1 GHz, LPDDR5X)' }, 'other'],
];

export const cpus: readonly DeviceSpec[] = [
  ...intel.map((row) => deviceOf(row, 'intel', 'cpu')),
  ...others.map(([row, vendor]) => deviceOf(row, vendor, 'cpu')),
];
