import { closeSync, fstatSync, ftruncateSync, openSync, readFileSync, readlinkSync } from 'node:fs';
import { constants } from 'node:os';
import koffi from 'koffi';
import { HpcserveError } from '../spec/errors/error.ts';
import { type Bound, bind, type Pointer } from './signature.ts';

const libcTable = {
  getpagesize: ['i32'],
  memfd_create: ['i32', 'str', 'u32'],
  mmap: ['ptr', 'ptr', 'usize', 'i32', 'i32', 'i32', 'i64'],
  munmap: ['i32', 'ptr', 'usize'],
  madvise: ['i32', 'ptr', 'usize', 'i32'],
  mincore: ['i32', 'ptr', 'usize', 'ptr'],
  memmove: ['ptr', 'ptr', 'ptr', 'usize'],
  pread: ['i64', 'i32', 'ptr', 'usize', 'i64'],
  preadv2: ['i64', 'i32', 'ptr', 'i32', 'i64', 'i32'],
} as const;

/** From <sys/mman.h>, the same on x86-64 and arm64. */
const protect = { none: 0, read: 1, write: 2 } as const;
const share = {
  shared: 1,
  private: 2,
  fixed: 0x10,
  anonymous: 0x20,
  noreserve: 0x4000,
  populate: 0x8000,
} as const;
const advice = { random: 1, hugepage: 14, populate_read: 22, populate_write: 23, collapse: 25 } as const;
const memfd = { close_on_exec: 1, huge_pages: 4 } as const;
/** RWF_NOWAIT of <linux/fs.h>. */
const no_wait = 8;
const map_failed = 0xffff_ffff_ffff_ffffn;

/** The unit of huge mappings of x86-64, and of arm64 with pages of 4 KiB; a multiple of every base page. */
export const huge_page_bytes = 2 * 1024 * 1024;

let bound: Bound<typeof libcTable> | undefined;

function libc(): Bound<typeof libcTable> {
  bound ??= bind(koffi.load('libc.so.6'), libcTable);
  return bound;
}

/**
 * What kind of pages a memory has. `reserved_huge`: from the site's pool of huge pages (vm.nr_hugepages).
 * `transparent_huge`: the kernel uses huge pages where it finds them (shmem_enabled). `base`: neither is allowed.
 */
export type PageKind = 'reserved_huge' | 'transparent_huge' | 'base';

/** Where the kernel says whether shared memory may have transparent huge pages. */
const shmem_enabled = '/sys/kernel/mm/transparent_hugepage/shmem_enabled';

/**
 * Memory that is a file without a name, memfd_create(2), and mappings of it: what is mapped twice is one memory,
 * and what is mapped over another library's memory becomes that memory. Linux only.
 */
export class SharedMemory {
  readonly descriptor: number;
  readonly bytes: number;
  readonly pages: PageKind;

  private constructor(descriptor: number, bytes: number, pages: PageKind) {
    this.descriptor = descriptor;
    this.bytes = bytes;
    this.pages = pages;
  }

  /**
   * @param bytes a multiple of `huge_page_bytes`. Nothing is taken until it is written, unless huge pages are reserved.
   * @throws HpcserveError E_NATIVE_MEMORY
   */
  static create(name: string, bytes: number): SharedMemory {
    if (bytes <= 0 || bytes % huge_page_bytes !== 0)
      throw new RangeError(`${bytes} bytes are not a positive multiple of ${huge_page_bytes}`);
    // A reservation is taken when memory is mapped, so that a failed one shows here and not as a signal later.
    if (freeReservedHugePages() * huge_page_bytes >= bytes) {
      const huge = SharedMemory.#open(name, bytes, memfd.huge_pages, 'reserved_huge');
      const address = huge === undefined ? undefined : huge.#tryMap(null, 0);
      if (huge && address !== undefined) {
        libc().munmap(address, bytes);
        return huge;
      }
      huge?.close();
    }
    const memory = SharedMemory.#open(name, bytes, 0, transparentAllowed() ? 'transparent_huge' : 'base');
    if (memory) return memory;
    throw failed(`no memory file of ${bytes} bytes`, 'memfd_create');
  }

