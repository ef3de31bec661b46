/** AMD accelerators. A MI250X module shows as two devices (GCDs), which is how Slurm counts them. */
import { type DeviceRow, type DeviceSpec, deviceOf } from './device-spec.ts';

const sheet = (product: string, page: string): string =>
  `AMD ${product} data sheet, https://www.amd.com/en/products/accelerators/instinct/${page}.html`;
const pcie4 = ['PCIe 4.0 x16', 32, 8] as const;

// biome-ignore format: one device a line reads as the table it is
const rows: readonly DeviceRow[] = [
  { name: 'MI210', family: 'cdna2', tflops: { fp32: 22.6, fp16: 181, bf16: 181, int8: 181 }, memory_gb: 64, bandwidth_gb_per_s: 1638, link: pcie4, tdp_w: 300, source: sheet('Instinct MI210', 'mi200/mi210') },
  { name: 'MI250X-GCD', aliases: ['MI250X', 'MI250', 'gfx90a'], family: 'cdna2', tflops: { fp32: 23.9, fp16: 191.5, bf16: 191.5, int8: 191.5 }, memory_gb: 64, bandwidth_gb_per_s: 1638, link: ['Infinity Fabric 3', 150, 8], tdp_w: 280, source: `half of: ${sheet('Instinct MI250X', 'mi200/mi250x')}` },
  { name: 'MI300A', aliases: ['gfx942-apu'], family: 'cdna3', tflops: { fp32: 122.6, fp16: 980.6, bf16: 980.6, int8: 1961.2, fp8: 1961.2 }, memory_gb: 128, bandwidth_gb_per_s: 5300, link: ['Infinity Fabric 4', 384, 4], tdp_w: 550, source: sheet('Instinct MI300A', 'mi300/mi300a') },
  { name: 'MI300X', aliases: ['gfx942', 'mi300x_oam'], family: 'cdna3', tflops: { fp32: 163.4, fp16: 1307.4, bf16: 1307.4, int8: 2614.9, fp8: 2614.9 }, memory_gb: 192, bandwidth_gb_per_s: 5300, link: ['Infinity Fabric 4', 448, 8], tdp_w: 750, source: sheet('Instinct MI300X', 'mi300/mi300x') },
  { name: 'MI325X', family: 'cdna3', tflops: { fp32: 163.4, fp16: 1307.4, bf16: 1307.4, int8: 2614.9, fp8: 2614.9 }, memory_gb: 256, bandwidth_gb_per_s: 6000, link: ['Infinity Fabric 4', 448, 8], tdp_w: 1000, source: sheet('Instinct MI325X', 'mi300/mi325x') },
  { name: 'MI350X', family: 'cdna4', tflops: { fp32: 144.2, fp16: 2306.9, bf16: 2306.9, int8: 4613.7, fp8: 4613.7, fp4: 9227.5 }, memory_gb: 288, bandwidth_gb_per_s: 8000, link: ['Infinity Fabric 4', 538, 8], tdp_w: 1000, source: `${sheet('Instinct MI350X', 'mi350/mi350x')}; the MI355X's rates at 2.2 instead of 2.4 GHz` },
  { name: 'MI355X', aliases: ['gfx950'], family: 'cdna4', tflops: { fp32: 157.3, fp16: 2516.6, bf16: 2516.6, int8: 5033.2, fp8: 5033.2, fp4: 10066 }, memory_gb: 288, bandwidth_gb_per_s: 8000, link: ['Infinity Fabric 4', 538, 8], tdp_w: 1400, source: sheet('Instinct MI355X', 'mi350/mi355x') },
];

export const amdGpus: readonly DeviceSpec[] = rows.map((row) => deviceOf(row, 'amd', 'gpu'));
