/**
 * Huge pages for memory that was not given as such. Weights are read from end to end for every iteration, and with pages
 * of 4 KiB a core waits for the page table as long as for memory: in a virtual machine it reads half as fast.
 */
import koffi from 'koffi';
import { huge_page_bytes, populateForReading } from './memory-map.ts';
import type { Pointer } from './signature.ts';

/** From <sys/mman.h>, the same on x86-64 and arm64. */
const advice = { hugepage: 14, collapse: 25 } as const;

/**
 * Of one call, which a thread of libuv's waits in. Lower: more calls, each of which has the kernel empty lists of all
 * CPUs first; higher: one of few threads is away for longer.
 */
const call_bytes_max = 256 * 1024 * 1024;

interface Madvise {
  (address: Pointer, bytes: number, advice: number): number;
  async(
    address: Pointer,
    bytes: number,
    advice: number,
    done: (error: Error | null, result: number) => void,
  ): void;
}

let bound: Madvise | undefined;

function madvise(): Madvise {
  bound ??= koffi.load('libc.so.6').func('int madvise(uintptr_t address, size_t bytes, int advice)') as never;
  return bound!;
}

/** The whole huge pages of a range; undefined where it has none. */
function wholePages(address: Pointer, bytes: number): { begin: Pointer; bytes: number } | undefined {
  const page = BigInt(huge_page_bytes);
  const begin = ((address + page - 1n) / page) * page;
  const end = ((address + BigInt(bytes)) / page) * page;
  return end > begin ? { begin, bytes: Number(end - begin) } : undefined;
}

/**
 * Asks for huge pages in private memory that is written to later. Where the site has none (`never` in
 * /sys/kernel/mm/transparent_hugepage/enabled), nothing changes.
 */
export function adviseHugePages(address: Pointer, bytes: number): void {
  const whole = wholePages(address, bytes);
  if (whole) madvise()(whole.begin, whole.bytes, advice.hugepage);
}

/**
 * Has the kernel make huge pages of those in a range, MADV_COLLAPSE (Linux 6.1), whether they are written to already, are
 * being written to, or are not taken yet, whatever the settings of transparent huge pages. It is done on another thread;
 * what is read or written meanwhile is the same memory.
 *
 * @returns whether all of its whole huge pages are huge now; false also where it has none, and where the kernel cannot
 */
export async function makeHugePages(address: Pointer, bytes: number): Promise<boolean> {
  const whole = wholePages(address, bytes);
  if (!whole) return false;
  for (let done = 0; done < whole.bytes; done += call_bytes_max) {
    const begin = whole.begin + BigInt(done);
    const part_bytes = Math.min(call_bytes_max, whole.bytes - done);
    // A huge page of which nothing is there is passed over, so the first small one of each is taken.
    for (let at = 0; at < part_bytes; at += huge_page_bytes)
      if (!populateForReading(begin + BigInt(at), 1)) return false;
    if (!(await collapse(begin, part_bytes))) return false;
  }
  return true;
}

function collapse(address: Pointer, bytes: number): Promise<boolean> {
  return new Promise((resolve, reject) => {
    madvise().async(address, bytes, advice.collapse, (error, result) =>
      error ? reject(error) : resolve(result === 0),
    );
  });
}
