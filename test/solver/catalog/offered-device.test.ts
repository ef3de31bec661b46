import { describe, expect, it } from 'vitest';
import { findDevice } from '../../../solver/catalog/devices.ts';
import { type OfferedName, offeredDevice } from '../../../solver/catalog/offered-device.ts';

const gb = 2 ** 30;
const x86 = { cpus: 64, isa: ['avx2'], architecture: 'x86_64' as const };
const gpu = (model: string, memory_gb: number): OfferedName => ({
  kind: 'gpu',
  model,
  count: 4,
  memory_bytes: memory_gb * gb,
});
const mig = (model: string, memory_gb: number): OfferedName => ({ ...gpu(model, memory_gb), kind: 'mig' });
const cpu = (model: string, count = 1): OfferedName => ({
  kind: 'cpu',
  model,
  count,
  memory_bytes: 200 * gb,
});

describe('GPUs a site offers', () => {
  it.each([
    ['A100', 80, 'A100-SXM4-80GB'],
    ['A100', 40, 'A100-SXM4-40GB'],
    ['NVIDIA A100-SXM-64GB', 64, 'A100-SXM4-80GB'],
    ['V100', 16, 'V100-SXM2-16GB'],
    ['GH200', 96, 'GH200-96GB'],
    ['GH200', 144, 'GH200-144GB'],
    ['NVIDIA H100 80GB HBM3', 80, 'H100-SXM5-80GB'],
    ['AMD Instinct MI250X', 64, 'MI250X-GCD'],
    ['P100', 16, 'P100-PCIE-16GB'],
    ['rtx_6000', 24, 'Quadro-RTX-6000'],
    ['Quadro RTX 6000', 24, 'Quadro-RTX-6000'],
    ['rtx_6000', 48, 'RTX-6000-Ada'],
    ['NVIDIA RTX 6000 Ada Generation', 48, 'RTX-6000-Ada'],
    ['A100 PCIe', 40, 'A100-PCIE-40GB'],
  ])('%s of %i GB is %s, with the memory that is offered', (model, memory, name) => {
    const { device, known, note } = offeredDevice(gpu(model, memory), x86);
    expect(device.name).toBe(name);
    expect(known).toBe('catalog');
    expect(note).toBeUndefined();
    expect(device.memory_bytes).toBe(memory * gb);
  });

  it('that are not known are planned as the slowest of that size, and said to be', () => {
    const { device, known, note } = offeredDevice(gpu('A1000', 8), x86);
    expect(known).toBe('estimated');
    expect(note).toMatch(/^GPU "A1000" is not in the catalog; nearest: A100; planned as T4/);
    expect(device).toMatchObject({
      name: 'A1000',
      memory_bytes: 8 * gb,
      memory_bandwidth_bytes_per_s: 320e9,
    });
    expect(device.compute_capability).toBeUndefined();
    const large = offeredDevice(gpu('Zeta-9', 1000), x86);
    expect(large.known).toBe('estimated');
    expect(large.note).not.toContain('nearest');
  });

  it('whose names are the beginning of known ones with other memory are not taken for these', () => {
    const { device, known } = offeredDevice(gpu('RTX PRO', 24), x86);
    expect(known).toBe('estimated');
    expect(device.compute_capability).toBeUndefined();
    expect(offeredDevice(gpu('RTX PRO', 96), x86)).toMatchObject({
      known: 'catalog',
      device: { family: 'blackwell-gddr' },
    });
  });

  it('take the figures a site gives', () => {
    const { device, known } = offeredDevice(gpu('A100', 80), x86, {
      bandwidth_gb_per_s: 1500,
      tdp_w: 250,
      link_devices: 2,
    });
    expect(known).toBe('site');
    expect(device).toMatchObject({ memory_bandwidth_bytes_per_s: 1500e9, tdp_w: 250 });
    expect(device.link).toEqual({ ...findDevice('A100').link, devices: 2 });
    expect(device.peak_flops_per_s.bf16).toBe(312e12);
    const own = offeredDevice(gpu('Zeta-9', 24), x86, { tflops: { fp16: 90 }, bandwidth_gb_per_s: 700 });
    expect(own.known).toBe('site');
    expect(own.note).toBeUndefined();
    expect(own.device.peak_flops_per_s).toEqual({ fp16: 90e12 });
    const half = offeredDevice(gpu('Zeta-9', 24), x86, { tdp_w: 100 });
    expect(half).toMatchObject({ known: 'estimated', device: { tdp_w: 100 } });
    expect(half.note).toContain('Zeta-9');
    expect(offeredDevice(gpu('A100', 80), x86, {}).known).toBe('catalog');
  });
});

