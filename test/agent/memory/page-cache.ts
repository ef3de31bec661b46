/** Files that no node has read yet, and files that stay in memory. */
import { execFileSync } from 'node:child_process';
import { closeSync, fstatSync, openSync, readFileSync } from 'node:fs';
import { constants } from 'node:os';
import koffi from 'koffi';
import { mapFile, unmap } from '../../../native/memory-map.ts';
import { eventually } from '../../mesh/support.ts';

const mlock = koffi.load('libc.so.6').func('int mlock(const void *address, size_t bytes)');

/** Reads a file into the page cache and holds it there: kernels that look for idle pages take them back early. */
export function keepInMemory(path: string): Disposable {
  const descriptor = openSync(path, 'r');
  const bytes = fstatSync(descriptor).size;
  const mapping = mapFile(descriptor, 0, bytes);
  closeSync(descriptor);
  if (mapping === undefined) throw new Error(`${path} was not mapped`);
  if (mlock(mapping, bytes) !== 0) {
    const errno = koffi.errno();
    const why = errno === constants.errno.ENOMEM ? 'ulimit -l is too low' : `errno ${errno}`;
    throw new Error(`${path} was not held in memory: ${why}`);
  }
  return { [Symbol.dispose]: () => unmap(mapping, bytes) };
}

/** Puts a file out of the page cache. Pages that a core has just had in hand stay for a moment. */
export function forgetFile(path: string): Promise<unknown> {
  // What the kernel reads ahead of somebody is neither counted nor put out while it is on its way: this waits for it.
  execFileSync('dd', [`if=${path}`, 'of=/dev/null', 'bs=1M', 'status=none']);
  return eventually(
    () => {
      execFileSync('sync', [path]);
      execFileSync('dd', [`if=${path}`, 'iflag=nocache', 'count=0', 'status=none']);
      const resident = execFileSync('fincore', ['--bytes', '--noheadings', '--output=RES', path]);
      return Number(resident) === 0;
    },
    `${path} to be out of memory`,
    60_000,
  );
}

/** Where this process has a file mapped: addresses, one a mapping. */
export function mappingsOf(path: string): string[] {
  return readFileSync('/proc/self/maps', 'utf8')
    .split('\n')
    .filter((line) => line.endsWith(` ${path}`))
    .map((line) => line.split(' ')[0]!);
}
