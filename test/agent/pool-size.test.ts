/** How large the memory pool of a device worker may become. */
import { totalmem } from 'node:os';
import { expect, test } from 'vitest';
import type { UnitGroup } from '../../agent/node/allot.ts';
import { poolBytes } from '../../agent/node/device-worker-process.ts';

const host = totalmem();
const group = (memory_bytes: number): UnitGroup => ({
  name: 'cpu0',
  engine: 'native',
  threads: 1,
  first_device: 0,
  units: [],
  devices: [{ description: { kind: 'cpu', model: 'test', memory_bytes, isa: [] } }],
});
const sizeOf = (more: Partial<Parameters<typeof poolBytes>[0]>): number =>
  poolBytes({
    group: group(host),
    memory_limit_bytes: undefined,
    planned_memory_bytes: undefined,
    sharing: undefined,
    ...more,
  });

test('the pool follows the plan, unless the site says otherwise', () => {
  const planned_memory_bytes = 2 ** 30;
  expect(sizeOf({ planned_memory_bytes })).toBe(planned_memory_bytes);
  expect(sizeOf({ planned_memory_bytes, sharing: { pool_gb: 0.5 } })).toBe(5e8);
  expect(sizeOf({})).toBe(Math.floor(0.85 * host));
});

test('it is never more than 85 % of the device and of what the job may use', () => {
  const planned_memory_bytes = 2 * host;
  expect(sizeOf({ planned_memory_bytes })).toBe(Math.floor(0.85 * host));
  expect(sizeOf({ planned_memory_bytes, memory_limit_bytes: 1e9 })).toBe(8.5e8);
  expect(sizeOf({ planned_memory_bytes, group: group(4e8) })).toBe(3.4e8);
  expect(sizeOf({ sharing: { pool_gb: 1e6 }, memory_limit_bytes: 1e9 })).toBe(8.5e8);
});
