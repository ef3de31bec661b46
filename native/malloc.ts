import koffi from 'koffi';

/** From <malloc.h>. */
const trim_threshold = -1;
const mmap_threshold = -3;

/**
 * Blocks from this size on are mappings of their own, which go back to the kernel when they are freed. Lower: more bursts
 * leave nothing behind; higher: fewer system calls. Above what is allocated for each token (the logits of 150,000 words
 * are 0.6 MB), below the bodies of large requests.
 */
const mapped_bytes_min = 2 ** 20;
/** Free memory at the end of the heap that is kept for what comes next. */
const kept_bytes_max = 2 ** 20;

/**
 * Makes malloc give large blocks back for as long as the process lives. By itself glibc raises the size from which it maps
 * blocks to the largest one that was freed, up to 32 MiB (mallopt(3)): after one body of 30 MB all bodies lie in the heap,
 * which keeps its size under whatever small block lies last.
 *
 * @returns false where the C library has no such setting (musl), and nothing is changed
 */
export function returnLargeBlocks(): boolean {
  let mallopt: (option: number, value: number) => number;
  try {
    mallopt = koffi.load('libc.so.6').func('int mallopt(int option, int value)') as typeof mallopt;
  } catch {
    return false; // another C library, or an older one under another name: memory is given back as it sees fit
  }
  return mallopt(mmap_threshold, mapped_bytes_min) === 1 && mallopt(trim_threshold, kept_bytes_max) === 1;
}
