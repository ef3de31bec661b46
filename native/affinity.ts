import { readdirSync } from 'node:fs';
import { constants } from 'node:os';
import koffi from 'koffi';

/** Cores beyond this number are not known to glibc's cpu_set_t (1024 bits); the kernel takes longer masks. */
const cores_max = 8192;

/**
 * Restricts every thread of this process, and those it will start, to these cores: sched_setaffinity(2) for each
 * entry of /proc/self/task. The kernel intersects them with the job's cpuset.
 *
 * @param cores as the kernel numbers them; none leaves everything as it is
 * @returns undefined, or why it could not be done: a matter of speed, never of correctness
 */
export function restrictToCores(cores: readonly number[]): string | undefined {
  return restrict(readdirSync('/proc/self/task').map(Number), cores);
}

/**
 * The same for another process of this user that has one thread so far: all that it becomes and starts inherits it,
 * over exec and fork.
 */
export function restrictProcess(pid: number, cores: readonly number[]): string | undefined {
  return restrict([pid], cores);
}

function restrict(threads: readonly number[], cores: readonly number[]): string | undefined {
  if (cores.length === 0) return undefined;
  const highest = Math.max(...cores);
  if (highest >= cores_max) return `core ${highest} is beyond what is supported`;
  // Whole 64-bit words, as the kernel wants them.
  const mask = Buffer.alloc((Math.floor(highest / 64) + 1) * 8);
  for (const core of cores) mask[core >> 3]! |= 1 << (core & 7);
  const libc = koffi.load('libc.so.6');
  const setAffinity = libc.func('int sched_setaffinity(int pid, size_t size, const uint8_t *mask)') as (
    thread: number,
    size: number,
    mask: Buffer,
  ) => number;
  for (const thread of threads) {
    if (setAffinity(thread, mask.length, mask) === 0) continue;
    const errno = koffi.errno();
    if (errno !== constants.errno.ESRCH) return `sched_setaffinity failed with errno ${errno}`; // it has just ended
  }
  return undefined;
}
