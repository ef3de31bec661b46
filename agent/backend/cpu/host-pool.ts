import type { TransferMemory } from '../../../native/fabric/memory.ts';
import { BufferUsage, type Ggml, memoryAt } from '../../../native/ggml.ts';
import { type HugeRange, nextHugePage, wholeHugePages } from '../../../native/huge-pages.ts';
import {
  huge_page_bytes,
  moveMemory,
  type PageKind,
  pageSize_bytes,
  populateForWriting,
  reserveAddresses,
  restorePrivateMemory,
  SharedMemory,
  unmap,
} from '../../../native/memory-map.ts';
import { specialBufferTypes } from '../../../native/packed-products.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { KvShape } from '../../engine/kv-storage.ts';
import type { KvRegions, PoolCache } from '../../memory/pool-cache.ts';
import type { PoolBytes, PoolLayout, PoolMemory, PoolPart } from '../pool-memory.ts';
import { MappedKv } from './mapped-kv.ts';

/** Of offsets in a pool: a cache line, and a multiple of what every buffer type of ggml asks for on a CPU. */
const pool_alignment_bytes = 64;
/**
 * Of huge pages that one thread makes between two looks at what else there is. Lower: more calls, each of which has the
 * kernel empty lists of all CPUs first; higher: threads share them less evenly.
 */
const made_at_once_bytes = 16 * 1024 * 1024;

/** All of the pool in one buffer. */
interface HostLayout extends PoolLayout {
  readonly buffer: Pointer;
  /** Address of offset 0 of the pool. */
  readonly base: Pointer;
}

/**
 * The memory of a CPU's pool, as ggml sees it. Weights with special layouts (repacked, AMX) must lie in
 * buffers of special types, and everything else in plain ones; here all of these buffers are the same memory, so
 * that the pool decides what lies where. ggml allocates the buffer of a special type itself; a memory file is
 * then mapped over its pages. The plain buffer wraps the same addresses. Where a CPU has several special types,
 * each has addresses of its own, and the pages behind them are the same.
 */
export class HostPool implements PoolMemory {
  readonly bytes: number;
  readonly alignment_bytes = pool_alignment_bytes;
  readonly gaps = [];
  readonly pages: PageKind;
  /** Plain memory first. */
  readonly layouts: readonly HostLayout[];
  /** The memory file, for transfers by sendfile or RDMA. */
  readonly descriptor: number;
  readonly #ggml: Ggml;
  readonly #memory: SharedMemory;
  /** Where no special buffer gives addresses: reserved ones, in which the pool is mapped from a huge page on. */
  readonly #ownAddresses: Pointer | undefined;

