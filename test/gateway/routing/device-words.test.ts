/** What answers and the ledger are told of the devices that computed them. */
import { expect, test } from 'vitest';
import { deviceWords } from '../../../gateway/routing/replica.ts';
import type { DeviceDescription } from '../../../spec/session-record.ts';

const device = (kind: DeviceDescription['kind'], model: string, more: object = {}): DeviceDescription => ({
  kind,
  model,
  memory_bytes: 2 ** 30,
  isa: [],
  ...more,
});

test('devices are named and counted, MIG slices among them, and what stands in for one is said', () => {
  const slice = device('mig', 'A100-SXM4-40GB MIG 1g.5gb', { uuid: 'MIG-1' });
  expect(deviceWords([slice])).toBe('A100-SXM4-40GB MIG 1g.5gb');
  expect(deviceWords([slice, { ...slice, uuid: 'MIG-2' }, device('gpu', 'A100-SXM4-40GB')])).toBe(
    '2x A100-SXM4-40GB MIG 1g.5gb, A100-SXM4-40GB',
  );
  expect(deviceWords([device('gpu', 'GH200', { emulated: 'cpu' })])).toBe('GH200 (emulated)');
  expect(deviceWords([])).toBe('unknown');
});
