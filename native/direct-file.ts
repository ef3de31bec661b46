import { constants, openSync } from 'node:fs';
import { systemCode } from '../spec/errors/system-error.ts';

/**
 * Opens a file that is open once more, for reads past the page cache: O_DIRECT of open(2).
 * @returns the other descriptor; or what the kernel says against it: `EINVAL`
 */
export function openDirect(descriptor: number): number | string {
  try {
    return openSync(`/proc/self/fd/${descriptor}`, constants.O_RDONLY | constants.O_DIRECT);
  } catch (error) {
    const code = systemCode(error);
    if (code === undefined) throw error;
    return code;
  }
}
