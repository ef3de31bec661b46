/** A KV cache where the kernel gives a process no more mappings. */
import { expect, test } from 'vitest';
import { MappedKv } from '../../../agent/backend/cpu/mapped-kv.ts';
import type { KvRegions } from '../../../agent/memory/pool-cache.ts';
import type { Region } from '../../../agent/memory/region-list.ts';
import type { PoolOwner } from '../../../agent/memory/reuse-store.ts';
import { loadGgml } from '../../../native/ggml.ts';
import { pageSize_bytes, SharedMemory } from '../../../native/memory-map.ts';

const shape = { matrices: 4, row_bytes: 1024, tokens: 1024 };

/** A real memory that is mapped so often, and regions that are counted. */
class Counted {
  readonly memory = SharedMemory.create('test', 64 * 2 ** 20);
  readonly page_bytes = pageSize_bytes();
  readonly given = new Set<Region<PoolOwner>>();
  maps_left: number;
  #at = 0;

  constructor(maps: number) {
    this.maps_left = maps;
  }

  mapPart(address: bigint, offset: number, bytes: number): boolean {
    if (this.maps_left === 0) return false;
    this.maps_left--;
    return this.memory.mapPart(address, offset, bytes);
  }

  readonly regions: KvRegions = {
    take: (bytes, alignment, owner) => {
      const offset = Math.ceil(this.#at / alignment) * alignment;
      this.#at = offset + bytes;
      const region = { offset, bytes, owner } as unknown as Region<PoolOwner>;
      this.given.add(region);
      return region;
    },
    give: (region) => void expect(this.given.delete(region)).toBe(true),
    reclaimable: () => 0,
    closed: () => undefined,
  };

  open(): MappedKv {
    return new MappedKv(loadGgml(), this, this.regions, 'm', shape);
  }
}

test('a slab that is not mapped as a whole is given back, and so is all of the cache', () => {
  const counted = new Counted(shape.matrices + shape.matrices + 2);
  const kv = counted.open();
  expect(kv.commit([0], 'evict')).toBe(true);
  expect(kv.commit([1], 'evict')).toBe(false);
  expect(counted.given.size).toBe(2);
  counted.maps_left = shape.matrices;
  expect(kv.commit([1], 'evict')).toBe(true);
  kv.free();
  expect(counted.given.size).toBe(0);
  counted.memory.close();
});

test('a cache whose first page is not mapped leaves nothing taken, and says what is lacking', () => {
  const counted = new Counted(2);
  expect(() => counted.open()).toThrow(
    expect.objectContaining({
      code: 'E_NATIVE_MEMORY',
      because: [expect.stringContaining('vm.max_map_count')],
    }),
  );
  expect(counted.given.size).toBe(0);
  counted.memory.close();
});
