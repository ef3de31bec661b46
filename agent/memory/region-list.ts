import { HpcserveError } from '../../spec/errors/error.ts';

/** Offsets [begin, end). */
export interface OffsetRange {
  begin: number;
  end: number;
}

export interface Region<Owner> {
  readonly offset: number;
  readonly bytes: number;
  /** Undefined: free. */
  readonly owner: Owner | undefined;
}

interface Link<Owner> {
  offset: number;
  bytes: number;
  owner: Owner | undefined;
  previous: Link<Owner> | undefined;
  next: Link<Owner> | undefined;
}

/**
 * The regions of one address range, chained by address: each is free or has an owner, and together they cover the
 * range without a gap (Tangram §3.2). Only numbers: the memory itself is `PoolMemory`'s.
 */
export class RegionList<Owner> {
  readonly bytes: number;
  /** Offsets and sizes are multiples of it. */
  readonly alignment: number;
  readonly #first: Link<Owner>;
  #free_bytes: number;
  #count = 1;

  /** @param bytes a multiple of the alignment */
  constructor(bytes: number, alignment: number) {
    if (bytes <= 0 || bytes % alignment !== 0)
      throw new RangeError(`${bytes} bytes are not a positive multiple of ${alignment}`);
    this.bytes = bytes;
    this.alignment = alignment;
    this.#free_bytes = bytes;
    this.#first = { offset: 0, bytes, owner: undefined, previous: undefined, next: undefined };
  }

  get free_bytes(): number {
    return this.#free_bytes;
  }

  get count(): number {
    return this.#count;
  }

  /** In address order. The list must not change while it is walked. */
  *[Symbol.iterator](): Generator<Region<Owner>> {
    for (let link: Link<Owner> | undefined = this.#first; link; link = link.next) yield link;
  }

  get largest_free_bytes(): number {
    let largest = 0;
    for (const { owner, bytes } of this) if (owner === undefined) largest = Math.max(largest, bytes);
    return largest;
  }

  /** Share of the free bytes that lies outside the largest free region: 0 where all of it is one. */
  get fragmentation(): number {
    return this.#free_bytes === 0 ? 0 : 1 - this.largest_free_bytes / this.#free_bytes;
  }

  aligned(bytes: number): number {
    return Math.ceil(bytes / this.alignment) * this.alignment;
  }

  /**
   * Best fit: the beginning of the smallest free region that is large enough.
   * @param alignment of the offset, a multiple of the list's
   * @param within offsets that it may have; absent: all
   * @returns undefined where none is
   */
  allocate(
    bytes: number,
    owner: Owner,
    alignment = this.alignment,
    within: OffsetRange = { begin: 0, end: this.bytes },
  ): Region<Owner> | undefined {
    const size = this.#checked(bytes);
    const begin = ({ offset }: Link<Owner>): number =>
      Math.ceil(Math.max(offset, within.begin) / alignment) * alignment;
    let best: Link<Owner> | undefined;
    for (let link: Link<Owner> | undefined = this.#first; link; link = link.next) {
      if (link.owner !== undefined || (best && link.bytes >= best.bytes)) continue;
      if (begin(link) + size <= Math.min(link.offset + link.bytes, within.end)) best = link;
    }
    return best && this.#take(best, begin(best), size, owner);
  }

  /** @throws Error where a byte of it is taken: a plan that does not match the list is a fault of ours */
  allocateAt(offset: number, bytes: number, owner: Owner): Region<Owner> {
    const size = this.#checked(bytes);
    let link: Link<Owner> | undefined = this.#first;
    while (link && link.offset + link.bytes <= offset) link = link.next;
    if (!link || link.owner !== undefined || offset < link.offset || offset + size > link.offset + link.bytes)
      throw new Error(`bytes ${offset} to ${offset + size} of the pool are not free`);
    if (offset % this.alignment !== 0) throw new Error(`offset ${offset} is not aligned`);
    return this.#take(link, offset, size, owner);
  }

  /** Its neighbours become one with it where they are free, too. */
  free(region: Region<Owner>): void {
    const link = this.#linkOf(region);
    link.owner = undefined;
    this.#free_bytes += link.bytes;
    const { previous, next } = link;
    if (next && next.owner === undefined) this.#absorb(link, next);
    if (previous && previous.owner === undefined) this.#absorb(previous, link);
  }

  /**
   * Moves a region to bytes that are free or its own. The bytes themselves are to be moved by the caller.
   * @returns the region in its new place; the old one is no more
   */
  move(region: Region<Owner>, offset: number): Region<Owner> {
    const link = this.#linkOf(region);
    const { owner, bytes } = link;
    const from = link.offset;
    this.free(link);
    try {
      return this.allocateAt(offset, bytes, owner!);
    } catch (error) {
      this.allocateAt(from, bytes, owner!);
      throw error;
    }
  }

  /**
   * Walks the chain and compares it with the sums that are kept.
   * @throws HpcserveError E_POOL_INTEGRITY with what is wrong
   */
  verify(): void {
    let offset = 0;
    let free = 0;
    let count = 0;
    let previous: Link<Owner> | undefined;
    for (let link: Link<Owner> | undefined = this.#first; link; link = link.next) {
      const at = `the region at ${link.offset}`;
      if (link.offset !== offset) throw damaged(`${at} should begin at ${offset}`);
      if (link.previous !== previous) throw damaged(`${at} is not chained to the one before it`);
      if (link.bytes <= 0 || link.bytes % this.alignment !== 0)
        throw damaged(`${at} has ${link.bytes} bytes`);
      if (link.owner === undefined) {
        if (previous && previous.owner === undefined)
          throw damaged(`${at} and the one before it are both free`);
        free += link.bytes;
      }
      offset += link.bytes;
      count++;
      previous = link;
    }
    if (offset !== this.bytes) throw damaged(`the regions cover ${offset} of ${this.bytes} bytes`);
    if (free !== this.#free_bytes)
      throw damaged(`${free} bytes are free, and ${this.#free_bytes} were counted`);
    if (count !== this.#count) throw damaged(`there are ${count} regions, and ${this.#count} were counted`);
  }

  #checked(bytes: number): number {
    if (!(bytes > 0)) throw new RangeError(`a region of ${bytes} bytes`);
    return this.aligned(bytes);
  }

  #linkOf(region: Region<Owner>): Link<Owner> {
    if (region.owner === undefined) throw new Error(`the region at ${region.offset} is free already`);
    return region as Link<Owner>;
  }

  #take(link: Link<Owner>, offset: number, bytes: number, owner: Owner): Region<Owner> {
    if (offset > link.offset) link = this.#split(link, offset - link.offset);
    if (bytes < link.bytes) this.#split(link, bytes);
    link.owner = owner;
    this.#free_bytes -= bytes;
    return link;
  }

  /** @returns the second of the two parts */
  #split(link: Link<Owner>, bytes: number): Link<Owner> {
    const rest: Link<Owner> = {
      offset: link.offset + bytes,
      bytes: link.bytes - bytes,
      owner: undefined,
      previous: link,
      next: link.next,
    };
    if (link.next) link.next.previous = rest;
    link.next = rest;
    link.bytes = bytes;
    this.#count++;
    return rest;
  }

  #absorb(link: Link<Owner>, next: Link<Owner>): void {
    link.bytes += next.bytes;
    link.next = next.next;
    if (next.next) next.next.previous = link;
    this.#count--;
  }
}

function damaged(because: string): HpcserveError {
  return new HpcserveError('E_POOL_INTEGRITY', {
    what: 'the region list of a memory pool contradicts itself',
    because,
  });
}
