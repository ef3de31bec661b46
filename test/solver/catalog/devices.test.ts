import { describe, expect, it } from 'vitest';
import { findDevice, findInterconnect, knownDevices, variantsOf } from '../../../solver/catalog/devices.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

describe('the catalog of devices', () => {
  it('holds what the clusters of the design have', () => {
    for (const name of ['V100', 'A100', 'H100', 'H200', 'GH200', 'GB200', 'B200', 'B300', 'L40S', 'RTX 3090'])
      expect(findDevice(name).vendor).toBe('nvidia');
    for (const name of ['RTX PRO 6000', 'MI250X', 'MI300X', 'Xeon-8480+', 'EPYC-7763', 'Grace'])
      expect(findDevice(name).memory_bytes).toBeGreaterThan(0);
    for (const name of ['slingshot-11', 'infiniband-hdr', 'infiniband-ndr'])
      expect(findInterconnect(name).bandwidth_bytes_per_s).toBeGreaterThan(0);
  });

  it('has plausible, sourced figures for every device', () => {
    for (const device of knownDevices) {
      expect(device.source.length, device.name).toBeGreaterThan(10);
      const peaks = Object.values(device.peak_flops_per_s);
      expect(Math.max(...peaks) / device.memory_bandwidth_bytes_per_s, device.name).toBeGreaterThan(10);
      expect(Math.max(...peaks) / device.memory_bandwidth_bytes_per_s, device.name).toBeLessThan(3000);
      expect(device.tdp_w, device.name).toBeGreaterThan(30);
      expect(device.compute_capability === undefined, device.name).toBe(device.vendor !== 'nvidia');
      const { fp16, fp8 } = device.peak_flops_per_s;
      if (fp16 !== undefined && fp8 !== undefined) expect(fp8 / fp16, device.name).toBeCloseTo(2, 1);
    }
  });

  it('has no name or alias twice', () => {
    const names = knownDevices
      .flatMap(({ name, aliases }) => [name, ...aliases])
      .map((name) => name.toLowerCase());
    expect(new Set(names).size).toBe(names.length);
    for (const { name, aliases } of knownDevices)
      for (const alias of [name, ...aliases]) expect(findDevice(alias).name, alias).toBe(name);
  });

  it('knows the variants of a short name, in any spelling', () => {
    expect(variantsOf('a100').map(({ name }) => name)).toEqual([
      'A100-SXM4-40GB',
      'A100-SXM4-80GB',
      'A100-PCIE-40GB',
      'A100-PCIE-80GB',
    ]);
    expect(findDevice('nvidia_h100_80gb_hbm3').name).toBe('H100-SXM5-80GB');
    expect(findDevice('  AMD Instinct mi300x ').name).toBe('MI300X');
  });

  it('names the nearest device for one it does not know', () => {
    const attempt = (): unknown => findDevice('H10O');
    expect(attempt).toThrow(HpcserveError);
    expect(attempt).toThrow(
      expect.objectContaining({ code: 'E_DEVICE_UNKNOWN', details: { name: 'H10O', nearest: 'H100' } }),
    );
    expect(() => findDevice('')).toThrow(expect.objectContaining({ code: 'E_DEVICE_UNKNOWN' }));
    expect(() => findInterconnect('carrier pigeon')).toThrow(
      expect.objectContaining({ code: 'E_DEVICE_UNKNOWN' }),
    );
  });

  it('lets a site change a device, and add its own', () => {
    const capped = findDevice('A100', { 'A100-SXM4-80GB': { tdp_w: 300 } });
    expect(capped).toMatchObject({
      name: 'A100-SXM4-80GB',
      tdp_w: 300,
      memory_bandwidth_bytes_per_s: 2039e9,
    });
    const { name: _, ...own } = findDevice('L40S');
    expect(findDevice('our-card', { 'our-card': { ...own, memory_bytes: 7 } })).toMatchObject({
      name: 'our-card',
      memory_bytes: 7,
    });
  });
});
