/** Files that no node has read yet. */
import { execFileSync } from 'node:child_process';
import { eventually } from '../../mesh/support.ts';

/** Puts a file out of the page cache. Pages that a core has just had in hand stay for a moment. */
export function forgetFile(path: string): Promise<unknown> {
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
