/** How large the memory pool of a device worker may become. */
import { expect, test } from 'vitest';
import type { UnitGroup } from '../../../agent/node/assign-devices.ts';
import { checkPool, poolSize_bytes } from '../../../agent/node/pool-size.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { frameMemory_bytes } from '../../../spec/worker-memory.ts';
import { unitOf } from '../support.ts';

const gib = 2 ** 30;
/** Programs need less than 15 % of the first, and more of the second. */
const large = 64 * gib;
const small = 4 * gib;

const group = (memory_bytes: number): UnitGroup => ({
  name: 'cpu0',
  engine: 'native',
  threads: 1,
  first_device: 0,
  units: [],
  devices: [{ description: { kind: 'cpu', model: 'test', memory_bytes, isa: [] } }],
});
const sizeOf = (host: number, more: Partial<Parameters<typeof poolSize_bytes>[0]>): number =>
  poolSize_bytes(
    {
      group: group(host),
      memory_limit_bytes: undefined,
      planned_memory_bytes: undefined,
      sharing: undefined,
      ...more,
    },
    host,
  );

test('the pool follows the plan, unless the site says otherwise', () => {
  const planned_memory_bytes = gib;
  expect(sizeOf(large, { planned_memory_bytes })).toBe(gib);
  expect(sizeOf(large, { planned_memory_bytes, sharing: { pool_gb: 0.5 } })).toBe(5e8);
  // Without a plan: 85 %.
  expect(sizeOf(large, {})).toBe(58_411_555_225);
  expect(sizeOf(small, {})).toBe(3_650_722_201);
});

test('it is never more than what the device and the job leave beside programs', () => {
  const planned_memory_bytes = 128 * gib;
  expect(sizeOf(large, { planned_memory_bytes })).toBe(63.25 * gib);
  expect(sizeOf(large, { planned_memory_bytes, memory_limit_bytes: 32 * gib })).toBe(31.25 * gib);
  // Small ones: 85 %.
  expect(sizeOf(small, { planned_memory_bytes })).toBe(3_650_722_201);
  expect(sizeOf(large, { planned_memory_bytes, memory_limit_bytes: 1e9 })).toBe(8.5e8);
  // Programs are where the rest of the host’s memory is.
  expect(sizeOf(large, { planned_memory_bytes, group: group(4e8) })).toBe(395_312_500);
  expect(sizeOf(small, { planned_memory_bytes, group: group(4e8) })).toBe(3.4e8);
  // A device that is stood in for has no more than the host.
  expect(sizeOf(large, { planned_memory_bytes, group: group(2 * large) })).toBe(63.25 * gib);
  expect(sizeOf(large, { sharing: { pool_gb: 1e6 } })).toBe(63.25 * gib);
  expect(sizeOf(large, { sharing: { pool_gb: 1e6 }, memory_limit_bytes: 1e9 })).toBe(8.5e8);
});

test.each([
  { models_gib: 30, whole: 30 * gib, half: 15 * gib },
  // 85 % is more than what was planned.
  { models_gib: 1, whole: 1_597_190_963, half: 798_595_481 },
])(
  'a job that may use what the plan gave it, and no more, has a pool for $models_gib GiB of weights and KV that were planned',
  ({ models_gib, whole, half }) => {
    const limit = (models_gib + 0.75) * gib;
    const job = { planned_memory_bytes: limit, memory_limit_bytes: limit };
    expect(sizeOf(large, { ...job, group: group(limit) })).toBe(whole);
    // Two sockets of the same job share what programs need.
    expect(sizeOf(large, { ...job, group: group(limit / 2) })).toBe(half);
  },
);

test('it leaves memory for frames between stages', () => {
  const stages = [
    { begin: 0, end: 9 },
    { begin: 9, end: 18 },
  ];
  const units = [unitOf({ name: 'cut' }, { stages, nodes: 2 })] as unknown as UnitGroup['units'];
  // As a job is planned that has one such stage, and 30 GiB for it.
  const limit = 30.75 * gib + frameMemory_bytes(2);
  const job = { planned_memory_bytes: limit, memory_limit_bytes: limit };
  expect(sizeOf(large, { ...job, group: { ...group(limit), units } })).toBe(30 * gib);
});

test('models that give way to one another have one room in the pool of a device that only ggml knows', () => {
  const device = { ...group(8 * gib).devices[0]!, ggml_device: 'Vulkan0', only_ggml: true as const };
  const memory = { device_bytes: gib, kv_bytes: 1e6, share: 0.1 };
  const unit = (name: string, more: object) => unitOf({ name }, { memory: { ...memory, ...more } });
  const units = [
    unit('keeps', {}),
    ...['a', 'b', 'c'].map((name) => unit(name, { reuse_bytes: 2 * gib })),
  ] as unknown as UnitGroup['units'];
  expect(sizeOf(large, { group: { ...group(8 * gib), devices: [device], units } })).toBe(3 * gib);
});

test('a model that is larger than its pool is refused with the limit that made it so', () => {
  const refusal = (context: Parameters<typeof checkPool>[1], weight_bytes: number): unknown => {
    checkPool(unitOf({ name: 'fits' }, { weight_bytes: 8.5e8 }), context, large);
    try {
      checkPool(unitOf({ name: 'large' }, { weight_bytes }), context, large);
    } catch (error) {
      expect(error).toBeInstanceOf(HpcserveError);
      return error;
    }
    return undefined;
  };
  const limited = {
    group: group(1e9),
    memory_limit_bytes: 1e9,
    planned_memory_bytes: 3e9,
    sharing: undefined,
  };
  expect(refusal(limited, 8.5e8)).toBe(undefined);
  expect(refusal(limited, 8.5e8 + 1)).toMatchObject({ code: 'E_POOL_FULL' });
  expect(refusal(limited, 2e9)).toMatchObject({
    code: 'E_POOL_FULL',
    message: 'the model large has 1.86 GiB of weights, and the memory pool of its device 0.79 GiB',
    because: ['the job may use 0.93 GiB on this node', 'the plan gave it 2.79 GiB'],
  });
  const arena = unitOf(
    { name: 'large', weights: 'streamed' },
    { weight_bytes: 2e9, memory: { device_bytes: 1e9, kv_bytes: 1e6, share: 0.1, arena_bytes: 8.5e8 + 1 } },
  );
  expect(() => checkPool(arena, limited, large)).toThrow(
    'the model large has an arena of 0.79 GiB for its weights, and the memory pool of its device 0.79 GiB',
  );
  checkPool({ ...arena, memory: { ...arena.memory!, arena_bytes: 8.5e8 } }, limited, large);
  const unlimited = {
    group: group(large),
    memory_limit_bytes: undefined,
    planned_memory_bytes: undefined,
    sharing: { pool_gb: 2 },
  };
  expect(refusal(unlimited, 2e9 + 1)).toMatchObject({
    code: 'E_POOL_FULL',
    message: 'the model large has 1.86 GiB of weights, and the memory pool of its device 1.86 GiB',
    because: ['the node has 64.00 GiB', 'the site config sets sharing.pool_gb to 2'],
  });
});