  static #open(name: string, bytes: number, flags: number, pages: PageKind): SharedMemory | undefined {
    const descriptor = libc().memfd_create(name, memfd.close_on_exec | flags);
    if (descriptor < 0) return undefined;
    ftruncateSync(descriptor, bytes);
    return new SharedMemory(descriptor, bytes, pages);
  }

  /**
   * Maps all of it at a place of the kernel's choice.
   * @throws HpcserveError E_NATIVE_MEMORY
   */
  map(): Pointer {
    const address = this.#tryMap(null, 0);
    if (address === undefined) throw failed(`${this.bytes} bytes were not mapped`, 'mmap');
    return address;
  }

  /**
   * Maps all of it over what lies at `address`, a multiple of `huge_page_bytes`.
   * @throws HpcserveError E_NATIVE_MEMORY
   */
  mapOver(address: Pointer): void {
    if (this.#tryMap(address, share.fixed) === undefined)
      throw failed(`${this.bytes} bytes were not mapped over other memory`, 'mmap');
  }

  #tryMap(address: Pointer | null, flags: number): Pointer | undefined {
    const mapped = libc().mmap(
      address,
      this.bytes,
      protect.read | protect.write,
      share.shared | flags,
      this.descriptor,
      0,
    );
    if (mapped === null || mapped === map_failed) return undefined;
    if (this.pages === 'transparent_huge') libc().madvise(mapped, this.bytes, advice.hugepage);
    return mapped;
  }

  /** The unit in which parts of it can be mapped. */
  get page_bytes(): number {
    return this.pages === 'reserved_huge' ? huge_page_bytes : pageSize_bytes();
  }

  /**
   * Maps a part of it over reserved addresses, and takes its pages now. All three numbers are whole pages.
   * @returns false where the process may have no more mappings (vm.max_map_count) or there is no memory
   */
  mapPart(address: Pointer, offset: number, bytes: number): boolean {
    const flags = share.shared | share.fixed | share.populate;
    const mapped = libc().mmap(address, bytes, protect.read | protect.write, flags, this.descriptor, offset);
    return mapped !== null && mapped !== map_failed;
  }

  /** Bytes of it that are backed by memory now. */
  get resident_bytes(): number {
    return fstatSync(this.descriptor).blocks * stat_block_bytes;
  }

  close(): void {
    closeSync(this.descriptor);
  }
}

/** Unit of `blocks` of stat(2). */
const stat_block_bytes = 512;

/**
 * Reserves addresses with nothing behind them: touching them ends the process.
 * @throws HpcserveError E_NATIVE_MEMORY
 */
export function reserveAddresses(bytes: number): Pointer {
  const flags = share.private | share.anonymous | share.noreserve;
  const mapped = libc().mmap(null, bytes, protect.none, flags, -1, 0);
  if (mapped === null || mapped === map_failed) throw failed(`no addresses for ${bytes} bytes`, 'mmap');
  return mapped;
}

/**
 * Takes away what is mapped at reserved addresses; they stay reserved.
 * @returns false where that takes a mapping more than Linux gives a process: what was mapped stays
 */
export function unmapPart(address: Pointer, bytes: number): boolean {
  const flags = share.private | share.anonymous | share.noreserve | share.fixed;
  const mapped = libc().mmap(address, bytes, protect.none, flags, -1, 0);
  return mapped !== null && mapped !== map_failed;
}

/** 4 KiB on x86-64; up to 64 KiB on arm64. */
export function pageSize_bytes(): number {
  return libc().getpagesize();
}

/** Undoes `mapOver`: private memory again, so that its owner may free it as it was given. */
export function restorePrivateMemory(address: Pointer, bytes: number): void {
  const flags = share.private | share.anonymous | share.fixed | share.noreserve;
  const mapped = libc().mmap(address, bytes, protect.read | protect.write, flags, -1, 0);
  if (mapped === null || mapped === map_failed) throw failed(`${bytes} bytes were not given back`, 'mmap');
}

export function unmap(address: Pointer, bytes: number): void {
  libc().munmap(address, bytes);
}

/**
 * Takes the pages of a writable mapping now, rather than at their first write.
 * @throws HpcserveError E_NATIVE_MEMORY: there are not as many
 */
export function populateForWriting(address: Pointer, bytes: number): void {
  if (libc().madvise(address, bytes, advice.populate_write) === 0) return;
  if (koffi.errno() !== constants.errno.EINVAL) throw failed(`no memory for ${bytes} bytes`, 'madvise');
  // Linux before 5.14: writing a zero to a new page is the same.
  const memory = new Uint8Array(koffi.view(address, bytes));
  for (let offset = 0; offset < bytes; offset += pageSize_bytes()) memory[offset] = memory[offset]!;
}

