/**
 * NVIDIA GPUs. TFLOP/s are dense, on tensor cores, with 32-bit accumulation where the product
 * distinguishes it (GeForce). Link bandwidths are one direction: half of what data sheets call "total".
 */
import { type DeviceRow, type DeviceSpec, deviceOf } from './device-spec.ts';

const sheets = {
  p100: 'NVIDIA Tesla P100 whitepaper, WP-08019-001, table 1, and PCIe datasheet; no tensor cores: fp16 is twice fp32',
  v100: 'NVIDIA V100 datasheet, https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf',
  t4: 'NVIDIA T4 datasheet, https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf',
  turing: 'NVIDIA Turing architecture whitepaper, WP-09183-001, appendix A',
  a100: 'NVIDIA A100 datasheet, https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf',
  a10: 'NVIDIA A10 datasheet, https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf',
  a30: 'NVIDIA A30 datasheet, https://www.nvidia.com/content/dam/en-zz/Solutions/data-center/products/a30-gpu/pdf/a30-datasheet.pdf',
  ga102: 'NVIDIA Ampere GA102 whitepaper V2, tables 2 to 4 and appendix A',
  l4: 'NVIDIA L4 datasheet, https://www.nvidia.com/en-us/data-center/l4/',
  l40: 'NVIDIA L40 datasheet, https://www.nvidia.com/en-us/data-center/l40/',
  l40s: 'NVIDIA L40S datasheet, https://www.nvidia.com/en-us/data-center/l40s/',
  ada: 'NVIDIA Ada GPU architecture whitepaper V2, appendix A and B',
  h100: 'NVIDIA H100 datasheet, https://www.nvidia.com/en-us/data-center/h100/',
  h100arch: 'NVIDIA H100 architecture whitepaper V1.04, table 3',
  h200: 'NVIDIA H200 datasheet, https://www.nvidia.com/en-us/data-center/h200/',
  h20: 'NVIDIA publishes no H20 datasheet; figures as resellers and the press give them, TechPowerUp GPU database, https://www.techpowerup.com/gpu-specs/h20.c4187',
  gh200:
    'NVIDIA GH200 datasheet, https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/; four per node on Alps: CSCS documentation, https://docs.cscs.ch/alps/hardware/',
  hgxb: 'NVIDIA HGX platform specification (B200, B300) divided by 8, sparse rates halved, https://www.nvidia.com/en-us/data-center/hgx/; memory as the driver reports it',
  gb200:
    'NVIDIA GB200 NVL72 specification divided by 72, sparse rates halved, https://www.nvidia.com/en-us/data-center/gb200-nvl72/',
  gb300:
    'NVIDIA GB300 NVL72 specification divided by 72, sparse rates halved, https://www.nvidia.com/en-us/data-center/gb300-nvl72/',
  rtxbw: 'NVIDIA RTX Blackwell GPU architecture whitepaper V1.1, appendix A',
  pro6000:
    'NVIDIA RTX PRO 6000 Blackwell datasheets (Workstation, Max-Q, Server), https://www.nvidia.com/en-us/products/workstations/professional-desktop-gpus/rtx-pro-6000/; derived: dense FP4 is half of their sparse figure, FP8 and INT8 half of that, FP16 a quarter',
} as const;

const pcie3 = ['PCIe 3.0 x16', 16, 8] as const;
const pcie4 = ['PCIe 4.0 x16', 32, 8] as const;
const pcie5 = ['PCIe 5.0 x16', 64, 8] as const;

