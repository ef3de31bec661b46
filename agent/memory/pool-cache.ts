/** KV caches in a pool, as the pool sees them: who has which regions, and who asks for more. */
import type { KvDemand, KvStorage, KvUser } from '../engine/kv-storage.ts';
import type { OffsetRange, Region } from './region-list.ts';
import type { PoolOwner } from './reuse-store.ts';

/** The KV cache of one engine in a pool. */
export interface PoolCache extends KvStorage {
  readonly model: string;
  readonly user: KvUser | undefined;
  /** Of its slabs, and what else it has. */
  readonly regions: ReadonlySet<Region<PoolOwner>>;
}

/** What a cache asks of the pool. */
export interface KvRegions {
  /** @param within where the region is to lie; absent: anywhere */
  take(
    bytes: number,
    alignment: number,
    owner: PoolOwner,
    demand: KvDemand,
    asker: PoolCache,
    within?: OffsetRange,
  ): Region<PoolOwner> | undefined;
  give(region: Region<PoolOwner>): void;
  /** Ranges that there would be if everybody gave up what can be given up. */
  reclaimable(bytes: number, alignment: number, within?: OffsetRange): number;
  closed(cache: PoolCache): void;
}
