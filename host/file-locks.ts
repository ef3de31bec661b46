/** Who holds flock(2) locks on this node, without trying to take them. */
import { readFileSync, statSync } from 'node:fs';

/**
 * The process that has a file locked, as the kernel lists it; undefined where none does, the file is not there, or the
 * list is not to be had. Processes of other containers are not seen.
 */
export function lockHolder(path: string): number | undefined {
  const file = statSync(path, { throwIfNoEntry: false });
  if (!file) return undefined;
  for (const line of lockLines()) {
    // `3: FLOCK  ADVISORY  WRITE 23728 fe:00:9978004 0 EOF`; some filesystems have other device numbers there.
    const found = /^\d+: FLOCK +\S+ +WRITE +(\d+) [\da-f]+:[\da-f]+:(\d+) /.exec(line);
    if (found && Number(found[2]) === file.ino) return Number(found[1]);
  }
  return undefined;
}

function lockLines(): string[] {
  try {
    return readFileSync('/proc/locks', 'utf8').split('\n');
  } catch (error) {
    if (['ENOENT', 'EACCES', 'EPERM'].includes((error as NodeJS.ErrnoException).code ?? '')) return [];
    throw error;
  }
}
