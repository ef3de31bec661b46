/**
 * Huge pages for memory that was not given as such. Weights are read from end to end for every iteration, and with
 * pages of 4 KiB a core waits for the page table as long as for memory: in a virtual machine it reads half as fast.
 */
import { adviseMemory, huge_page_bytes, pageSize_bytes, populateForReading } from './memory-map.ts';
import type { Pointer } from './signature.ts';

/** Of Linux's base page, where a huge one has 2 MiB: of 64 KiB on arm64, one has 512 MiB. */
const base_page_bytes = 4096;

/** Addresses of whole huge pages. */
export interface HugeRange {
  readonly address: Pointer;
  readonly bytes: number;
}

/** Where the first huge page begins that does not begin before `address`. */
export function nextHugePage(address: Pointer): Pointer {
  const page = BigInt(huge_page_bytes);
  return ((address + page - 1n) / page) * page;
}

/** The whole huge pages of a range; undefined where it has none. */
export function wholeHugePages(address: Pointer, bytes: number): HugeRange | undefined {
  if (pageSize_bytes() !== base_page_bytes) return undefined;
  const begin = nextHugePage(address);
  const end = ((address + BigInt(bytes)) / BigInt(huge_page_bytes)) * BigInt(huge_page_bytes);
  return end > begin ? { address: begin, bytes: Number(end - begin) } : undefined;
}

/**
 * Asks for huge pages in private memory that is written to later. Where the site has none (`never` in
 * /sys/kernel/mm/transparent_hugepage/enabled), nothing changes.
 */
export function adviseHugePages(address: Pointer, bytes: number): void {
  const whole = wholeHugePages(address, bytes);
  if (whole) adviseMemory(whole.address, whole.bytes, 'hugepage');
}

/**
 * Has the kernel make huge pages of those in a range of a memory file, MADV_COLLAPSE (Linux 6.1), whether they are
 * written to already, are being written to, or are not taken yet; also where such files have none by themselves
 * (`never` in shmem_enabled). What cannot be made stays as it is. Takes as long as the first writes of it would.
 *
 * @returns whether all of it is huge now
 */
export function makeHugePages({ address, bytes }: HugeRange): boolean {
  // Of a file, the kernel makes none where nothing is there: the first small one of each is taken.
  for (let at = 0; at < bytes; at += huge_page_bytes)
    if (!populateForReading(address + BigInt(at), 1)) return false;
  if (adviseMemory(address, bytes, 'collapse')) return true;
  // It stops at the first that somebody writes to at this moment, or holds: the others are made one by one.
  let made_bytes = 0;
  for (let at = 0; at < bytes; at += huge_page_bytes)
    if (adviseMemory(address + BigInt(at), huge_page_bytes, 'collapse')) made_bytes += huge_page_bytes;
  return made_bytes === bytes;
}
