/** How large the memory pool of a device worker may become. */
import { totalmem } from 'node:os';
import { expect, test } from 'vitest';
import type { UnitGroup } from '../../agent/node/allot.ts';
import { checkPool, poolBytes } from '../../agent/node/pool-size.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { defaultPlacementSettings } from '../../spec/plan.ts';
import { unitOf } from './harness.ts';

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

test('it is never more than what the device and the job leave beside programs', () => {
  const planned_memory_bytes = 2 * host;
  const { host_overhead_bytes } = defaultPlacementSettings;
  const most = Math.max(Math.floor(0.85 * host), host - host_overhead_bytes);
  expect(sizeOf({ planned_memory_bytes })).toBe(most);
  // Small ones: 85 %.
  expect(sizeOf({ planned_memory_bytes, memory_limit_bytes: 1e9 })).toBe(8.5e8);
  // Programs are where the rest of the host’s memory is.
  const small = Math.floor(4e8 - (host_overhead_bytes * 4e8) / host);
  expect(sizeOf({ planned_memory_bytes, group: group(4e8) })).toBe(Math.max(3.4e8, small));
  expect(sizeOf({ sharing: { pool_gb: 1e6 }, memory_limit_bytes: 1e9 })).toBe(8.5e8);
});

test('a job that may use what the plan gave it, and no more, has a pool for the weights and KV that were planned', () => {
  const { host_overhead_bytes } = defaultPlacementSettings;
  const models_bytes = host - 2 * host_overhead_bytes;
  const limit = models_bytes + host_overhead_bytes;
  const whole = { planned_memory_bytes: limit, memory_limit_bytes: limit, group: group(limit) };
  expect(sizeOf(whole)).toBe(Math.max(Math.floor(0.85 * limit), models_bytes));
  // Two sockets of the same job share what programs need.
  const half = sizeOf({ ...whole, group: group(limit / 2) });
  expect(half).toBe(Math.max(Math.floor(0.425 * limit), Math.floor(models_bytes / 2)));
});

test('a model that is larger than its pool is refused with the limit that made it so', () => {
  const context = {
    group: group(1e9),
    memory_limit_bytes: 1e9,
    planned_memory_bytes: 3e9,
    sharing: undefined,
  };
  checkPool(unitOf({ name: 'fits' }, { weight_bytes: 8.5e8 }), context);
  let refused: unknown;
  try {
    checkPool(unitOf({ name: 'large' }, { weight_bytes: 2e9 }), context);
  } catch (error) {
    refused = error;
  }
  expect(refused).toBeInstanceOf(HpcserveError);
  expect(refused).toMatchObject({
    code: 'E_POOL_FULL',
    message: 'the model large has 1.86 GiB of weights, and the memory pool of its device 0.79 GiB',
    because: ['the job may use 0.93 GiB on this node', 'the plan gave it 2.79 GiB'],
  });
});
