/** The memory of one device's pool: how bytes are reached. Who owns them is said elsewhere (`RegionList`). */
import type { TransferMemory } from '../../native/fabric/memory.ts';
import type { HugeRange } from '../../native/huge-pages.ts';
import type { Pointer } from '../../native/signature.ts';
import type { KvShape } from '../engine/kv-storage.ts';
import type { KvRegions, PoolCache } from '../memory/pool-cache.ts';

/** Consecutive offsets of a pool that lie in one buffer of ggml. */
export interface PoolSpan {
  /** Offsets [begin, end). */
  readonly begin: number;
  readonly end: number;
  readonly buffer: Pointer;
  /** Address of `begin`, as ggml counts: where the host cannot address the memory, a number of the device's own. */
  readonly base: Pointer;
}

/** One way in which bytes of the pool are laid out and addressed. */
export interface PoolLayout {
  /** ggml's name of the buffer type: `CPU`, `CPU_REPACK`, `AMX`, `Vulkan0`. */
  readonly name: string;
  readonly bufferType: Pointer;
  /** In the order of their offsets; between two of them is a gap. */
  readonly spans: readonly PoolSpan[];
}

export interface Place {
  buffer: Pointer;
  address: Pointer;
}

/** A part of the pool as a buffer of ggml. */
export interface PoolPart {
  readonly buffer: Pointer;
  /** Once ggml has freed the buffer. */
  end(): void;
}

/** Consecutive bytes of a pool. */
export interface PoolBytes {
  readonly offset: number;
  readonly bytes: number;
}

export interface PoolMemory {
  readonly bytes: number;
  /** Of offsets and sizes of regions. */
  readonly alignment_bytes: number;
  /** Plain memory first. */
  readonly layouts: readonly PoolLayout[];
  /** Offsets that nobody may have, so that no region lies in two buffers. */
  readonly gaps: readonly PoolBytes[];
  /** Bytes that are backed by memory now. */
  readonly resident_bytes: number;
  readonly plain: PoolLayout;
  /** What transfers read and write, by offsets of the pool; absent: the host cannot address it. */
  readonly transferMemory?: TransferMemory;
  /** @param bufferType one of those in `layouts` */
  layoutOf(bufferType: Pointer): PoolLayout;
  /** Layouts do not depend on addresses, so that a tensor moves as bytes. The ranges may overlap. */
  move(to_offset: number, from_offset: number, bytes: number): void;
  /** Copies bytes as they are laid out to the host. */
  read(offset: number, into: Uint8Array): void;
  write(offset: number, from: Uint8Array): void;
  /** @param bytes a multiple of `alignment_bytes`, as the offset is */
  zero(offset: number, bytes: number): void;
  /**
   * Takes the memory of a range now: its first use is then as fast as every other.
   * @throws HpcserveError E_NATIVE_MEMORY
   */
  populate(): void;
  /**
   * Of ranges that are going to be read often, what `makeHugePages` may make of huge pages, in pieces; nothing where
   * they have them already. Absent: the memory has no pages of the host.
   */
  hugeRanges?(ranges: readonly PoolBytes[]): HugeRange[];
  /** A region as a buffer of its own, for results of graphs. Undefined where ggml makes none. */
  part(offset: number, bytes: number): PoolPart | undefined;
  /**
   * A KV cache whose slabs are regions of the pool.
   * @throws HpcserveError E_NATIVE_MEMORY, E_POOL_FULL
   */
  openKv(regions: KvRegions, model: string, shape: KvShape): PoolCache;
  /** Nothing may use it any more. */
  free(): void;
}

/** Where an offset of the pool lies. */
export function placeIn(spans: readonly PoolSpan[], offset: number): Place {
  const span = spans.length === 1 ? spans[0]! : spans.find(({ end }) => offset < end);
  if (!span || offset < span.begin) throw new Error(`offset ${offset} of the pool lies in no buffer`);
  return { buffer: span.buffer, address: span.base + BigInt(offset - span.begin) };
}