describe('MIG slices', () => {
  it.each([
    ['A100-1g.10gb', 'A100-SXM4-80GB', 1 / 7, 1 / 8],
    ['A100 1g.5gb', 'A100-SXM4-40GB', 1 / 7, 1 / 8],
    ['A100-SXM4-40GB MIG 3g.20gb', 'A100-SXM4-40GB', 3 / 7, 4 / 8],
    ['H100-80GB MIG 3g.40gb', 'H100-SXM5-80GB', 3 / 7, 4 / 8],
    ['H100 80GB HBM3 MIG 1g.20gb', 'H100-SXM5-80GB', 1 / 7, 2 / 8],
    ['H200 MIG 2g.35gb', 'H200-SXM-141GB', 2 / 7, 2 / 8],
    ['GH200 MIG 1g.12gb', 'GH200-96GB', 1 / 7, 1 / 8],
    ['H100-80GB MIG 1c.3g.40gb', 'H100-SXM5-80GB', 3 / 7, 4 / 8],
    ['A100-1g.10gb+me', 'A100-SXM4-80GB', 1 / 7, 1 / 8],
    ['A30 MIG 2g.12gb', 'A30', 2 / 4, 2 / 4],
    ['7g.80gb', 'A100-SXM4-80GB', 1, 1],
    ['1g.10gb', 'A100-SXM4-80GB', 1 / 7, 1 / 8],
    ['mig-1g.5gb', 'A100-SXM4-40GB', 1 / 7, 1 / 8],
    ['1g.18gb', 'H200-SXM-141GB', 1 / 7, 1 / 8],
  ])('%s is its part of %s', (model, parent, compute, memory) => {
    const { device, known, note } = offeredDevice(mig(model, 10), x86);
    const whole = findDevice(parent);
    expect(known).toBe('mig-slice');
    expect(device.name.startsWith(parent)).toBe(true);
    expect(device.peak_flops_per_s.bf16! / whole.peak_flops_per_s.bf16!).toBeCloseTo(compute, 6);
    expect(device.memory_bandwidth_bytes_per_s / whole.memory_bandwidth_bytes_per_s).toBeCloseTo(memory, 6);
    expect(device.link.devices).toBe(1);
    expect(device.memory_bytes).toBe(10 * gb);
    expect(note === undefined).toBe(!/^(mig-)?\dg/.test(model));
  });

  it('of GPUs nobody knows are estimated like other unknown devices', () => {
    expect(offeredDevice(mig('Q9-1g.10gb', 10), x86).known).toBe('estimated');
    expect(offeredDevice(mig('1g.999gb', 999), x86).known).toBe('estimated');
  });
});

describe('CPUs a site offers', () => {
  it('are whole sockets of the catalog, or so many of their cores', () => {
    const socket = findDevice('Xeon-8480+');
    const whole = offeredDevice(cpu('Xeon-8480+', 2), { ...x86, cpus: 112 });
    expect(whole).toMatchObject({ known: 'catalog', device: { name: 'Xeon-8480+', memory_bytes: 200 * gb } });
    expect(whole.device.memory_bandwidth_bytes_per_s).toBe(socket.memory_bandwidth_bytes_per_s);
    const part = offeredDevice({ ...cpu('Xeon-8480+'), cores: 14 }, { ...x86, cpus: 112 }).device;
    expect(part.peak_flops_per_s.bf16! / socket.peak_flops_per_s.bf16!).toBeCloseTo(1 / 4, 6);
    // Alone on the socket they draw what 14 cores can; four such devices share it.
    expect(part.memory_bandwidth_bytes_per_s).toBe(14 * 20e9);
    const quarter = offeredDevice({ ...cpu('Xeon-8480+', 4), cores: 14 }, { ...x86, cpus: 56 }).device;
    expect(quarter.memory_bandwidth_bytes_per_s / socket.memory_bandwidth_bytes_per_s).toBeCloseTo(1 / 4, 6);
    // Eight on two sockets have no less than four on one.
    const eighth = offeredDevice({ ...cpu('Xeon-8480+', 8), cores: 14 }, { ...x86, cpus: 112 }).device;
    expect(eighth).toEqual(quarter);
  });

  it('are known by the name the kernel gives them', () => {
    for (const [text, name] of [
      ['Intel(R) Xeon(R) Platinum 8480+', 'Xeon-8480+'],
      ['AMD EPYC 7763 64-Core Processor', 'EPYC-7763'],
      ['Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz', 'Xeon-6248'],
    ] as const)
      expect(offeredDevice(cpu(text), x86)).toMatchObject({ known: 'catalog', device: { name } });
  });

  it('that are not known go by cores and extensions, better ones faster', () => {
    const speeds = [[], ['avx2'], ['avx512f', 'avx2'], ['amx_bf16', 'avx512f']].map((isa) => {
      const { device, known, note } = offeredDevice(cpu('generic', 2), { cpus: 64, isa });
      expect(known).toBe('estimated');
      expect(note).toMatch(/^CPU "generic" is not in the catalog; planned as 32 cores with /);
      return Math.max(...Object.values(device.peak_flops_per_s));
    });
    expect(speeds).toEqual([...speeds].sort((a, b) => a - b));
    expect(new Set(speeds).size).toBe(speeds.length);
    const amx = offeredDevice(cpu('generic'), { cpus: 56, isa: ['amx_bf16'] }).device;
    expect(amx.family).toBe('cpu-amx');
    expect(amx.peak_flops_per_s.bf16! / findDevice('Xeon-8480+').peak_flops_per_s.bf16!).toBeCloseTo(1, 1);
    const arm = offeredDevice(cpu('generic'), { cpus: 64, isa: [], architecture: 'aarch64' });
    expect(arm.note).toContain('NEON');
    const many = offeredDevice(cpu('generic'), { cpus: 512, isa: ['avx2'] }).device;
    expect(many.memory_bandwidth_bytes_per_s).toBe(300e9);
  });

  it('never throw, whatever the name', () => {
    for (const model of ['', ' ', '-', '%', 'A', 'mig', '1g.', 'x'.repeat(1000), '\u0000', '9g.9gb'])
      for (const kind of ['cpu', 'gpu', 'mig'] as const) {
        const { device } = offeredDevice({ kind, model, count: 1, memory_bytes: gb }, { cpus: 1, isa: [] });
        expect(device.memory_bandwidth_bytes_per_s).toBeGreaterThan(0);
        expect(device.memory_bytes).toBe(gb);
        expect(device.tdp_w).toBeGreaterThan(0);
      }
  });
});