/**
 * Maps a range of a file for reading.
 * @param offset a multiple of the page size
 * @returns undefined where the filesystem or the limits of the process do not allow it
 */
export function mapFile(descriptor: number, offset: number, bytes: number): Pointer | undefined {
  const mapped = libc().mmap(null, bytes, protect.read, share.shared, descriptor, offset);
  return mapped === null || mapped === map_failed ? undefined : mapped;
}

/**
 * Maps the memory file of another process for reading.
 * @param name that it was made with
 * @returns undefined where that process has no such file of so many bytes, or may not be looked into
 */
export function mapMemoryOf(
  pid: number,
  descriptor: number,
  name: string,
  bytes: number,
): Pointer | undefined {
  const path = `/proc/${pid}/fd/${descriptor}`;
  let file: number;
  try {
    // Opening what else may lie there, such as a pipe, would wait.
    if (!readlinkSync(path).startsWith(`/memfd:${name} `)) return undefined;
    file = openSync(path, 'r');
  } catch {
    return undefined;
  }
  try {
    // What is mapped and not there ends the process that reads it.
    return fstatSync(file).size === bytes ? mapFile(file, 0, bytes) : undefined;
  } finally {
    closeSync(file);
  }
}

/** Tells the kernel about whole pages, madvise(2). @returns whether it took the advice for all of them */
export function adviseMemory(address: Pointer, bytes: number, what: keyof typeof advice): boolean {
  return libc().madvise(address, bytes, advice[what]) === 0;
}

/** Reading a mapped file brings the pages that are read, and none behind them. */
export function adviseRandom(address: Pointer, bytes: number): void {
  libc().madvise(address, bytes, advice.random);
}

/**
 * Brings pages of a mapped file into memory and into the page table. Where the file has no such bytes or the disk
 * fails, this says so; reading the mapping would end the process.
 * @param address a multiple of the page size
 */
export function populateForReading(address: Pointer, bytes: number): boolean {
  return libc().madvise(address, bytes, advice.populate_read) === 0;
}

/** What mincore(2) answers, a byte a page. Kept, since it is asked thousands of times a load. */
let residency = new Uint8Array(1024);

/** Whether all pages of a mapped file are in the page cache. `address` and `bytes` as for `populateForReading`. */
export function isInPageCache(address: Pointer, bytes: number): boolean {
  const pages = Math.ceil(bytes / pageSize_bytes());
  if (residency.length < pages) residency = new Uint8Array(pages);
  if (libc().mincore(address, bytes, residency) !== 0) return false;
  for (let page = 0; page < pages; page++) if ((residency[page]! & 1) === 0) return false;
  return true;
}

/**
 * One pread(2) into memory outside the JavaScript heap.
 * @returns bytes read, less than asked for where the file ends or a signal came; or a negative errno
 */
export function readInto(address: Pointer, descriptor: number, offset: number, bytes: number): number {
  const count = Number(libc().pread(descriptor, address, bytes, offset));
  if (count >= 0) return count;
  const errno = koffi.errno();
  return errno === constants.errno.EINTR ? readInto(address, descriptor, offset, bytes) : -errno;
}

/**
 * As `readInto`, of what is in the page cache alone: preadv2(2) with RWF_NOWAIT.
 * @returns bytes read; 0 where the first is not there, or the filesystem does not tell
 */
export function readCachedInto(address: Pointer, descriptor: number, offset: number, bytes: number): number {
  const vector = BigUint64Array.of(address, BigInt(bytes));
  return Math.max(0, Number(libc().preadv2(descriptor, vector, 1, offset, no_wait)));
}

/** Copies within memory; the ranges may overlap. */
export function moveMemory(to: Pointer, from: Pointer, bytes: number): void {
  libc().memmove(to, from, bytes);
}

function freeReservedHugePages(): number {
  const line = /^HugePages_Free:\s+(\d+)$/m.exec(readFileSync('/proc/meminfo', 'utf8'));
  return line ? Number(line[1]) : 0;
}

function transparentAllowed(): boolean {
  try {
    return /\[(always|within_size|advise|force)\]/.test(readFileSync(shmem_enabled, 'utf8'));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return false; // A kernel without them.
    throw error;
  }
}

function failed(what: string, call: string): HpcserveError {
  return new HpcserveError('E_NATIVE_MEMORY', {
    what,
    because: `${call} failed with errno ${koffi.errno()}`,
  });
}