// biome-ignore format: one device a line reads as the table it is
const rows: readonly DeviceRow[] = [
  { name: 'P100-SXM2-16GB', family: 'pascal', tflops: { fp32: 10.6, fp16: 21.2 }, memory_gb: 16, bandwidth_gb_per_s: 732, link: ['NVLink 1', 80, 4], tdp_w: 300, cc: '6.0', source: sheets.p100 },
  { name: 'P100-PCIE-16GB', aliases: ['P100', 'Tesla P100-PCIE-16GB'], family: 'pascal', tflops: { fp32: 9.3, fp16: 18.7 }, memory_gb: 16, bandwidth_gb_per_s: 732, link: pcie3, tdp_w: 250, cc: '6.0', source: sheets.p100 },
  { name: 'V100-SXM2-16GB', family: 'volta', tflops: { fp32: 15.7, fp16: 125 }, memory_gb: 16, bandwidth_gb_per_s: 900, link: ['NVLink 2', 150, 8], tdp_w: 300, cc: '7.0', source: sheets.v100 },
  { name: 'V100-SXM2-32GB', aliases: ['V100', 'Tesla V100', 'Tesla V100-SXM2-32GB'], family: 'volta', tflops: { fp32: 15.7, fp16: 125 }, memory_gb: 32, bandwidth_gb_per_s: 900, link: ['NVLink 2', 150, 8], tdp_w: 300, cc: '7.0', source: sheets.v100 },
  { name: 'V100-PCIE-32GB', family: 'volta', tflops: { fp32: 14, fp16: 112 }, memory_gb: 32, bandwidth_gb_per_s: 900, link: pcie3, tdp_w: 250, cc: '7.0', source: sheets.v100 },
  { name: 'T4', aliases: ['Tesla T4'], family: 'turing', tflops: { fp32: 8.1, fp16: 65, int8: 130 }, memory_gb: 16, bandwidth_gb_per_s: 320, link: pcie3, tdp_w: 70, cc: '7.5', source: sheets.t4 },
  { name: 'RTX-8000', aliases: ['Quadro RTX 8000'], family: 'turing', tflops: { fp32: 16.3, fp16: 130.5, int8: 261 }, memory_gb: 48, bandwidth_gb_per_s: 672, link: pcie3, tdp_w: 260, cc: '7.5', source: sheets.turing },
  { name: 'Quadro-RTX-6000', aliases: ['RTX 6000'], family: 'turing', tflops: { fp32: 16.3, fp16: 130.5, int8: 261 }, memory_gb: 24, bandwidth_gb_per_s: 672, link: pcie3, tdp_w: 260, cc: '7.5', source: sheets.turing },
  { name: 'A100-SXM4-40GB', aliases: ['A100-40GB'], family: 'ampere', tflops: { fp32: 19.5, fp16: 312, bf16: 312, int8: 624 }, memory_gb: 40, bandwidth_gb_per_s: 1555, link: ['NVLink 3', 300, 8], tdp_w: 400, cc: '8.0', source: sheets.a100 },
  { name: 'A100-SXM4-80GB', aliases: ['A100', 'A100-80GB', 'NVIDIA A100-SXM4-80GB'], family: 'ampere', tflops: { fp32: 19.5, fp16: 312, bf16: 312, int8: 624 }, memory_gb: 80, bandwidth_gb_per_s: 2039, link: ['NVLink 3', 300, 8], tdp_w: 400, cc: '8.0', source: sheets.a100 },
  { name: 'A100-PCIE-40GB', family: 'ampere', tflops: { fp32: 19.5, fp16: 312, bf16: 312, int8: 624 }, memory_gb: 40, bandwidth_gb_per_s: 1555, link: pcie4, tdp_w: 250, cc: '8.0', source: sheets.a100 },
  { name: 'A100-PCIE-80GB', aliases: ['A100 80GB PCIe'], family: 'ampere', tflops: { fp32: 19.5, fp16: 312, bf16: 312, int8: 624 }, memory_gb: 80, bandwidth_gb_per_s: 1935, link: pcie4, tdp_w: 300, cc: '8.0', source: sheets.a100 },
  { name: 'A30', family: 'ampere', tflops: { fp32: 10.3, fp16: 165, bf16: 165, int8: 330 }, memory_gb: 24, bandwidth_gb_per_s: 933, link: pcie4, tdp_w: 165, cc: '8.0', source: sheets.a30 },
  { name: 'A10', family: 'ampere-gddr', tflops: { fp32: 31.2, fp16: 125, bf16: 125, int8: 250 }, memory_gb: 24, bandwidth_gb_per_s: 600, link: pcie4, tdp_w: 150, cc: '8.6', source: sheets.a10 },
  { name: 'A40', family: 'ampere-gddr', tflops: { fp32: 37.4, fp16: 149.7, bf16: 149.7, int8: 299.3 }, memory_gb: 48, bandwidth_gb_per_s: 696, link: pcie4, tdp_w: 300, cc: '8.6', source: sheets.ga102 },
  { name: 'RTX-A6000', aliases: ['A6000'], family: 'ampere-gddr', tflops: { fp32: 38.7, fp16: 154.8, bf16: 154.8, int8: 309.7 }, memory_gb: 48, bandwidth_gb_per_s: 768, link: pcie4, tdp_w: 300, cc: '8.6', source: sheets.ga102 },
  { name: 'RTX-3090', aliases: ['GeForce RTX 3090'], family: 'ampere-gddr', tflops: { fp32: 35.6, fp16: 71, bf16: 71, int8: 284 }, memory_gb: 24, bandwidth_gb_per_s: 936, link: pcie4, tdp_w: 350, cc: '8.6', source: sheets.ga102 },
  { name: 'L4', family: 'ada', tflops: { fp32: 30.3, fp16: 121, bf16: 121, int8: 242.5, fp8: 242.5 }, memory_gb: 24, bandwidth_gb_per_s: 300, link: pcie4, tdp_w: 72, cc: '8.9', source: sheets.l4 },
  { name: 'L40', family: 'ada', tflops: { fp32: 90.5, fp16: 181, bf16: 181, int8: 362, fp8: 362 }, memory_gb: 48, bandwidth_gb_per_s: 864, link: pcie4, tdp_w: 300, cc: '8.9', source: sheets.l40 },
  { name: 'L40S', family: 'ada', tflops: { fp32: 91.6, fp16: 362, bf16: 362, int8: 733, fp8: 733 }, memory_gb: 48, bandwidth_gb_per_s: 864, link: pcie4, tdp_w: 350, cc: '8.9', source: sheets.l40s },
  { name: 'RTX-4090', aliases: ['GeForce RTX 4090'], family: 'ada', tflops: { fp32: 82.6, fp16: 165.2, bf16: 165.2, int8: 660.6, fp8: 330.3 }, memory_gb: 24, bandwidth_gb_per_s: 1008, link: pcie4, tdp_w: 450, cc: '8.9', source: sheets.ada },
  { name: 'RTX-6000-Ada', aliases: ['RTX 6000 Ada Generation', 'A6000 Ada'], family: 'ada', tflops: { fp32: 91.1, fp16: 364.2, bf16: 364.2, int8: 728.5, fp8: 728.5 }, memory_gb: 48, bandwidth_gb_per_s: 960, link: pcie4, tdp_w: 300, cc: '8.9', source: sheets.ada },
  { name: 'H100-SXM5-80GB', aliases: ['H100', 'H100-SXM', 'h100_sxm', 'H100 80GB HBM3', 'H100-80GB'], family: 'hopper', tflops: { fp32: 67, fp16: 989.4, bf16: 989.4, int8: 1978.9, fp8: 1978.9 }, memory_gb: 80, bandwidth_gb_per_s: 3350, link: ['NVLink 4', 450, 8], tdp_w: 700, cc: '9.0', source: sheets.h100 },
  { name: 'H100-PCIE-80GB', aliases: ['H100 PCIe', 'h100_pcie'], family: 'hopper', tflops: { fp32: 51, fp16: 756, bf16: 756, int8: 1513, fp8: 1513 }, memory_gb: 80, bandwidth_gb_per_s: 2039, link: pcie5, tdp_w: 350, cc: '9.0', source: sheets.h100arch },
  { name: 'H100-NVL', family: 'hopper', tflops: { fp32: 60, fp16: 835.5, bf16: 835.5, int8: 1670.5, fp8: 1670.5 }, memory_gb: 94, bandwidth_gb_per_s: 3938, link: ['NVLink 4 bridge', 300, 2], tdp_w: 400, cc: '9.0', source: sheets.h100 },
  { name: 'H200-SXM-141GB', aliases: ['H200', 'H200-SXM', 'h200_sxm', 'H200 141GB HBM3e'], family: 'hopper', tflops: { fp32: 67, fp16: 989.4, bf16: 989.4, int8: 1978.9, fp8: 1978.9 }, memory_gb: 141, bandwidth_gb_per_s: 4800, link: ['NVLink 4', 450, 8], tdp_w: 700, cc: '9.0', source: sheets.h200 },
  { name: 'H200-NVL', family: 'hopper', tflops: { fp32: 60, fp16: 835.5, bf16: 835.5, int8: 1670.5, fp8: 1670.5 }, memory_gb: 141, bandwidth_gb_per_s: 4800, link: ['NVLink 4 bridge', 450, 4], tdp_w: 600, cc: '9.0', source: sheets.h200 },
  { name: 'H20', family: 'hopper', tflops: { fp32: 44, fp16: 148, bf16: 148, int8: 296, fp8: 296 }, memory_gb: 96, bandwidth_gb_per_s: 4000, link: ['NVLink 4', 450, 8], tdp_w: 400, cc: '9.0', source: sheets.h20 },
  { name: 'GH200-96GB', aliases: ['GH200', 'GH200 120GB', 'GH200 480GB', 'gh200_sxm'], family: 'hopper', tflops: { fp32: 67, fp16: 989.4, bf16: 989.4, int8: 1978.9, fp8: 1978.9 }, memory_gb: 96, bandwidth_gb_per_s: 4000, link: ['NVLink 4', 450, 4], tdp_w: 700, cc: '9.0', source: sheets.gh200 },
  { name: 'GH200-144GB', aliases: ['GH200 144G HBM3e'], family: 'hopper', tflops: { fp32: 67, fp16: 989.4, bf16: 989.4, int8: 1978.9, fp8: 1978.9 }, memory_gb: 144, bandwidth_gb_per_s: 4900, link: ['NVLink 4', 450, 4], tdp_w: 700, cc: '9.0', source: sheets.gh200 },
  { name: 'B200-SXM-180GB', aliases: ['B200', 'B200-SXM', 'b200_sxm'], family: 'blackwell', tflops: { fp32: 75, fp16: 2250, bf16: 2250, int8: 4500, fp8: 4500, fp4: 9000 }, memory_gb: 180, bandwidth_gb_per_s: 8000, link: ['NVLink 5', 900, 8], tdp_w: 1000, cc: '10.0', source: sheets.hgxb },
  { name: 'GB200', aliases: ['GB200-NVL72', 'gb200_sxm'], family: 'blackwell', tflops: { fp32: 80, fp16: 2500, bf16: 2500, int8: 5000, fp8: 5000, fp4: 10000 }, memory_gb: 186, bandwidth_gb_per_s: 8000, link: ['NVLink 5', 900, 72], tdp_w: 1200, cc: '10.0', source: sheets.gb200 },
  { name: 'B300-SXM-288GB', aliases: ['B300', 'B300-SXM', 'b300_sxm'], family: 'blackwell', tflops: { fp32: 75, fp16: 2250, bf16: 2250, int8: 150, fp8: 4500, fp4: 13500 }, memory_gb: 270, bandwidth_gb_per_s: 8000, link: ['NVLink 5', 900, 8], tdp_w: 1100, cc: '10.3', source: sheets.hgxb },
  { name: 'GB300', aliases: ['GB300-NVL72'], family: 'blackwell', tflops: { fp32: 80, fp16: 2500, bf16: 2500, int8: 165, fp8: 5000, fp4: 15000 }, memory_gb: 279, bandwidth_gb_per_s: 8000, link: ['NVLink 5', 900, 72], tdp_w: 1400, cc: '10.3', source: sheets.gb300 },
  { name: 'RTX-5090', aliases: ['GeForce RTX 5090'], family: 'blackwell-gddr', tflops: { fp32: 104.8, fp16: 209.5, bf16: 209.5, int8: 838, fp8: 419, fp4: 1676 }, memory_gb: 32, bandwidth_gb_per_s: 1792, link: pcie5, tdp_w: 575, cc: '12.0', source: sheets.rtxbw },
  { name: 'RTX-PRO-6000', aliases: ['RTX PRO 6000 Blackwell', 'RTX PRO 6000 Blackwell Workstation Edition', 'rtxpro6000', 'RTX6000PRO'], family: 'blackwell-gddr', tflops: { fp32: 125, fp16: 503.8, bf16: 503.8, int8: 1007.6, fp8: 1007.6, fp4: 2015.2 }, memory_gb: 96, bandwidth_gb_per_s: 1792, link: pcie5, tdp_w: 600, cc: '12.0', source: sheets.pro6000 },
  { name: 'RTX-PRO-6000-Server', aliases: ['RTX PRO 6000 Blackwell Server Edition'], family: 'blackwell-gddr', tflops: { fp32: 120, fp16: 470, bf16: 470, int8: 940, fp8: 940, fp4: 1880 }, memory_gb: 96, bandwidth_gb_per_s: 1597, link: pcie5, tdp_w: 600, cc: '12.0', source: sheets.pro6000 },
  { name: 'RTX-PRO-6000-Max-Q', aliases: ['RTX PRO 6000 Blackwell Max-Q Workstation Edition'], family: 'blackwell-gddr', tflops: { fp32: 110.1, fp16: 438.9, bf16: 438.9, int8: 877.8, fp8: 877.8, fp4: 1755.5 }, memory_gb: 96, bandwidth_gb_per_s: 1792, link: pcie5, tdp_w: 300, cc: '12.0', source: sheets.pro6000 },
];

export const nvidiaGpus: readonly DeviceSpec[] = rows.map((row) => deviceOf(row, 'nvidia', 'gpu'));
