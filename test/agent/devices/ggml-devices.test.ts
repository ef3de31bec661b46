/** Which device of the node is which of ggml's, and what a worker that sees its own devices alone calls it. */
import { describe, expect, test } from 'vitest';
import { freeFirst } from '../../../agent/devices/discover.ts';
import { withGgmlDevices } from '../../../agent/devices/ggml-devices.ts';
import type { NodeDevice } from '../../../agent/devices/node-device.ts';
import { deviceHolder, holdDevice } from '../../../native/device-lock.ts';
import type { ListedDevice } from '../../../native/list-devices.ts';

const nvidia = (index: number, pci_bus_id: string): NodeDevice => ({
  description: { kind: 'gpu', model: 'A100', memory_bytes: 40e9, isa: [] },
  visibility_token: String(index),
  visibility_variable: 'CUDA_VISIBLE_DEVICES',
  pci_bus_id,
});
const slice = (uuid: string, pci_bus_id: string): NodeDevice => ({
  description: { kind: 'mig', model: 'A100 MIG 3g.20gb', memory_bytes: 20e9, isa: [], uuid },
  visibility_token: uuid,
  visibility_variable: 'CUDA_VISIBLE_DEVICES',
  pci_bus_id,
});
const amd: NodeDevice = {
  description: { kind: 'gpu', model: 'MI250X', memory_bytes: 64e9, isa: [] },
  visibility_token: '3',
  visibility_variable: 'ROCR_VISIBLE_DEVICES',
  pci_bus_id: '0000:c1:00.0',
};
const listed = (name: string, pci_bus_id?: string): ListedDevice => {
  const device: ListedDevice = {
    name,
    description: `a ${name}`,
    type: 'gpu',
    memory_free_bytes: 1e9,
    memory_total_bytes: 2e9,
  };
  if (pci_bus_id !== undefined) device.pci_bus_id = pci_bus_id;
  return device;
};
const names = (devices: readonly NodeDevice[]) => devices.map(({ ggml_device }) => ggml_device);

describe('devices of a node and ggml’s', () => {
  test('are the same by their place on the PCI bus; CUDA’s and ROCm’s count from 0 in a worker', () => {
    const devices = [nvidia(0, '0000:17:00.0'), nvidia(1, '0000:2a:00.0'), amd];
    const found = [
      listed('CUDA0', '0000:17:00.0'),
      listed('CUDA1', '0000:2A:00.0'),
      listed('ROCm0', '0000:c1:00.0'),
    ];
    expect(names(withGgmlDevices(devices, found))).toEqual(['CUDA0', 'CUDA0', 'ROCm0']);
  });

  test('have Vulkan’s name where their vendor’s backend is not there, and the vendor’s where both are', () => {
    const found = [listed('Vulkan0', '0000:2a:00.0'), listed('Vulkan1', '0000:17:00.0')];
    const devices = [nvidia(0, '0000:17:00.0'), nvidia(1, '0000:2a:00.0')];
    expect(names(withGgmlDevices(devices, found))).toEqual(['Vulkan1', 'Vulkan0']);
    const both = [...found, listed('CUDA0', '0000:17:00.0')];
    expect(names(withGgmlDevices(devices, both))).toEqual(['CUDA0', 'Vulkan0']);
  });

  test('are CUDA0 in their worker where slices keep CUDA from listing them', () => {
    const found = [listed('CUDA0', '0000:17:00.0')];
    const slices = [slice('MIG-1', '0000:17:00.0'), slice('MIG-2', '0000:2a:00.0')];
    expect(names(withGgmlDevices(slices, found))).toEqual(['CUDA0', 'CUDA0']);
    const mixed = [slice('MIG-1', '0000:17:00.0'), nvidia(1, '0000:2a:00.0'), amd];
    expect(names(withGgmlDevices(mixed, found))).toEqual(['CUDA0', 'CUDA0', undefined]);
    // Without slices, CUDA lists what it computes on; without its backend, nothing is CUDA's.
    const whole = [nvidia(0, '0000:17:00.0'), nvidia(1, '0000:2a:00.0')];
    expect(names(withGgmlDevices(whole, found))).toEqual(['CUDA0', undefined]);
    expect(names(withGgmlDevices(slices, [listed('Vulkan0', '0000:17:00.0')]))).toEqual([
      'Vulkan0',
      undefined,
    ]);
  });

  test('that only ggml knows come behind the others; those that it does not know have no name', () => {
    const devices = withGgmlDevices([nvidia(0, '0000:17:00.0')], [listed('Vulkan0')]);
    expect(names(devices)).toEqual([undefined, 'Vulkan0']);
    expect(devices[1]).toMatchObject({
      only_ggml: true,
      description: { kind: 'gpu', model: 'a Vulkan0', memory_bytes: 2e9 },
    });
  });

  test('that only CUDA or ROCm list, such as one whose slices are silent, are left out: no worker would see them', () => {
    const found = [listed('CUDA0', '0000:17:00.0'), listed('CUDA1', '0000:2a:00.0'), listed('ROCm0')];
    expect(names(withGgmlDevices([nvidia(0, '0000:17:00.0')], found))).toEqual(['CUDA0']);
  });
});

test('a device that another worker of the user holds is taken last', () => {
  const one = { ...nvidia(0, `test-${process.pid}:1`), ggml_device: 'CUDA0' };
  const two = { ...nvidia(1, `test-${process.pid}:2`), ggml_device: 'CUDA0' };
  expect(freeFirst([one, two])).toEqual([one, two]);
  const release = holdDevice(one.pci_bus_id!, 'the first', expect.unreachable);
  expect(deviceHolder(one.pci_bus_id!)).toBe(process.pid);
  expect(freeFirst([one, two])).toEqual([two, one]);
  release();
  expect(freeFirst([one, two])).toEqual([one, two]);
});