  /**
   * @param bytes rounded up to whole huge pages; nothing of it is taken before it is written
   * @throws HpcserveError E_NATIVE_MEMORY
   */
  constructor(ggml: Ggml, bytes: number) {
    this.#ggml = ggml;
    this.bytes = Math.ceil(bytes / huge_page_bytes) * huge_page_bytes;
    this.#memory = SharedMemory.create('hpcserve-pool', this.bytes);
    this.pages = this.#memory.pages;
    this.descriptor = this.#memory.descriptor;
    const special: HostLayout[] = [];
    try {
      for (const bufferType of specialBufferTypes(ggml)) special.push(this.#special(bufferType));
      this.#ownAddresses = special.length === 0 ? reserveAddresses(this.bytes + huge_page_bytes) : undefined;
      const base = this.#ownAddresses === undefined ? special[0]!.base : nextHugePage(this.#ownAddresses);
      if (this.#ownAddresses !== undefined) this.#memory.mapOver(base);
      this.layouts = [this.#plain(base), ...special];
    } catch (error) {
      for (const layout of special) this.#freeSpecial(layout);
      this.#memory.close();
      throw error;
    }
  }

  get transferMemory(): TransferMemory {
    return { address: this.plain.base, bytes: this.bytes, descriptor: this.descriptor };
  }

  get plain(): HostLayout {
    return this.layouts[0]!;
  }

  /** @param bufferType one of those in `layouts` */
  layoutOf(bufferType: Pointer): HostLayout {
    const layout = this.layouts.find((candidate) => candidate.bufferType === bufferType);
    if (!layout) throw new Error('the pool has no layout of that buffer type');
    return layout;
  }

  /** The bytes as they are laid out, shared and not copied. Valid until `free`. */
  view(offset: number, bytes: number): Uint8Array {
    return memoryAt(this.plain.base + BigInt(offset), bytes);
  }

  read(offset: number, into: Uint8Array): void {
    into.set(this.view(offset, into.length));
  }

  write(offset: number, from: Uint8Array): void {
    this.view(offset, from.length).set(from);
  }

  zero(offset: number, bytes: number): void {
    this.view(offset, bytes).fill(0);
  }

  move(to_offset: number, from_offset: number, bytes: number): void {
    const { base } = this.plain;
    moveMemory(base + BigInt(to_offset), base + BigInt(from_offset), bytes);
  }

  part(offset: number, bytes: number): PoolPart | undefined {
    const buffer = this.#ggml.ggml_backend_cpu_buffer_from_ptr(this.plain.base + BigInt(offset), bytes);
    return buffer ? { buffer, end: () => undefined } : undefined;
  }

  openKv(regions: KvRegions, model: string, shape: KvShape): PoolCache {
    return new MappedKv(this.#ggml, this, regions, model, shape);
  }

  populate(offset = 0, bytes = this.bytes - offset): void {
    const page = BigInt(pageSize_bytes());
    const begin = ((this.plain.base + BigInt(offset)) / page) * page;
    const end = this.plain.base + BigInt(offset + bytes);
    populateForWriting(begin, Number(end - begin));
  }

  hugeRanges(ranges: readonly PoolBytes[]): HugeRange[] {
    if (this.pages !== 'base') return [];
    const found: HugeRange[] = [];
    for (const { offset, bytes } of ranges) {
      const whole = wholeHugePages(this.plain.base + BigInt(offset), bytes);
      if (!whole) continue;
      for (let at = 0; at < whole.bytes; at += made_at_once_bytes)
        found.push({
          address: whole.address + BigInt(at),
          bytes: Math.min(made_at_once_bytes, whole.bytes - at),
        });
    }
    return found;
  }

  /** The unit in which parts of it can be mapped elsewhere. */
  get page_bytes(): number {
    return this.#memory.page_bytes;
  }

  get resident_bytes(): number {
    return this.#memory.resident_bytes;
  }

  /** Puts a part of the pool behind reserved addresses; see `SharedMemory.mapPart`. */
  mapPart(address: Pointer, offset: number, bytes: number): boolean {
    return this.#memory.mapPart(address, offset, bytes);
  }

  free(): void {
    const [plain, ...special] = this.layouts;
    this.#ggml.ggml_backend_buffer_free(plain!.buffer);
    for (const layout of special) this.#freeSpecial(layout);
    if (this.#ownAddresses !== undefined) unmap(this.#ownAddresses, this.bytes + huge_page_bytes);
    this.#memory.close();
  }

  #special(bufferType: Pointer): HostLayout {
    const ggml = this.#ggml;
    const name = ggml.ggml_backend_buft_name(bufferType) ?? 'unnamed';
    // Untouched memory of ggml's own costs addresses only; a huge page more lets the mapping begin at one.
    const buffer = ggml.ggml_backend_buft_alloc_buffer(bufferType, this.bytes + huge_page_bytes);
    if (!buffer) throw refused(name, this.bytes);
    const base = nextHugePage(ggml.ggml_backend_buffer_get_base(buffer)!);
    ggml.ggml_backend_buffer_set_usage(buffer, BufferUsage.weights);
    try {
      this.#memory.mapOver(base);
    } catch (error) {
      ggml.ggml_backend_buffer_free(buffer);
      throw error;
    }
    return this.#layout(name, bufferType, buffer, base);
  }

  #layout(name: string, bufferType: Pointer, buffer: Pointer, base: Pointer): HostLayout {
    const spans = [{ begin: 0, end: this.bytes, buffer, base }];
    return { name, bufferType, buffer, base, spans };
  }

  #freeSpecial({ base, buffer }: HostLayout): void {
    restorePrivateMemory(base, this.bytes);
    this.#ggml.ggml_backend_buffer_free(buffer);
  }

  #plain(base: Pointer): HostLayout {
    const ggml = this.#ggml;
    const bufferType = ggml.ggml_backend_cpu_buffer_type()!;
    const name = ggml.ggml_backend_buft_name(bufferType) ?? 'CPU';
    const buffer = ggml.ggml_backend_cpu_buffer_from_ptr(base, this.bytes);
    if (!buffer) throw refused(name, this.bytes);
    return this.#layout(name, bufferType, buffer, base);
  }
}

function refused(name: string, bytes: number): HpcserveError {
  return new HpcserveError('E_NATIVE_MEMORY', {
    what: `no address range of ${(bytes / 2 ** 30).toFixed(2)} GiB for a memory pool`,
    because: `ggml made no buffer of the type ${name}`,
    try: 'make the pool smaller, or raise the limit on virtual memory (ulimit -v)',
  });
}
