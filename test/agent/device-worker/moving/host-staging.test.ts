/** Memory of the host that keys and values of a device go through. */
import { expect, test } from 'vitest';
import { HostStaging } from '../../../../agent/device-worker/moving/host-staging.ts';
import { staging_bytes_max } from '../../../../spec/worker-memory.ts';

test('no device has more of it than plans count', () => {
  const bytes = [24, 80, 192].map((gib) => new HostStaging(gib * 2 ** 30).memory.bytes);
  expect(Math.max(...bytes)).toBe(staging_bytes_max);
});
