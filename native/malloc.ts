import koffi, { type LibraryHandle } from 'koffi';

/** From <malloc.h>. */
const trim_threshold = -1;
const mmap_threshold = -3;

/**
 * Blocks from this size on are mappings of their own, which go back to the kernel when they are freed. Lower: more
 * bursts leave nothing behind; higher: fewer system calls. Above what is allocated for each token (the logits of
 * 150,000 words are 0.6 MB), below the bodies of large requests.
 */
const mapped_bytes_min = 2 ** 20;
/** Free memory at the end of the heap that is kept for what comes next. */
const kept_bytes_max = 2 ** 20;
/** Lower: a burst is forgotten sooner; higher: fewer of the milliseconds that a walk over all free blocks takes. */
const trim_interval_ms = 60_000;

/**
 * Makes malloc give memory back for as long as the process lives: large blocks when they are freed, and once a minute
 * every page that only freed blocks lie on. By itself glibc raises the size from which it maps blocks to the largest
 * one that was freed, up to 32 MiB (mallopt(3)): after one body of 30 MB all bodies lie in the heap. And heaps keep
 * their size under whatever small block lies last, those of threads more than others (malloc_trim(3)).
 *
 * @returns false where the C library has no such setting (musl), and nothing is changed
 */
export function returnFreedMemory(interval_ms = trim_interval_ms): boolean {
  let libc: LibraryHandle;
  try {
    libc = koffi.load('libc.so.6');
  } catch {
    return false; // another C library: it gives back as it sees fit
  }
  const mallopt = libc.func('int mallopt(int option, int value)') as (
    option: number,
    value: number,
  ) => number;
  const trim = libc.func('int malloc_trim(size_t pad)');
  // On a thread of libuv: heaps are locked one after another, and this thread goes on.
  setInterval(() => trim.async(0, (error: Error | null) => void error), interval_ms).unref();
  return mallopt(mmap_threshold, mapped_bytes_min) === 1 && mallopt(trim_threshold, kept_bytes_max) === 1;
}
